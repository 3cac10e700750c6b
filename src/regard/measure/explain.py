"""Explanation of a model as text: its parts as a table, the kernel plan of each attention with its reason, and the
cost."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from regard import config
from regard.core.kernels import Plan
from regard.core.layers import Attention, Block
from regard.core.model import BlockRunner, Transformer, Trunk
from regard.files.size_limits import format_bytes
from regard.inputs.cost import describe_front_end
from regard.inputs.multimodal import MultimodalEmbedding
from regard.inputs.stages import StageEmbedding
from regard.inputs.text import ChunkEmbedding
from regard.measure.activations import shorten_model
from regard.measure.estimate import ModelEstimate, estimate_model
from regard.measure.fake_model import AnyModel, ModelConfig, build_fake_model, max_tokens, meta_model
from regard.measure.flops import recurrent_rows
from regard.models.dual_encoder import DualEncoder
from regard.models.recurrent import RecurrentStack

Row = tuple[str, str, int]  # part, shape, parameters


def explain_model(
    model: AnyModel | ModelConfig, context: int | None = None, *, batch: int = 1,
    optimizer: config.Optimizer | None = None, device: str = "cpu",
) -> str:  # fmt: skip
    """The text of `regard explain`: the parts, the kernel plans with their reasons, the cost of a step."""
    shape = meta_model(model)
    context = context or max_tokens(shape.c)
    bill = estimate_model(shape.c, batch=batch, context=context, optimizer=optimizer)
    found = kernel_plans(shape.c, context, batch=batch, device=device)
    wide = max((len(where) for where, _ in found), default=0)
    chosen = [f"{where:<{wide}}  {plan}" for where, plan in found] or ["no attention"]
    return "\n\n".join([format_table(model_rows(shape)), "\n".join(["plans", *indent(chosen)]), cost_lines(bill)])


# ---------------------------------------------------------------- parts


def model_rows(model: AnyModel) -> Iterator[Row]:
    if isinstance(model, DualEncoder):
        for i, tower in enumerate(model.towers):
            yield from ((f"towers.{i}.{part}", shape, many) for part, shape, many in model_rows(tower))
        yield "scale", "between the towers", model.scale.numel()
        return
    yield from front_end_rows("embed", model.embed)
    if model.encoder_embed is not None:
        yield from front_end_rows("encoder_embed", model.encoder_embed)
    for name, trunk in (("encoder", model.encoder), ("trunk", model.trunk)):
        if trunk is not None:
            yield from trunk_rows(name, trunk)
    mine = {id(weight) for weight in model.embed.parameters()}  # a tied weight counts as the embedding's
    yield "head", head_row(model), sum(weight.numel() for weight in model.head.parameters() if id(weight) not in mine)


def front_end_rows(name: str, front: Any) -> Iterator[Row]:
    """The row of a front end; parts that are models have rows of their own."""
    if isinstance(front, StageEmbedding):
        yield from front_end_rows(name, front.patches)
        for i, trunk in enumerate(front.trunks):
            yield from trunk_rows(f"{name}.{i}", trunk)
            merge: Any = front.merges[i]
            yield f"{name}.{i}.merge", f"4 x {trunk.c.dim} -> {merge.map.out_features}", parameter_count(merge)
    elif isinstance(front, MultimodalEmbedding):
        yield from front_end_rows(f"{name}.prefix", front.prefix)
        yield from front_end_rows(f"{name}.text", front.text)
        yield f"{name}.kinds", "what is seen, and the text", parameter_count(front.kinds)
    elif isinstance(front, ChunkEmbedding):
        yield from front_end_rows(f"{name}.text", front.text)
        yield from trunk_rows(f"{name}.trunk", front.trunk)
        yield (
            f"{name}.map",
            f"chunks of {front.c.chunk_size} tokens -> {front.map.out_features}",
            parameter_count(front.map),
        )
    else:
        yield name, describe_front_end(front), parameter_count(front)


def trunk_rows(name: str, trunk: Trunk | RecurrentStack) -> Iterator[Row]:
    if isinstance(trunk, RecurrentStack):
        yield from recurrent_rows(name, trunk)
        return
    yield f"{name}.position", trunk.c.position.kind, parameter_count(trunk.positions)
    if trunk.embed_norm is not None:
        yield f"{name}.embed_norm", norm_cell(trunk.c), parameter_count(trunk.embed_norm)
    if trunk.project is not None:
        yield f"{name}.project", f"{trunk.project.in_features} -> {trunk.c.dim}", parameter_count(trunk.project)
    for where, blocks in block_runs(trunk):
        block, times = blocks[0], len(blocks)
        attend = [("attn", block.attn), *([("cross", block.cross)] if block.cross is not None else [])]
        if not isinstance(block.attn, Attention):
            yield f"{name}.{where}.attn", trunk.c.mixer.kind, times * parameter_count(attend.pop(0)[1])
        for part, layer in attend:
            yield (
                f"{name}.{where}.{part}",
                heads_cell(layer),
                times * (parameter_count(layer) - parameter_count(layer.q_norm, layer.k_norm)),
            )
        if block.mlp is not None:
            yield f"{name}.{where}.mlp", mlp_cell(trunk.c), times * parameter_count(block.mlp)
        norms = [block.attn_norm, block.cross_norm, block.mlp_norm]
        norms += [each for _, layer in attend for each in (layer.q_norm, layer.k_norm)]
        yield f"{name}.{where}.norms", norm_cell(trunk.c), times * parameter_count(*norms)
    if trunk.final_norm is not None:
        yield f"{name}.final_norm", norm_cell(trunk.c), parameter_count(trunk.final_norm)


def block_runs(trunk: Trunk) -> Iterator[tuple[str, list[Block]]]:
    """Runs of equal consecutive blocks, under names such as "0-3"; shared layers are one block."""
    blocks: list[Block] = list(trunk.blocks)  # type: ignore[arg-type]
    if trunk.c.share_layers:
        yield f"0-{trunk.c.depth - 1} (shared)", blocks
        return
    start = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or block_shape(blocks[end]) != block_shape(blocks[start]):
            yield (f"{start}-{end - 1}" if end - start > 1 else str(start)), blocks[start:end]
            start = end


def block_shape(block: Block) -> list[tuple[int, int]]:
    return [(each.heads, each.kv_heads) for each in (block.attn, block.cross) if isinstance(each, Attention)]


def parameter_count(*modules: nn.Module | None) -> int:
    return sum(weight.numel() for module in modules if module is not None for weight in module.parameters())


def heads_cell(attention: Attention) -> str:
    shared = f", {attention.kv_heads} of keys and values" if attention.kv_heads != attention.heads else ""
    return f"{attention.heads} heads of {attention.head_dim}{shared}"


def mlp_cell(c: config.Trunk) -> str:
    return f"{c.dim} -> {c.mlp.hidden or 4 * c.dim} -> {c.dim}, {'gated ' if c.mlp.gated else ''}{c.mlp.activation}"


def norm_cell(c: config.Trunk) -> str:
    return f"{c.norm.kind}, {c.norm_placement}" + ("" if c.norm.gain else ", no gain")


def head_row(model: Transformer) -> str:
    return head_cell(model.c.head, model)


def head_cell(c: config.Head, model: Transformer) -> str:
    if isinstance(c, config.PretrainingHead):
        return f"{head_cell(c.lm, model)}; {head_cell(c.pooling, model)}"
    if isinstance(c, config.LMHead):
        return f"{model.c.trunk.dim} -> {c.vocab or model.c.embed.vocab:,}" + (", tied to embed" if c.tied else "")
    if isinstance(c, config.PoolingHead):
        return f"one vector from {c.pooling}" + (f", {model.c.trunk.dim} -> {c.out:,}" if c.out else "")
    if isinstance(c, config.TokenHead):
        return f"every vector, {model.c.trunk.dim} -> {c.out:,}"
    if isinstance(c, config.ForecastHead):
        return f"all tokens of a channel, -> {c.horizon} rows" + (", and a line" if c.linear_skip else "")
    return "none"


def format_table(found: Iterable[Row]) -> str:
    rows = list(found)
    written = [("part", "shape", "parameters"), *((part, shape, f"{many:,}") for part, shape, many in rows)]
    written.append(("total", "", f"{sum(many for _, _, many in rows):,}"))
    first, second, third = (max(len(row[i]) for row in written) for i in range(3))
    return "\n".join(f"{a:<{first}}  {b:<{second}}  {c:>{third}}" for a, b, c in written)


# ---------------------------------------------------------------- plans


def kernel_plans(c: ModelConfig, context: int, *, batch: int = 1, device: str = "cpu") -> list[tuple[str, str]]:
    """The kernel that a training step would choose for each distinct mask, and why, found by running a fake model."""
    made, found, depths = (
        build_fake_model(shorten_model(c), device),
        list[tuple[str, str]](),
        trunk_depths(meta_model(c)),
    )
    for name, module in made.model.named_modules():
        if isinstance(module, Trunk):
            module.runner = PlanRecorder(module, name.replace("trunks.", ""), depths[name], found)
    with made.mode:
        made.run(batch, context)
    return found


def trunk_depths(shape: AnyModel) -> dict[str, int]:
    return {name: module.c.depth for name, module in shape.named_modules() if isinstance(module, Trunk)}


class PlanRecorder(BlockRunner):
    """A block runner that records a trunk's plans: one for each mask in turn, then one for cross-attention."""

    def __init__(self, trunk: Trunk, name: str, depth: int, found: list[tuple[str, str]]) -> None:
        self.own, self.name, self.depth, self.found = trunk.runner, name, depth, found
        self.masks = iter(range(len(trunk.masks)))

    def plan(self, trunk: Trunk, *given: Any) -> Plan:
        chosen, i = self.own.plan(trunk, *given), next(self.masks, None)
        layers = "*.cross" if i is None else layer_range(range(i, self.depth, len(trunk.masks)), self.depth)
        self.found.append((f"{self.name}.{layers}", str(chosen)))
        return chosen

    def run(self, trunk: Trunk, *given: Any) -> Tensor:
        return self.own.run(trunk, *given)


