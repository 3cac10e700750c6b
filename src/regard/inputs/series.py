"""Series to Tokens: patches of rows, read channel by channel or all at once; and the head that says how they go on.

    rows (B, T, C) ── standard ── normal ── patches ──►  (B·C, N, D) each channel by itself, or (B, N, D)
    (B, horizon, C) ◄── standard ◄── normal ── one map of all tokens ◄── trunk

What is taken from a window on the way in (its level and its spread) travels with the tokens and is given back on the
way out. Numbers go in and come out in their own units.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.layers import Fused
from regard.core.model import FRONTS, HEADS
from regard.core.tokens import Tokens, line

EPS = 1e-5


@dataclass(kw_only=True, eq=False)
class Patched(Tokens):
    """Tokens of windows, with the level and the spread (B, 1, C) that were taken from each channel of `rows`."""

    rows: Tensor  # (B, T, C) without them
    level: Tensor
    spread: Tensor


class Series(nn.Module):
    """Windows (B, T, C) of the last T rows to Tokens."""

    def __init__(self, c: config.Series, width: int) -> None:
        super().__init__()
        if not c.channels:
            raise ValueError("embed.channels: 0; say how many numbers a row has")
        self.c = c
        self.map = nn.Linear(c.patch * (c.channels if c.mix == "mixed" else 1), width)
        trained = c.normal and c.affine
        self.gain = nn.Parameter(torch.ones(c.channels)) if trained else None
        self.shift = nn.Parameter(torch.zeros(c.channels)) if trained else None

    def forward(self, rows: Tensor, **given: Tensor) -> Tokens:
        self.check(rows, given)
        x = self.units(rows.float(), into=True)
        level, spread = levels(x) if self.c.normal else (torch.zeros_like(x[:, :1]), torch.ones_like(x[:, :1]))
        x = (x - level) / spread
        x = x if self.gain is None or self.shift is None else x * self.gain.float() + self.shift.float()
        tokens = line(self.map(self.patches(x).to(self.map.weight.dtype)))
        return Patched(x=tokens.x, order=tokens.order, plain=True, rows=x, level=level, spread=spread)

    def check(self, rows: Tensor, given: dict[str, Tensor]) -> None:
        if given:
            raise ValueError(f"{', '.join(given)}: series carry none; leave it out")
        if tuple(rows.shape[1:]) != (self.c.length, self.c.channels):
            wanted = f"(batch, {self.c.length}, {self.c.channels})"
            raise ValueError(f"series must be {wanted} by embed.length and embed.channels, got a tensor of shape "
                             f"{tuple(rows.shape)}")  # fmt: skip

    def patches(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B·C, N, patch) or (B, N, C·patch)
        """Stretches of rows that overlap; the last row is repeated, so that it is in as many as others."""
        c = self.c
        longer: Tensor = F.pad(x.mT, (0, c.padding), mode="replicate")
        parts = longer.unfold(-1, c.patch, c.stride)  # (B, C, N, patch)
        made: Tensor = parts.flatten(0, 1) if c.mix == "independent" else parts.transpose(1, 2).flatten(2)
        return made

    def units(self, x: Tensor, into: bool) -> Tensor:
        """Numbers `into` deviations from the training data's mean, or back into their own units."""
        if not self.c.center:
            return x
        center, scale = torch.tensor([self.c.center, self.c.scale]).to(x.device, non_blocking=True).unbind()
        return (x - center) / scale if into else x * scale + center

    def restored(self, said: Tensor, tokens: Tokens) -> Tensor:  # (B, horizon, C)
        """What was taken from the windows, given back."""
        assert isinstance(tokens, Patched)
        said = said.float()
        if self.gain is not None and self.shift is not None:
            said = (said - self.shift.float()) / (self.gain.float() + EPS**2)
        return self.units(said * tokens.spread + tokens.level, into=False)


def levels(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the deviation of each channel of each window."""
    return x.mean(1, keepdim=True), (x.var(1, keepdim=True, correction=0) + EPS).sqrt()


class Horizon(nn.Module):
    """The rows that come next: all tokens of a channel side by side, and one map for all channels."""

    def __init__(self, c: config.Horizon, trunk: config.Trunk, front: nn.Module) -> None:
        super().__init__()
        if not isinstance(front, Series):
            raise ValueError("head.kind: 'forecast' says how a series goes on; set embed.kind to series")
        self.c, self.channels, self.mixed = c, front.c.channels, front.c.mix == "mixed"
        told = {"head": c.horizon * (self.channels if self.mixed else 1)}  # by this name init "quiet" makes it zero
        self.out = Fused(front.c.count * trunk.dim, told, ("head",))
        self.line = Fused(front.c.length, {"head": c.horizon}, ("head",)) if c.line else None
        self.restored = front.restored  # a method, and no second home for the front end's weights

    def forward(self, tokens: Tokens) -> Tensor:  # (B, N, D) or (B·C, N, D) -> (B, horizon, C)
        said = self.out(F.dropout(tokens.x.flatten(1), self.c.dropout, self.training))
        rows = said.unflatten(1, (-1, self.channels)) if self.mixed else said.unflatten(0, (-1, self.channels)).mT
        if self.line is not None:
            assert isinstance(tokens, Patched)
            rows = rows + self.line(tokens.rows.mT.to(said.dtype)).mT
        return self.restored(rows, tokens)


FRONTS["series"] = Series
HEADS["forecast"] = Horizon
