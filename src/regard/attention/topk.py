"""Top-k attention: each query keeps its k best keys and drops the others (Gupta et al. 2021).

With all keys it is attention, with one it is `additive.hard_lookup`. Every score is computed, so time grows
quadratically with the length, but memory does not. The selection has no gradient, the weights of selected keys have.
"""

import torch
from torch import Tensor
from torch.nn.functional import dropout

from regard.attention.cost import DENSE, KERNEL_COSTS
from regard.attention.pairwise import batch_head_index, by_query_rows, kernel_numbers
from regard.core.kernels import (
    AttentionArgs,
    Plan,
    attention_scores,
    attention_weights,
    mask_table,
    reference,
    register_kernel,
    repeat_kv,
)

KEPT = 32


KERNEL_COSTS["topk"] = DENSE


@register_kernel("topk", exact=False)
def topk_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    (kept,) = kernel_numbers("topk", plan.numbers, KEPT)
    if kept >= k.shape[2]:
        return reference(q, k, v, plan, args)  #: S014
    heads = batch_head_index(q)[1].flatten()

    def attend_rows(q: Tensor, rows: Tensor) -> Tensor:
        s = attention_scores(q, k, args.scale, mask_table(plan.spec, heads, rows, args.bias, q.dtype))
        best = s.detach().topk(kept, sorted=False).indices
        left = s.new_zeros(s.shape, dtype=torch.bool).scatter(-1, best, True)  # a masked key stays masked
        return dropout(attention_weights(s.masked_fill(~left, float("-inf"))), args.dropout) @ repeat_kv(v, q)

    return by_query_rows(q, k.shape[2], 1, attend_rows)