def layer_range(layers: range, depth: int) -> str:
    return "*" if len(layers) == depth else ",".join(map(str, layers[:4])) + ("..." if len(layers) > 4 else "")


# ---------------------------------------------------------------- cost


def cost_lines(bill: ModelEstimate) -> str:
    """One line for each kind of cost."""
    memory = bill.memory
    held = {name: getattr(memory, name) for name in ("weights", "gradients", "optimizer", "activations")}
    lines = [
        f"forward      {format_count(bill.flops.forward)}FLOP a {bill.unit}; {format_shares(bill.flops.parts)}",
        f"training     {format_count(bill.flops.training)}FLOP a {bill.unit}, {format_count(bill.step_flops)}FLOP a "
        "step",
        f"memory       {format_bytes(memory.total)}: "
        f"{', '.join(f'{name} {format_bytes(held[name])}' for name in held)}",
    ]  # fmt: skip
    return "\n".join([f"cost of {bill.batch} x {bill.context} tokens", *indent(lines)])


def format_shares(parts: dict[str, float]) -> str:
    whole = sum(parts.values())
    return ", ".join(f"{name} {100 * part / whole:.0f}%" for name, part in parts.items())


def indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def format_count(number: float) -> str:
    """Three significant figures with a prefix: 1.23 M, 4.56 G."""
    for sign in ("", "k", "M", "G", "T", "P", "E"):
        if number < 1000:
            return f"{number:.3g} {sign}"
        number /= 1000
    return f"{number:.3g} Z"
