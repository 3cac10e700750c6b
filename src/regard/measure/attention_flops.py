"""What looking costs: the products between the maps of attention, as the kernel that looks makes them.

    dense       every query meets every key          n²·(d + e)
    local       chunks meet their neighbours         n·w·(d + e), and landmarks with all
    linear      a state goes from chunk to chunk     n·d·e, and the squares of the chunks
    performer   the same for m features              n·m·(d + e)
    linformer   every query meets k mixed keys       n·k·(d + e)
    lsh         chunks of buckets, in rounds         n·w·(d + e), and the hash

Each product of (m, k) and (k, n) counts 2·m·k·n. Kernels that are not named here meet every pair: those that skip what
a mask forbids (flex, sparse) do less of it, and which pairs a graph has is not known before it is read.
Letters: n tokens, d and e the widths of keys and values, w places in a chunk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from regard import config
from regard.config.names import called
from regard.core.layers import Attention
from regard.core.masks import CAUSAL, Cells, Mask, mask
from regard.efficient import local, lsh, scan
from regard.efficient.additive import Score
from regard.efficient.linformer import Mix
from regard.efficient.lsh import Turns
from regard.efficient.performer import Directions

Grid = tuple[int, int] | None  # rows and columns, for tokens that fill an image
BIASES = ("alibi", "buckets", "shaw", "relative", "spatial", "near")  # positions that add to scores


@dataclass(frozen=True)
class Field:
    """How many look at how many, what of it the mask allows, and whether something is added to the scores."""

    queries: int
    keys: int
    mask: Mask
    biased: bool = False
    grid: Grid = None


def field(c: config.Trunk, layer: int, tokens: int, grid: Grid = None) -> Field:
    """What one layer of a trunk has before it."""
    return Field(tokens, tokens, mask(c.masks[layer % len(c.masks)]), c.position.kind in BIASES, grid)


def looking(attention: Attention, seen: Field, kernel: str) -> int:
    """Operations of one layer for one sequence; "auto" is what a CPU would choose."""
    name, _ = called(kernel)
    if name in COSTS:
        return COSTS[name](attention, seen)
    return 2 * attention.heads * pairs(seen, kernel) * both(attention)


def both(attention: Attention) -> int:
    """The widths of a key and of a value."""
    return attention.width + attention.value_width


def pairs(seen: Field, kernel: str) -> int:
    """The pairs of query and key that a head is charged for: all, or those of the chunks or cells it runs in."""
    name, _ = called(kernel)
    if isinstance(seen.mask, Cells) and seen.grid is not None and name in ("auto", "cells"):
        return cells(seen.mask, seen.grid)
    found = local.pairs(seen.mask, seen.queries) if name == "local" or name == "auto" and chunked(seen) else None
    return seen.queries * seen.keys if found is None else found


def chunked(seen: Field) -> bool:
    """Whether a CPU would choose chunks: the window is short, and nothing is added to the scores."""
    found = local.band(seen.mask)
    if not found.sparse or seen.biased or seen.queries != seen.keys:
        return False
    step, _, size = local.sizes(found, seen.queries)
    return seen.queries >= 4 * (step * size + found.landmarks)


def cells(seen: Cells, grid: tuple[int, int]) -> int:
    """Windows of size x size places, those included that hang over the edge: each place looks at its window."""
    before = -seen.shift % seen.size
    windows = [-(-(side + before) // seen.size) for side in grid]
    return int(windows[0] * windows[1] * seen.size**4)


# ---------------------------------------------------------------- kernels that meet no square


def summed(a: Attention, seen: Field, features: int) -> int:
    """Sums of k v' that q then reads; where the mask is causal, chunk by chunk. A column counts the weights."""
    columns = a.value_width + scan.SIDES["cpu"]
    if CAUSAL not in seen.mask.leaves:
        return 2 * features * columns * (a.groups * seen.keys + a.heads * seen.queries)
    size = min(seen.queries, max(scan.SIZE, features))
    places = -(-seen.queries // size) * size
    return 2 * a.heads * places * (size * (features + columns) + 2 * features * columns)


def linear(a: Attention, seen: Field) -> int:
    return summed(a, seen, a.width)


def performer(a: Attention, seen: Field) -> int:
    assert isinstance(a.own, Directions)
    directions = 2 * a.own.w.numel() * (a.heads * seen.queries + a.groups * seen.keys)
    return directions + summed(a, seen, 2 * len(a.own.w))


def linformer(a: Attention, seen: Field) -> int:
    assert isinstance(a.own, Mix)
    return 2 * len(a.own.k) * both(a) * (a.groups * seen.keys + a.heads * seen.queries)


def hashed(a: Attention, seen: Field) -> int:
    """Every bucket has whole chunks of its own; each chunk meets itself and the one before it."""
    assert isinstance(a.own, Turns)
    size, sides = a.own.size, lsh.sides(seen.queries, a.own.size)
    slots = (-(-seen.queries // size) + math.prod(sides)) * size
    nearest = 2 * seen.queries * a.width * sum(many // 2 for many in sides)
    return len(a.own.w) * a.heads * (nearest + 2 * slots * 2 * size * both(a))


def additive(a: Attention, seen: Field) -> int:
    """Queries and keys are mapped, and each pair is asked by one vector."""
    assert isinstance(a.own, Score)
    hidden = a.own.w.in_features
    mapped, met = a.width * hidden * (seen.queries + seen.keys), hidden + a.value_width
    return 2 * a.heads * (mapped + seen.queries * seen.keys * met)


COSTS: dict[str, Callable[[Attention, Field], int]] = {
    "linear": linear, "performer": performer, "linformer": linformer, "lsh": hashed, "additive": additive,
}  # fmt: skip
