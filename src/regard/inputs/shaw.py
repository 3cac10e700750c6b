"""Distances as keys: a trained vector for each, which a query meets beside the keys themselves (Shaw et al. 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import config
from regard.core.positions import POSITIONS, Bias, Place, Position
from regard.core.tokens import Places, Spot


class Shaw(Position):
    """q·(k + a) = q·k + q·a: a small table of q·a for each distance, so keys are never copied for each query."""

    def __init__(self, c: config.Shaw, width: int) -> None:
        super().__init__()
        self.radius = c.radius
        self.keys = nn.Parameter(torch.empty(2 * c.radius + 1, width))

    def prepare(self, q: Places, k: Places) -> Place:
        def make(q: Tensor, scale: float) -> Bias:
            return ShawBias(torch.einsum("bhqd,rd->bhqr", q, self.keys.to(q.dtype)) * scale, self.radius)

        return Place(make=make)


@dataclass(eq=False)
class ShawBias(Bias):
    table: Tensor  # (B, H, Q, 2·radius + 1)
    radius: int

    def at(self, b: Tensor, h: Tensor, q: Spot, k: Spot) -> Tensor:
        return self.table[b, h, q.i, (k.order - q.order).clamp(-self.radius, self.radius) + self.radius]


POSITIONS[config.Shaw] = lambda c, dim, heads, width: Shaw(c, width)
