"""Causal scan of linear attention in chunks, in time and memory linear in the length; and its state for generation.

    out_i  =  sum over j <= i of (q_i·k_j) v_j  =  q_i S_i        S_i = sum over j <= i of k_j v_j'

Without the softmax the product is associative: (QK')V needs an n x n matrix, Q(K'V) a d x e one. Chunks use both: the
first form within a chunk, the second for all chunks before it. S is also the only state of generation. With a 1
appended to each value the last channel sums the weights, and dividing by it normalises them.

Letters: d features of q and k, e channels of v, C chunks of S tokens.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.cost import AttentionField
from regard.attention.pairwise import refuse_unless
from regard.core.kernels import AttentionSpec, repeat_kv
from regard.core.layers import Attention
from regard.core.masks import CAUSAL, FULL, PADDING
from regard.core.tokens import TokenLayout

CHUNK_SIZE = 64  # least tokens in a chunk: with as many as features, scores and states need the same memory
LARGE = 128  # on a GPU, where larger products are more efficient
WHOLE = (FULL, PADDING)
HEADS_PER_SIDE = {"cpu": 1}  # columns of ones: tensor cores require a multiple of eight


def scan_unsupported_reason(spec: AttentionSpec) -> str:
    """Why a sum without a softmax cannot honour a spec."""
    if spec.mask not in (*WHOLE, CAUSAL, CAUSAL & PADDING):
        return f"computes full or causal sums: the mask must be full or causal, not {spec.mask}"
    if spec.mask not in WHOLE and spec.q is not spec.k and not spec.cached:
        return "needs queries and keys of the same tokens where the mask is causal"
    if spec.bias or spec.dropout:
        return "has no scores to add a bias to and no weights to drop; choose another position, no attention dropout"
    return "" if spec.mask in WHOLE else order_problem(spec.q)


def weighted_values(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, past: "LinearState | None") -> Tensor:
    """The mean of values weighted by q·k, for non-negative features q (B, H, Q, d) and k (B, G, K, d)."""
    real = (spec.k if past is None else spec.q).is_real
    if real is not None:
        k = k.masked_fill(~real[:, None, :, None], 0.0)
    ones = F.pad(v, (0, HEADS_PER_SIDE.get(v.device.type, 8)), value=1.0)  # (B, G, K, e + ones)
    if spec.mask in WHOLE:
        sums = q @ repeat_kv(k.mT @ ones, q)
    else:
        sums = causal_sum(q, repeat_kv(k, q), repeat_kv(ones, q))
        sums = sums if past is None else past.add(q, k, ones, sums)
    total = sums[..., v.shape[-1], None]
    empty = total < torch.finfo(total.dtype).tiny  # a query without keys gets zeros, and finite gradients
    return sums[..., : v.shape[-1]] / total.masked_fill(empty, 1.0)


def scan_flops(a: Attention, field: AttentionField, features: int) -> int:
    """FLOPs: sums of k v', read by q; chunk by chunk if the mask is causal. One column sums the weights."""
    columns = a.value_head_dim + HEADS_PER_SIDE["cpu"]
    if CAUSAL not in field.mask.leaves:
        return 2 * features * columns * (a.kv_heads * field.keys + a.heads * field.queries)
    size = min(field.queries, max(CHUNK_SIZE, features))
    places = -(-field.queries // size) * size
    return 2 * a.heads * places * (size * (features + columns) + 2 * features * columns)


def order_problem(places: TokenLayout) -> str:
    """Causal masks compare orders and the scan follows slots: these agree unless real tokens are out of order."""
    if places.is_plain or places.count == 1:
        return ""
    rising = places.order.diff(dim=-1) > 0
    if places.is_real is not None:
        rising = rising | ~(places.is_real[:, 1:] & places.is_real[:, :-1])
    return refuse_unless(rising.all(), "needs tokens in order, and these are not")


def causal_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal sum: sum over j <= i of (q_i·k_j) v_j, for every i."""
    count = q.shape[2]
    size = min(count, max(LARGE if q.is_cuda else CHUNK_SIZE, q.shape[3]))
    q, k, v = (F.pad(x, (0, 0, 0, -count % size)).unflatten(2, (-1, size)) for x in (q, k, v))  # (B, H, C, S, d)
    out: Tensor = CausalSum.apply(q, k, v)  # type: ignore[no-untyped-call]
    return out.flatten(2, 3)[:, :, :count]


class CausalSum(torch.autograd.Function):
    """The causal sum and its gradient, which is three such sums: two over earlier tokens, one over later ones.

    Only q, k and v are saved for backward.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        # within each chunk by scores, from all chunks before by their summed state
        return (q @ k.mT).tril() @ v + q @ sums_before(k.mT @ v)  #: S115

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        q, k, v = ctx.saved_tensors
        behind, ahead = sums_before(k.mT @ v), sums_after(q.mT @ g)
        scores, pulls = (q @ k.mT).tril(), (g @ v.mT).tril()
        return pulls @ k + g @ behind.mT, pulls.mT @ q + v @ ahead.mT, scores.mT @ g + k @ ahead


def sums_before(x: Tensor) -> Tensor:
    """The sum of all chunks before each, (…, C, d, e); in fp32, since it has many terms."""
    return F.pad(x[..., :-1, :, :], (0, 0, 0, 0, 1, 0)).to(accumulation_dtype(x)).cumsum(-3).to(x.dtype)


def sums_after(x: Tensor) -> Tensor:
    """The sum of all chunks after each."""
    return sums_before(x.flip(-3)).flip(-3)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


class LinearState:
    """State of generation, the sum of k v' over all tokens so far, of constant size. (B, G, d, e + ones)"""

    def __init__(self, batch: int, groups: int, features: int, width: int, like: Tensor) -> None:
        columns = width + HEADS_PER_SIDE.get(like.device.type, 8)
        self.sum = torch.zeros(batch, groups, features, columns, dtype=accumulation_dtype(like), device=like.device)

    def add(self, q: Tensor, k: Tensor, v: Tensor, sums: Tensor) -> Tensor:
        """Add the past to the sums of the new tokens, then add these to the state, detached."""
        sums = sums + (q.to(self.sum.dtype) @ repeat_kv(self.sum, q)).to(sums.dtype)
        self.sum += (k.mT @ v).detach()
        return sums

    def tables(self) -> list[Tensor]:
        return [self.sum]
