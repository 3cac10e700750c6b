"""Linformer: keys and values of n places mixed down to k of them, so that queries meet k and not n.

    softmax(Q (E K)'·scale) (F V)          E, F (k, n) are learned: one pair a layer, for all its heads

Time and memory grow as n·k (Wang et al. 2020). The mixing has a weight for each place, so the length is fixed when the
model is made; and since each mixed key holds something of every place, it can be neither causal nor cached. What is
padding is nothing before it is mixed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.kernels import Ask, How, Plan, kernel, shared
from regard.core.layers import Attention
from regard.core.masks import EVERYTHING, PADDING
from regard.efficient.pairs import numbers

MIXED = 256


class Mix(nn.Module):
    """E and F; fresh ones give every mixed key as much of unit keys as one key is."""

    def __init__(self, mixed: int, length: int) -> None:
        super().__init__()
        self.k, self.v = (nn.Parameter(torch.empty(mixed, length)) for _ in range(2))
        for table in self.parameters():
            nn.init.normal_(table, std=length**-0.5)


def weights(attention: Attention, trunk: config.Trunk, given: tuple[int, ...]) -> Mix:
    known = getattr(trunk.position, "length", 0) if trunk.position.kind in ("learned", "onehot") else 0
    mixed, length = numbers("linformer", given, MIXED, known if isinstance(known, int) else 0)
    if not length:
        raise ValueError(f"attention.kernel 'linformer' fixes the length of its input; write linformer({mixed}, 1024)")
    return Mix(mixed, length)


def refuses(ask: Ask) -> str:
    if ask.mask not in (EVERYTHING, PADDING):
        return f"mixes all places into each key: the mask must be everything, not {ask.mask}"
    if ask.q is not ask.k:
        return "fixes the length of its input: it looks around, not across, and keeps no cache"
    return "mixes keys of all places: a bias for each has no place in it; choose another position" if ask.bias else ""


def entry(attention: Attention, batch: int, capacity: int, like: Tensor) -> None:
    raise ValueError("attention.kernel 'linformer' keeps no cache: each of its keys holds something of every place")


@kernel("linformer", exact=False, refuses=refuses, weights=weights, entry=entry)
def linformer(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    count, length = k.shape[2], how.own.k.shape[1]
    if count != length:
        raise ValueError(f"attention.kernel 'linformer' was made for {length} tokens, got {count}; pad or cut to that")
    if plan.ask.k.real is not None:
        k, v = (x.masked_fill(~plan.ask.k.real[:, None, :, None], 0.0) for x in (k, v))
    k, v = how.own.k.to(k.dtype) @ k, how.own.v.to(v.dtype) @ v  # (B, G, mixed, d)  #: S117
    k, v = shared(k, q), shared(v, q)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=how.dropout, scale=how.scale)
