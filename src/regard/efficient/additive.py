"""Additive attention: a small network says how well a query and a key agree (Bahdanau et al. 2015).

    score  =  w' tanh(W_q q + W_k k)

The weights are one layer's, for all its heads, and w is as long as it likes: there is no scale. It costs queries x keys
x hidden, made a few queries at a time, so that memory grows with the length and time with its square.
"""

from torch import Tensor, nn
from torch.nn.functional import dropout

from regard import config
from regard.core.kernels import How, Plan, kernel, pattern, shared, table_of
from regard.core.layers import Attention
from regard.efficient.lookup import additive_score
from regard.efficient.pairs import axes, judged, numbers
from regard.efficient.rows import by_rows


class Score(nn.Module):
    """W_q, W_k and w."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.q, self.k = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w = nn.Linear(hidden, 1, bias=False)


def weights(attention: Attention, trunk: config.Trunk, given: tuple[int, ...]) -> Score:
    (hidden,) = numbers("additive", given, attention.width)
    if any(c is not None and c.scale is not None for c in (trunk.attention, trunk.across)):
        raise ValueError("attention.scale: the score of kernel 'additive' has none; leave it out")
    return Score(attention.width, hidden)


@kernel("additive", exact=False, weights=weights)
def additive(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    own: Score = how.own
    maps = [weight.to(q.dtype) for weight in (own.q.weight, own.k.weight, own.w.weight[0])]
    k, v, heads = shared(k, q), shared(v, q), axes(q)[1].flatten()

    def some(q: Tensor, rows: Tensor) -> Tensor:
        s = judged(additive_score(q, k, *maps), table_of(plan.ask, heads, rows, how.bias, q.dtype))
        return dropout(pattern(s), how.dropout) @ v

    return by_rows(q, k.shape[2], len(maps[2]), some)
