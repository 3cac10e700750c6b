"""A model explained: its parts as a table, which kernel attends and why, and what it all costs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from regard import config
from regard.core.kernels import Plan
from regard.core.layers import Attention, Block
from regard.core.model import Transformer, Trunk
from regard.heads import Towers
from regard.inputs.chunks import Chunks
from regard.inputs.mixed import Mixed
from regard.inputs.stages import Stages
from regard.measure.activations import shortened
from regard.measure.cost import Estimate, estimate
from regard.measure.fronts import words
from regard.measure.ghost import Config, Model, ghost, outline
from regard.measure.lengths import longest
from regard.measure.older import stack_rows
from regard.recurrent.stack import Recurrent

Row = tuple[str, str, int]  # a part, its shape in words, its parameters


def explain(
    model: Model | Config, context: int | None = None, *, batch: int = 1,
    optimizer: config.Optimizer | None = None, device: str = "cpu",
) -> str:  # fmt: skip
    """The model as a table, the plans with their reasons, the cost of a step: what `regard explain` prints."""
    shape = outline(model)
    context = context or longest(shape.c)
    bill = estimate(shape.c, batch=batch, context=context, optimizer=optimizer)
    found = plans(shape.c, context, batch=batch, device=device)
    wide = max((len(where) for where, _ in found), default=0)
    chosen = [f"{where:<{wide}}  {plan}" for where, plan in found] or ["nobody attends"]
    return "\n\n".join([table(rows(shape)), "\n".join(["plans", *indented(chosen)]), cost(bill)])


# ---------------------------------------------------------------- the parts


def rows(model: Model) -> Iterator[Row]:
    if isinstance(model, Towers):
        for i, tower in enumerate(model.towers):
            yield from ((f"towers.{i}.{part}", shape, many) for part, shape, many in rows(tower))
        yield "scale", "between the towers", model.scale.numel()
        return
    yield from front_rows("embed", model.embed)
    if model.encoder_embed is not None:
        yield from front_rows("encoder_embed", model.encoder_embed)
    for name, trunk in (("encoder", model.encoder), ("trunk", model.trunk)):
        if trunk is not None:
            yield from trunk_rows(name, trunk)
    mine = {id(weight) for weight in model.embed.parameters()}  # a tied table is the embedding's
    yield "head", head(model), sum(weight.numel() for weight in model.head.parameters() if id(weight) not in mine)


def front_rows(name: str, front: Any) -> Iterator[Row]:
    """A front end in a row, and each part that is a model of its own in others."""
    if isinstance(front, Stages):
        yield from front_rows(name, front.patches)
        for i, trunk in enumerate(front.trunks):
            yield from trunk_rows(f"{name}.{i}", trunk)
            merge: Any = front.merges[i]
            yield f"{name}.{i}.merge", f"4 x {trunk.c.dim} -> {merge.map.out_features}", count(merge)
    elif isinstance(front, Mixed):
        yield from front_rows(f"{name}.seen", front.seen)
        yield from front_rows(f"{name}.text", front.text)
        yield f"{name}.kinds", "what is seen, and the text", count(front.kinds)
    elif isinstance(front, Chunks):
        yield from front_rows(f"{name}.text", front.text)
        yield from trunk_rows(f"{name}.trunk", front.trunk)
        yield f"{name}.map", f"chunks of {front.c.size} tokens -> {front.map.out_features}", count(front.map)
    else:
        yield name, words(front), count(front)


def trunk_rows(name: str, trunk: Trunk | Recurrent) -> Iterator[Row]:
    if isinstance(trunk, Recurrent):
        yield from stack_rows(name, trunk)
        return
    yield f"{name}.position", trunk.c.position.kind, count(trunk.positions)
    if trunk.embed_norm is not None:
        yield f"{name}.embed_norm", norm(trunk.c), count(trunk.embed_norm)
    if trunk.project is not None:
        yield f"{name}.project", f"{trunk.project.in_features} -> {trunk.c.dim}", count(trunk.project)
    for where, blocks in runs(trunk):
        block, times = blocks[0], len(blocks)
        attend = [("attn", block.attn), *([("cross", block.cross)] if block.cross is not None else [])]
        if not isinstance(block.attn, Attention):
            yield f"{name}.{where}.attn", trunk.c.mixer.kind, times * count(attend.pop(0)[1])
        for part, layer in attend:
            yield f"{name}.{where}.{part}", heads(layer), times * (count(layer) - count(layer.q_norm, layer.k_norm))
        yield f"{name}.{where}.mlp", thinking(trunk.c), times * count(block.mlp)
        norms = [block.attn_norm, block.cross_norm, block.mlp_norm]
        norms += [each for _, layer in attend for each in (layer.q_norm, layer.k_norm)]
        yield f"{name}.{where}.norms", norm(trunk.c), times * count(*norms)
    if trunk.final_norm is not None:
        yield f"{name}.final_norm", norm(trunk.c), count(trunk.final_norm)


def runs(trunk: Trunk) -> Iterator[tuple[str, list[Block]]]:
    """Neighbouring blocks of one shape, under one name such as "0-3"; shared layers are one block."""
    blocks: list[Block] = list(trunk.blocks)  # type: ignore[arg-type]
    if trunk.c.shared:
        yield f"0-{trunk.c.depth - 1} (shared)", blocks
        return
    start = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or shape_of(blocks[end]) != shape_of(blocks[start]):
            yield (f"{start}-{end - 1}" if end - start > 1 else str(start)), blocks[start:end]
            start = end


def shape_of(block: Block) -> list[tuple[int, int]]:
    return [(each.heads, each.groups) for each in (block.attn, block.cross) if isinstance(each, Attention)]


def count(*modules: nn.Module | None) -> int:
    return sum(weight.numel() for module in modules if module is not None for weight in module.parameters())


def heads(attention: Attention) -> str:
    shared = f", {attention.groups} of keys and values" if attention.groups != attention.heads else ""
    return f"{attention.heads} heads of {attention.width}{shared}"


def thinking(c: config.Trunk) -> str:
    return f"{c.dim} -> {c.mlp.hidden or 4 * c.dim} -> {c.dim}, {'gated ' if c.mlp.gated else ''}{c.mlp.activation}"


def norm(c: config.Trunk) -> str:
    return f"{c.norm.kind}, {c.place}" + ("" if c.norm.gain else ", no gain")


def head(model: Transformer) -> str:
    return asked(model.c.head, model)


def asked(c: config.Head, model: Transformer) -> str:
    if isinstance(c, config.Both):
        return f"{asked(c.vocabulary, model)}; {asked(c.pooled, model)}"
    if isinstance(c, config.Vocabulary):
        return f"{model.c.trunk.dim} -> {c.size or model.c.embed.vocab:,}" + (", tied to embed" if c.tied else "")
    if isinstance(c, config.Pooled):
        return f"one vector from {c.place}" + (f", {model.c.trunk.dim} -> {c.out:,}" if c.out else "")
    if isinstance(c, config.Each):
        return f"every vector, {model.c.trunk.dim} -> {c.out:,}"
    if isinstance(c, config.Horizon):
        return f"all tokens of a channel, -> {c.horizon} rows" + (", and a line" if c.line else "")
    return "none"


def table(found: Iterable[Row]) -> str:
    rows = list(found)
    written = [("part", "shape", "parameters"), *((part, shape, f"{many:,}") for part, shape, many in rows)]
    written.append(("total", "", f"{sum(many for _, _, many in rows):,}"))
    first, second, third = (max(len(row[i]) for row in written) for i in range(3))
    return "\n".join(f"{a:<{first}}  {b:<{second}}  {c:>{third}}" for a, b, c in written)


# ---------------------------------------------------------------- the plans


def plans(c: Config, context: int, *, batch: int = 1, device: str = "cpu") -> list[tuple[str, str]]:
    """Which kernel a training step would choose for each distinct mask, and why: asked of a ghost that runs."""
    made, found, depths = ghost(shortened(c), device), list[tuple[str, str]](), depths_of(outline(c))
    for name, module in made.model.named_modules():
        if isinstance(module, Trunk):
            module.plan = noted(module, name.replace("trunks.", ""), depths[name], found)  # type: ignore[method-assign]
    with made.mode:
        made.run(batch, context)
    return found


def depths_of(shape: Model) -> dict[str, int]:
    return {name: module.c.depth for name, module in shape.named_modules() if isinstance(module, Trunk)}


def noted(trunk: Trunk, name: str, depth: int, found: list[tuple[str, str]]) -> Callable[..., Plan]:
    """The trunk's own choice, written down: it is asked for each mask in turn, then for cross-attention."""
    ask, masks = trunk.plan, iter(range(len(trunk.masks)))

    def plan(*given: Any) -> Plan:
        chosen, i = ask(*given), next(masks, None)
        layers = "*.cross" if i is None else spelt(range(i, depth, len(trunk.masks)), depth)
        found.append((f"{name}.{layers}", str(chosen)))
        return chosen

    return plan


