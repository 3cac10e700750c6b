"""Sparse attention, computed only for the query-key pairs that the mask allows.

A graph of 2,708 nodes has 7.3 million pairs, of which 13,264 are edges or self-loops. Exact, for every mask; it pays
if few pairs are allowed. On a CPU a training step on such a graph, eight heads of eight with attention dropout, takes a
hundredth of the time of the formula.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.cost import KERNEL_COSTS, KernelCost
from regard.config.errors import ConfigError
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel, repeat_kv
from regard.core.masks import Mask
from regard.core.tokens import TokenIndex

WORTH = 256  # nodes from which a table of their pairs is slow
FEW = 0.05  # fraction of all pairs


@dataclass(frozen=True)
class Edges(Mask, name="edges"):
    """Graph edges, and with `loops` each node itself."""

    loops: int = 1
    reads = ("edges", "order")

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:  #: S026
        if q.places.edges is None:
            raise ConfigError("the mask reads 'edges', and these tokens carry none; give edges= to the front end")
        joined = q.places.edges[q.b, q.i, k.i]
        return joined | (q.i == k.i) if self.loops else joined & (q.i != k.i)


def unsupported_reason(spec: AttentionSpec) -> str:
    there = type(spec.q.order) is Tensor and not torch.compiler.is_compiling()  # cost estimates have shapes only
    return "" if there else "reads which pairs there are, which neither compiled code nor an estimate can"


def preferred_reason(spec: AttentionSpec) -> str:
    """Preferred on a CPU for a large graph with few edges, where counting them is cheap."""
    graph = any(isinstance(leaf, Edges) for leaf in spec.mask.leaves) and spec.q.edges is not None
    if not graph or spec.device != "cpu" or spec.q.count < WORTH or unsupported_reason(spec):
        return ""
    assert spec.q.edges is not None
    few = float(spec.q.edges.count_nonzero()) < FEW * spec.q.edges.numel()
    return "few pairs are joined" if few else ""


KERNEL_COSTS["sparse"] = KernelCost(growth=("e·d", 2.0))


@register_kernel(
    "sparse",
    unsupported_reason=unsupported_reason,
    preferred_reason=preferred_reason,
    needs_mask_table=lambda spec: True,
)
def sparse_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """Sparse attention, a softmax over the allowed pairs (b, i, j) of each query i: intermediate tensors are E x H."""
    table = plan.table(q, args.bias)
    table = q.new_ones(1, 1, 1, 1, dtype=torch.bool) if table is None else table
    table = table.expand(q.shape[0], -1, q.shape[2], k.shape[2])
    free = table[:, 0] if table.dtype == torch.bool else table[:, 0] > float("-inf")
    b, i, j = free.nonzero(as_tuple=True)
    k, v, row = repeat_kv(k, q), repeat_kv(v, q), b * q.shape[2] + i
    s = (q[b, :, i] * k[b, :, j]).sum(-1) * args.scale  # (E, H)
    if table.dtype != torch.bool:
        s = s + table.expand(-1, q.shape[1], -1, -1)[b, :, i, j]
    weights = F.dropout(segment_softmax(s, row, free.shape[0] * q.shape[2]), args.dropout)
    result = v.new_zeros(free.shape[0] * q.shape[2], *v.shape[1::2])  # (B·Q, H, e)
    result = result.index_add(0, row, weights[..., None] * v[b, :, j])
    heads_first: Tensor = result.unflatten(0, (-1, q.shape[2])).transpose(1, 2)
    return heads_first


def segment_softmax(s: Tensor, row: Tensor, count: int) -> Tensor:  # (E, H), (E,) -> (E, H)
    """Softmax over all pairs of one row, which is empty where a query has no key."""
    where = row[:, None].expand(s.shape)
    top = s.new_full((count, s.shape[1]), float("-inf")).scatter_reduce(0, where, s.detach(), "amax")
    e = (s - top[row]).exp()
    return e / e.new_zeros(count, s.shape[1]).index_add(0, row, e)[row]
