"""FLOPs of attention by kernel: the products between the projections, as each kernel makes them.

    dense       every query meets every key          n²·(d + e)
    local       chunks meet their neighbours         n·w·(d + e), and global tokens with all
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
from regard.attention import causal_scan, local, lsh
from regard.attention.additive import AdditiveScore
from regard.attention.linformer import LengthProjection
from regard.attention.lsh import LSHRotations
from regard.attention.performer import RandomFeatures
from regard.config.errors import parse_call
from regard.core.layers import Attention
from regard.core.masks import CAUSAL, Mask, Window2d, mask

GridShape = tuple[int, int] | None  # rows and columns, for tokens that fill an image
BIASED_POSITIONS = ("alibi", "buckets", "shaw", "relative", "spatial", "near")  # positions that add to scores


@dataclass(frozen=True)
class AttentionField:
    """How many look at how many, what of it the mask allows, and whether something is added to the scores."""

    queries: int
    keys: int
    mask: Mask
    biased: bool = False
    grid: GridShape = None


def attention_field(c: config.Trunk, layer: int, tokens: int, grid: GridShape = None) -> AttentionField:
    """What one layer of a trunk has before it."""
    return AttentionField(
        tokens, tokens, mask(c.masks[layer % len(c.masks)]), c.position.kind in BIASED_POSITIONS, grid
    )


def attention_flops(attention: Attention, seen: AttentionField, kernel: str) -> int:
    """Operations of one layer for one sequence; "auto" is what a CPU would choose."""
    name, _ = parse_call(kernel)
    if name in KERNEL_FLOPS:
        return KERNEL_FLOPS[name](attention, seen)
    return 2 * attention.heads * charged_pairs(seen, kernel) * key_value_widths(attention)


def key_value_widths(attention: Attention) -> int:
    """The widths of a key and of a value."""
    return attention.width + attention.value_width


def charged_pairs(seen: AttentionField, kernel: str) -> int:
    """The pairs of query and key that a head is charged for: all, or those of the chunks or cells it runs in."""
    name, _ = parse_call(kernel)
    if isinstance(seen.mask, Window2d) and seen.grid is not None and name in ("auto", "cells"):
        return window_pairs(seen.mask, seen.grid)
    found = (
        local.computed_pairs(seen.mask, seen.queries)
        if name == "local" or name == "auto" and uses_chunks(seen)
        else None
    )
    return seen.queries * seen.keys if found is None else found


def uses_chunks(seen: AttentionField) -> bool:
    """Whether a CPU would choose chunks: the window is short, and nothing is added to the scores."""
    found = local.band_of_mask(seen.mask)
    if not found.sparse or seen.biased or seen.queries != seen.keys:
        return False
    step, _, size = local.chunk_sizes(found, seen.queries)
    return seen.queries >= 4 * (step * size + found.landmarks)


def window_pairs(seen: Window2d, grid: tuple[int, int]) -> int:
    """Windows of size x size places, those included that hang over the edge: each place looks at its window."""
    before = -seen.shift % seen.size
    windows = [-(-(side + before) // seen.size) for side in grid]
    return int(windows[0] * windows[1] * seen.size**4)


# ---------------------------------------------------------------- kernels that meet no square


def linear_sum_flops(a: Attention, seen: AttentionField, features: int) -> int:
    """Sums of k v' that q then reads; where the mask is causal, chunk by chunk. A column counts the weights."""
    columns = a.value_width + causal_scan.HEADS_PER_SIDE["cpu"]
    if CAUSAL not in seen.mask.leaves:
        return 2 * features * columns * (a.groups * seen.keys + a.heads * seen.queries)
    size = min(seen.queries, max(causal_scan.CHUNK_SIZE, features))
    places = -(-seen.queries // size) * size
    return 2 * a.heads * places * (size * (features + columns) + 2 * features * columns)


def linear_flops_of(a: Attention, seen: AttentionField) -> int:
    return linear_sum_flops(a, seen, a.width)


def performer_flops(a: Attention, seen: AttentionField) -> int:
    assert isinstance(a.own, RandomFeatures)
    directions = 2 * a.own.w.numel() * (a.heads * seen.queries + a.groups * seen.keys)
    return directions + linear_sum_flops(a, seen, 2 * len(a.own.w))


def linformer_flops(a: Attention, seen: AttentionField) -> int:
    assert isinstance(a.own, LengthProjection)
    return 2 * len(a.own.k) * key_value_widths(a) * (a.groups * seen.keys + a.heads * seen.queries)


def lsh_flops(a: Attention, seen: AttentionField) -> int:
    """Every bucket has whole chunks of its own; each chunk meets itself and the one before it."""
    assert isinstance(a.own, LSHRotations)
    size, sides = a.own.size, lsh.bucket_factors(seen.queries, a.own.size)
    slots = (-(-seen.queries // size) + math.prod(sides)) * size
    nearest = 2 * seen.queries * a.width * sum(many // 2 for many in sides)
    return len(a.own.w) * a.heads * (nearest + 2 * slots * 2 * size * key_value_widths(a))


def additive_flops(a: Attention, seen: AttentionField) -> int:
    """Queries and keys are mapped, and each pair is asked by one vector."""
    assert isinstance(a.own, AdditiveScore)
    hidden = a.own.w.in_features
    mapped, met = a.width * hidden * (seen.queries + seen.keys), hidden + a.value_width
    return 2 * a.heads * (mapped + seen.queries * seen.keys * met)


KERNEL_FLOPS: dict[str, Callable[[Attention, AttentionField], int]] = {
    "linear": linear_flops_of,
    "performer": performer_flops,
    "linformer": linformer_flops,
    "lsh": lsh_flops,
    "additive": additive_flops,
}
