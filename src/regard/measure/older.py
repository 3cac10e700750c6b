"""What the older layers cost: each reader's matrix products, and a recurrent stack's rows in a table of its parts."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.recurrent.connect import Connect
from regard.recurrent.mixers import Mixing
from regard.recurrent.sources import Additive
from regard.recurrent.space import Space
from regard.recurrent.stack import Recurrent


def products(part: nn.Module) -> int:
    """Operations for one token: every matrix multiplies it once."""
    return sum(2 * weight.numel() for weight in part.parameters() if weight.dim() > 1)


def mixed(mixer: nn.Module, tokens: int) -> int:
    """Operations of what stands in attention's place, for one sequence."""
    reader = mixer.reader if isinstance(mixer, Mixing) else mixer
    if isinstance(reader, Connect):
        return int(2 * reader.weight.shape[-1] ** 2 * tokens * tokens)
    if isinstance(reader, Space):  # a complex multiplication and addition for each state, and the map
        return (8 * len(reader.ways) * reader.dim * reader.pairs + products(reader.out)) * tokens
    return products(reader) * tokens


def stack_flops(stack: Recurrent, tokens: int, memory: int) -> Counter[str]:
    """Every weight multiplies every token once; an alignment scores all of the source at every step."""
    found = Counter({"embedding": 0 if stack.project is None else products(stack.project) * tokens})
    for block in stack.blocks:
        if isinstance(block, Additive):
            found["recurrent"] += (products(block.cell) + products(block.out)) * tokens
            found["cross-attention"] += products(block.ask) * tokens + products(block.offer) * memory
            found["cross-attention"] += 4 * stack.c.dim * tokens * memory + products(block.begin)
        else:
            found["recurrent"] += mixed(block, tokens)
    found["cross-attention"] += 0 if stack.fixed is None else products(stack.fixed)  # once for a source
    return found


def stack_rows(name: str, stack: Recurrent) -> Iterator[tuple[str, str, int]]:
    """A part, its shape in words, its parameters."""

    def count(part: Any) -> int:
        return sum(weight.numel() for weight in part.parameters())

    c, ways = stack.c, " both ways" if stack.c.mask == "everything" else ""
    if stack.project is not None:
        yield f"{name}.project", f"{stack.incoming} -> {c.dim}", count(stack.project)
    if stack.fixed is not None:
        yield f"{name}.fixed", "one vector for a whole source", count(stack.fixed)
    for i, block in enumerate(stack.blocks):
        seen = f", {c.size} places {c.dilation**i} apart" if c.cell == "cnn" else ""
        looks = ", looking at the source before each step" if isinstance(block, Additive) else ""
        yield f"{name}.{i}", f"{c.cell}, {c.dim} wide{ways}{seen}{looks}", count(block)
    if stack.final_norm is not None:
        yield f"{name}.final_norm", c.norm.kind, count(stack.final_norm)
