"""FLOPs of attention: the products of each kernel between the projections. A kernel's file declares its own.

    dense       every query and every key            n²·(d + e)
    local       chunks and their neighbours          n·w·(d + e), and global tokens with all
    linear      a state from chunk to chunk          n·d·e, and the squares of the chunks
    performer   the same for m features              n·m·(d + e)
    linformer   every query and k projected keys     n·k·(d + e)
    lsh         chunks of buckets, in rounds         n·w·(d + e), and the hash

Each product of (m, k) and (k, n) counts 2·m·k·n. Kernels that declare nothing are charged for every pair: those that
skip masked pairs (flex, sparse) do less, and the pairs of a graph are not known before it is read.
Letters: n tokens, d and e the widths of keys and values, w tokens in a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass

from regard.config.errors import parse_call
from regard.core.layers import Attention
from regard.core.masks import Mask

GridShape = tuple[int, int] | None  # rows and columns, for tokens that fill an image


@dataclass(frozen=True)
class AttentionField:
    """Inputs of the cost: the numbers of queries and keys, the mask, whether there is a bias, the token grid."""

    queries: int
    keys: int
    mask: Mask
    biased: bool = False
    grid: GridShape = None


@dataclass(frozen=True)
class KernelCost:
    """The cost of a kernel for one layer and one sequence.

    `pairs` is the number of query-key pairs that a head computes, if fewer than all; with `auto` only where "auto"
    would choose the kernel on a CPU. `flops` is for kernels without pairs. `growth` is how either grows with the length
    n: a formula, and its power of n.
    """

    pairs: Callable[[AttentionField, bool], int | None] | None = None
    flops: Callable[[Attention, AttentionField], int] | None = None
    growth: tuple[str, float] = ("n²·d", 2.0)


DENSE = KernelCost()
KERNEL_COSTS: dict[str, KernelCost] = {"reference": DENSE, "fused": DENSE}


def attention_flops(attention: Attention, field: AttentionField, kernel: str) -> int:
    """FLOPs of one layer for one sequence; "auto" is resolved for a CPU."""
    cost = KERNEL_COSTS.get(parse_call(kernel)[0], DENSE)
    if cost.flops is not None:
        return cost.flops(attention, field)
    return 2 * attention.heads * charged_pairs(field, kernel) * (attention.head_dim + attention.value_head_dim)


def charged_pairs(field: AttentionField, kernel: str) -> int:
    """The query-key pairs charged to a head: all, or those of its chunks or windows."""
    name, _ = parse_call(kernel)
    able = KERNEL_COSTS.values() if name == "auto" else [KERNEL_COSTS.get(name, DENSE)]
    counted = (cost.pairs(field, name == "auto") for cost in able if cost.pairs is not None)
    return next((pairs for pairs in counted if pairs is not None), field.queries * field.keys)
