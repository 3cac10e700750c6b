"""Top-k attention: each query keeps its k best keys and forgets the others (Gupta et al. 2021).

With all keys it is attention, with one it is `lookup.hard_lookup`. Every score is computed, so time grows as the square
of the length; memory does not. The choice itself has no gradient, the weights of what is chosen have.
"""

import torch
from torch import Tensor
from torch.nn.functional import dropout

from regard.core.kernels import How, Plan, kernel, pattern, reference, scores, shared, table_of
from regard.efficient.pairs import axes, numbers
from regard.efficient.rows import by_rows

KEPT = 32


@kernel("topk", exact=False)
def topk(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    (kept,) = numbers("topk", plan.given, KEPT)
    if kept >= k.shape[2]:
        return reference(q, k, v, plan, how)  #: S014
    heads = axes(q)[1].flatten()

    def some(q: Tensor, rows: Tensor) -> Tensor:
        s = scores(q, k, how.scale, table_of(plan.ask, heads, rows, how.bias, q.dtype))
        best = s.detach().topk(kept, sorted=False).indices
        left = s.new_zeros(s.shape, dtype=torch.bool).scatter(-1, best, True)  # a forbidden key stays forbidden
        return dropout(pattern(s.masked_fill(~left, float("-inf"))), how.dropout) @ shared(v, q)

    return by_rows(q, k.shape[2], 1, some)
