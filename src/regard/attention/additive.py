"""Additive attention: a small network scores each query-key pair (Bahdanau et al. 2015).

    score  =  w' tanh(W_q q + W_k k)

The weights are shared by all heads of a layer, and w is unconstrained: there is no scale. It costs queries x keys x
hidden, computed a few queries at a time, so that memory grows linearly with the length and time quadratically.

`hard_lookup` and `soft_lookup` show attention as a dictionary lookup: a key is matched, a value is read;
`soft_lookup` is the same as `kernels.reference` for each query. Letters there: q, k are the widths of a query and of a
key, e that of a value, h a hidden one.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from regard import config
from regard.attention.cost import KERNEL_COSTS, AttentionField, KernelCost
from regard.attention.pairwise import apply_pair_bias, batch_head_index, by_query_rows, kernel_numbers
from regard.config.errors import ConfigError
from regard.core.kernels import AttentionArgs, Plan, attention_weights, mask_table, register_kernel, repeat_kv
from regard.core.layers import Attention


class AdditiveScore(nn.Module):
    """W_q, W_k and w."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.q, self.k = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w = nn.Linear(hidden, 1, bias=False)


def additive_weights(attention: Attention, trunk: config.Trunk, given: tuple[int, ...]) -> AdditiveScore:
    (hidden,) = kernel_numbers("additive", given, attention.head_dim)
    if any(c is not None and c.scale is not None for c in (trunk.attention, trunk.cross_attention)):
        raise ConfigError("attention.scale: the score of kernel 'additive' has none; leave it out")
    return AdditiveScore(attention.head_dim, hidden)


def additive_flops(a: Attention, field: AttentionField) -> int:
    """FLOPs: queries and keys are projected, and each pair is scored by one vector."""
    assert isinstance(a.own, AdditiveScore)
    hidden = a.own.w.in_features
    mapped, met = a.head_dim * hidden * (field.queries + field.keys), hidden + a.value_head_dim
    return 2 * a.heads * (mapped + field.queries * field.keys * met)


KERNEL_COSTS["additive"] = KernelCost(flops=additive_flops)


@register_kernel("additive", exact=False, weights=additive_weights)
def additive(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    own: AdditiveScore = args.weights
    maps = [weight.to(q.dtype) for weight in (own.q.weight, own.k.weight, own.w.weight[0])]
    k, v, heads = repeat_kv(k, q), repeat_kv(v, q), batch_head_index(q)[1].flatten()

    def attend_rows(q: Tensor, rows: Tensor) -> Tensor:
        s = apply_pair_bias(additive_score(q, k, *maps), mask_table(plan.spec, heads, rows, args.bias, q.dtype))
        return dropout(attention_weights(s), args.dropout) @ v

    return by_query_rows(q, k.shape[2], len(maps[2]), attend_rows)


def hard_lookup(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # (…, k), (K, k), (K, e) -> (…, e)
    """The value of the best key. Queries and keys get no gradient: argmax is piecewise constant."""
    return values[(query @ keys.mT).argmax(-1)]


def soft_lookup(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The weighted mean of all values, (…, e), and its weights, (…, K): softmax(q·k/temperature).

    At low temperature it approaches a hard lookup: with `gap` between the best and the second score it differs from
    `hard_lookup` by at most 2(K-1) exp(-gap/temperature) max|v|.
    """
    if temperature <= 0:
        raise ConfigError(f"temperature {temperature} is not above 0; the limit at 0 is hard_lookup")
    weights = (query @ keys.mT / temperature).softmax(-1)  #: S013
    return weights @ values, weights


def additive_score(q: Tensor, k: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """Additive scores w_v' tanh(W_q q + W_k k) for queries and keys of different widths (Bahdanau et al. 2015).

    (…, Q, q), (…, K, k), (h, q), (h, k), (h,) -> (…, Q, K); needs a temporary tensor of Q x K x h.
    """
    hidden = (q @ w_q.mT)[..., :, None, :] + (k @ w_k.mT)[..., None, :, :]
    return torch.tanh(hidden) @ w_v  #: S009
