"""Attention layers and models on one kernel, as a config would say it."""

import torch
from core.builders import DIM, H, model
from core.builders import trunk as small
from torch import Tensor

from regard import config as C
from regard.core.kernels import AttentionArgs, make_plan
from regard.core.layers import Attention


def layer(kernel: str, dim: int = DIM, heads: int = H, position: C.Position | None = None, **said: object) -> Attention:
    """An attention layer of its own."""
    torch.manual_seed(0)
    c = C.Attention(heads=heads, kernel=kernel, **said)
    return Attention(c, small(dim=dim, attention=c, position=position or C.NoPosition()), 0)


def through(kernel: str, q: Tensor, k: Tensor, v: Tensor, ask, own=None, scale: float = 1.0, past=None) -> Tensor:
    """One call of a kernel with what it owns."""
    return make_plan(kernel, ask).run(q, k, v, AttentionArgs(scale, weights=own, cache_entry=past))


def decoder(kernel: str, mask: str = "causal", **said: object):
    attention = C.Attention(heads=H, kernel=kernel, **said.pop("attention", {}))
    return model(mask=mask, attention=attention, **said)
