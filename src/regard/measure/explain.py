"""A model explained: its parts as a table, which kernel attends and why, and what it all costs."""

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from regard import config
from regard.core.kernels import Plan
from regard.core.layers import Attention, Block
from regard.core.masks import Mask
from regard.core.model import Transformer, Trunk
from regard.core.positions import Place
from regard.core.tokens import Places
from regard.measure.cost import Estimate, estimate, longest
from regard.measure.ghost import Ghost, ghost, outline

Row = tuple[str, str, int]  # a part, its shape in words, its parameters


def explain(
    model: Transformer | config.Transformer, context: int | None = None, *, batch: int = 1,
    optimizer: config.AdamW | config.Muon | None = None, device: str = "cpu",
) -> str:  # fmt: skip
    """The model as a table, the plans with their reasons, the cost of a step: what `regard explain` prints."""
    shape = outline(model)
    context = context or longest(shape.c)
    bill = estimate(shape.c, batch=batch, context=context, optimizer=optimizer)
    chosen = [f"{where:<16}  {plan}" for where, plan in plans(shape.c, context, batch=batch, device=device)]
    return "\n\n".join([table(rows(shape)), "\n".join(["plans", *indented(chosen)]), cost(bill)])


# ---------------------------------------------------------------- the parts


def rows(model: Transformer) -> Iterator[Row]:
    yield "embed", f"{model.c.embed.vocab:,} x {model.embed.tokens.weight.shape[-1]}", count(model.embed)
    for name, trunk, embed in (("encoder", model.encoder, model.encoder_embed), ("trunk", model.trunk, None)):
        if embed is not None:
            yield f"{name}_embed", f"{embed.c.vocab:,} x {embed.tokens.weight.shape[-1]}", count(embed)
        if trunk is not None:
            yield from trunk_rows(name, trunk)
    tied = getattr(model.c.head, "tied", False)
    yield "head", head(model), count(model.head) - (count(model.embed.tokens) if tied else 0)


def trunk_rows(name: str, trunk: Trunk) -> Iterator[Row]:
    yield f"{name}.position", trunk.c.position.kind, count(trunk.positions)
    if trunk.embed_norm is not None:
        yield f"{name}.embed_norm", norm(trunk.c), count(trunk.embed_norm)
    if trunk.project is not None:
        yield f"{name}.project", f"{trunk.project.in_features} -> {trunk.c.dim}", count(trunk.project)
    for where, blocks in runs(trunk):
        block, times = blocks[0], len(blocks)
        attend = [("attn", block.attn), *([("cross", block.cross)] if block.cross is not None else [])]
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
        if end == len(blocks) or blocks[end].attn.heads != blocks[start].attn.heads:
            yield (f"{start}-{end - 1}" if end - start > 1 else str(start)), blocks[start:end]
            start = end


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
    c = model.c.head
    if isinstance(c, config.Vocabulary):
        return f"{model.c.trunk.dim} -> {model.c.embed.vocab:,}" + (", tied to embed" if c.tied else "")
    return f"one vector from {c.place}" if isinstance(c, config.Pooled) else "none"


def table(found: Iterable[Row]) -> str:
    rows = list(found)
    written = [("part", "shape", "parameters"), *((part, shape, f"{many:,}") for part, shape, many in rows)]
    written.append(("total", "", f"{sum(many for _, _, many in rows):,}"))
    first, second, third = (max(len(row[i]) for row in written) for i in range(3))
    return "\n".join(f"{a:<{first}}  {b:<{second}}  {c:>{third}}" for a, b, c in written)


# ---------------------------------------------------------------- the plans


def plans(c: config.Transformer, context: int, *, batch: int = 1, device: str = "cpu") -> list[tuple[str, str]]:
    """Which kernel a training step would choose for each distinct mask, and why; found without making the model."""
    made, found = ghost(c, device), []
    with made.mode:
        for name, trunk in (("encoder", made.model.encoder), ("trunk", made.model.trunk)):
            if trunk is None:
                continue
            x, tokens = made.empty(batch, context, c.trunk.dim), places(made, batch, context)
            for i, masks in enumerate(trunk.masks):
                layers = range(i, trunk.c.depth, len(trunk.masks))
                found.append((f"{name}.{spelt(layers, trunk.c.depth)}", str(planned(trunk, x, masks, tokens))))
            if trunk.c.cross != "none":
                found.append((f"{name}.*.cross", str(planned(trunk, x, trunk.across, tokens, across=True))))
    return found


def planned(
    trunk: Trunk, x: Tensor, masks: dict[tuple[bool, bool], Mask], tokens: Places, across: bool = False
) -> Plan:
    place: Place = Place() if across else trunk.position.prepare(tokens, tokens)
    return trunk.plan(x, masks, tokens, tokens, place)


def places(made: Ghost, batch: int, context: int) -> Places:
    tokens: Places = made.model.embed(made.ids(batch, context))
    return tokens


def spelt(layers: range, depth: int) -> str:
    return "*" if len(layers) == depth else ",".join(map(str, layers[:4])) + ("..." if len(layers) > 4 else "")


# ---------------------------------------------------------------- the cost


def cost(bill: Estimate) -> str:
    """A line for each thing that is paid."""
    memory = bill.memory
    held = {name: getattr(memory, name) for name in ("weights", "gradients", "optimizer", "activations")}
    lines = [
        f"forward      {big(bill.flops.forward)}FLOP a token; {shares(bill.flops.parts)}",
        f"training     {big(bill.flops.training)}FLOP a token, {big(bill.step_flops)}FLOP a step",
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
