"""Attention with everything else taken away: a dictionary that is asked softly.

A key is what is matched, a value what is read. `soft_lookup` is what `kernels.reference` does for each query.
Letters beside the usual: q, k are the widths of a query and of a key, e that of a value, h a hidden one.
"""

import torch
from torch import Tensor


def hard_lookup(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # (…, k), (K, k), (K, e) -> (…, e)
    """The value of the best key alone. No gradient reaches query or keys: argmax is a staircase."""
    return values[(query @ keys.mT).argmax(-1)]


def soft_lookup(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """A mix of all values, (…, e), and the weights it was mixed with, (…, K): softmax(q·k/temperature).

    The colder, the harder: with `gap` between the best and the second score it differs from `hard_lookup` by at most
    2(K-1) exp(-gap/temperature) max|v|.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} is not above 0; the limit at 0 is hard_lookup")
    weights = (query @ keys.mT / temperature).softmax(-1)  #: S013
    return weights @ values, weights


def additive_score(q: Tensor, k: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """w_v' tanh(W_q q + W_k k) for queries and keys of different widths (Bahdanau et al. 2015).

    (…, Q, q), (…, K, k), (h, q), (h, k), (h,) -> (…, Q, K); holds a tensor of Q x K x h meanwhile.
    """
    hidden = (q @ w_q.mT)[..., :, None, :] + (k @ w_k.mT)[..., None, :, :]
    return torch.tanh(hidden) @ w_v  #: S009
