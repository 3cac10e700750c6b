"""Relative position bias: T5's buckets of distances, and a table r_ij for every offset, as in Swin.

Both add a trained number for each head and kind of offset to the attention scores; they differ in which offsets share
one. T5 has a bucket for each small distance and logarithmic ones beyond; r_ij is clipped on each axis.
"""

import math

import torch
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError
from regard.core.positions import POSITIONS, BiasTable, LearnedBias, PreparedPosition
from regard.core.tokens import TokenIndex, TokenLayout


class T5Bias(LearnedBias):
    """T5's bias: half the buckets for single small distances, half for large ones on a logarithmic scale."""

    def __init__(self, c: config.T5Bias, heads: int) -> None:
        super().__init__(c.num_buckets, heads)
        self.c = c

    def index(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        ahead = k.order - q.order
        half = self.c.num_buckets // 2 if self.c.bidirectional else self.c.num_buckets
        first = half * (ahead > 0) if self.c.bidirectional else torch.zeros_like(ahead)
        far = ahead.abs() if self.c.bidirectional else (-ahead).clamp(min=0)
        near = half // 2
        steps = (far.clamp(min=1).float() / near).log() / math.log(self.c.max_distance / near) * (half - near)
        return first + torch.where(far < near, far, (near + steps.long()).clamp(max=half - 1))


class RelativeBias(LearnedBias):
    """Relative bias r_ij, clipped at `max_distance` on each axis: (q·k + r_ij)/sqrt(d)."""

    def __init__(self, c: config.RelativeBias, heads: int) -> None:
        super().__init__((2 * c.max_distance + 1) ** c.axes, heads)
        self.c = c

    def index(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        flat, far = torch.zeros_like(q.i * k.i), self.c.max_distance
        if len(q.axes) != self.c.axes:
            raise ConfigError(f"these positions have {self.c.axes} axes, and the tokens {len(q.axes)} coordinates")
        for mine, theirs in zip(q.axes, k.axes, strict=True):
            flat = flat * (2 * far + 1) + (theirs - mine).clamp(-far, far) + far
        return flat

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        if not self.c.scaled:
            return super().prepare(q, k)
        return PreparedPosition(build_bias=lambda q, scale: BiasTable(self.bias, self.index, scale))  #: S035


POSITIONS[config.T5Bias] = lambda c, dim, heads, width: T5Bias(c, heads)
POSITIONS[config.RelativeBias] = lambda c, dim, heads, width: RelativeBias(c, heads)