def spelt(layers: range, depth: int) -> str:
    return "*" if len(layers) == depth else ",".join(map(str, layers[:4])) + ("..." if len(layers) > 4 else "")


# ---------------------------------------------------------------- the cost


def cost(bill: Estimate) -> str:
    """A line for each thing that is paid."""
    memory = bill.memory
    held = {name: getattr(memory, name) for name in ("weights", "gradients", "optimizer", "activations")}
    lines = [
        f"forward      {big(bill.flops.forward)}FLOP a {bill.unit}; {shares(bill.flops.parts)}",
        f"training     {big(bill.flops.training)}FLOP a {bill.unit}, {big(bill.step_flops)}FLOP a step",
        f"memory       {size(memory.total)}: {', '.join(f'{name} {size(held[name])}' for name in held)}",
    ]
    return "\n".join([f"cost of {bill.batch} x {bill.context} tokens", *indented(lines)])


def shares(parts: dict[str, float]) -> str:
    whole = sum(parts.values())
    return ", ".join(f"{name} {100 * part / whole:.0f}%" for name, part in parts.items())


def indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def big(number: float) -> str:
    """1.23 M, 4.56 G: three figures and a letter."""
    for sign in ("", "k", "M", "G", "T", "P", "E"):
        if number < 1000:
            return f"{number:.3g} {sign}"
        number /= 1000
    return f"{number:.3g} Z"


def size(number: float) -> str:
    """Bytes for people, in powers of 1,024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} TiB"
