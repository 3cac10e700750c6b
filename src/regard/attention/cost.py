"""FLOPs of attention: what each kernel multiplies between the projections. A kernel's file declares its own.

    dense       every query meets every key          n²·(d + e)
    local       chunks meet their neighbours         n·w·(d + e), and global tokens with all
    linear      a state goes from chunk to chunk     n·d·e, and the squares of the chunks
    performer   the same for m features              n·m·(d + e)
    linformer   every query meets k mixed keys       n·k·(d + e)
    lsh         chunks of buckets, in rounds         n·w·(d + e), and the hash

Each product of (m, k) and (k, n) counts 2·m·k·n. Kernels that declare nothing meet every pair: those that skip what a
mask forbids (flex, sparse) do less of it, and which pairs a graph has is not known before it is read.
Letters: n tokens, d and e the widths of keys and values, w places in a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass

from regard.config.errors import parse_call
from regard.core.layers import Attention
from regard.core.masks import Mask

GridShape = tuple[int, int] | None  # rows and columns, for tokens that fill an image


@dataclass(frozen=True)
class AttentionField:
    """What the cost goes by: how many queries and keys, the mask, whether scores are biased, the grid of the tokens."""

    queries: int
    keys: int
    mask: Mask
    biased: bool = False
    grid: GridShape = None


@dataclass(frozen=True)
class KernelCost:
    """The cost of a kernel for one layer and one sequence.

    `pairs` are those of query and key that a head computes, of a kernel that may leave some out; asked for with `auto`,
    only where a CPU would choose that kernel. `flops` are those of one that meets no pairs. `growth` is how both grow
    with the length n: a formula, and its power of n.
    """

    pairs: Callable[[AttentionField, bool], int | None] | None = None
    flops: Callable[[Attention, AttentionField], int] | None = None
    growth: tuple[str, float] = ("n²·d", 2.0)


DENSE = KernelCost()
KERNEL_COSTS: dict[str, KernelCost] = {"reference": DENSE, "fused": DENSE}


def attention_flops(attention: Attention, field: AttentionField, kernel: str) -> int:
    """Operations of one layer for one sequence; "auto" is what a CPU would choose."""
    cost = KERNEL_COSTS.get(parse_call(kernel)[0], DENSE)
    if cost.flops is not None:
        return cost.flops(attention, field)
    return 2 * attention.heads * charged_pairs(field, kernel) * (attention.head_dim + attention.value_head_dim)


def charged_pairs(field: AttentionField, kernel: str) -> int:
    """The pairs of query and key that a head is charged for: all, or those of the chunks or windows it runs in."""
    name, _ = parse_call(kernel)
    able = KERNEL_COSTS.values() if name == "auto" else [KERNEL_COSTS.get(name, DENSE)]
    counted = (cost.pairs(field, name == "auto") for cost in able if cost.pairs is not None)
    return next((pairs for pairs in counted if pairs is not None), field.queries * field.keys)
