"""Time-series patch embedding, forecast head and SeriesProcessor: patches of rows, by channel or over all channels.

    rows (B, T, C) ── standard ── normal ── patches ──►  (B·C, N, D) channels separately, or (B, N, D)
    (B, horizon, C) ◄── standard ◄── normal ── one linear over all tokens ◄── trunk

The mean and standard deviation removed from each window are kept with the tokens and restored in the forecast. Inputs
and outputs are in the original units.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.core.layers import FusedLinear
from regard.core.model import FRONT_ENDS, HEADS
from regard.core.tokens import Tokens, sequence_tokens
from regard.data.records import Record
from regard.inputs.cost import FrontEndCost, TrunkCost, linear_flops
from regard.inputs.processors import PROCESSORS, TensorExample

EPS = 1e-5


@dataclass(kw_only=True, eq=False)
class SeriesTokens(Tokens):
    """Tokens of windows, with the mean and deviation (B, 1, C) that were removed from each channel of `rows`."""

    rows: Tensor  # (B, T, C) after that
    level: Tensor
    spread: Tensor


class SeriesEmbedding(nn.Module):
    """Series front end: windows (B, T, C) of the last T rows to Tokens."""

    def __init__(self, c: config.SeriesEmbedding, width: int) -> None:
        super().__init__()
        if not c.channels:
            raise ConfigError("embed.channels: 0; set it to how many numbers a row has")
        self.c = c
        self.map = nn.Linear(c.patch_length * (c.channels if c.channel_mixing == "mixed" else 1), width)
        trained = c.normalize and c.affine
        self.gain = nn.Parameter(torch.ones(c.channels)) if trained else None
        self.shift = nn.Parameter(torch.zeros(c.channels)) if trained else None

    def forward(self, rows: Tensor, **given: Tensor) -> Tokens:
        self.check(rows, given)
        x = self.units(rows.float(), into=True)
        level, spread = (
            channel_statistics(x) if self.c.normalize else (torch.zeros_like(x[:, :1]), torch.ones_like(x[:, :1]))
        )
        x = (x - level) / spread
        x = x if self.gain is None or self.shift is None else x * self.gain.float() + self.shift.float()
        tokens = sequence_tokens(self.map(self.patches(x).to(self.map.weight.dtype)))
        return SeriesTokens(x=tokens.x, order=tokens.order, is_plain=True, rows=x, level=level, spread=spread)

    def check(self, rows: Tensor, given: dict[str, Tensor]) -> None:
        if given:
            raise ConfigError(f"{', '.join(given)}: series carry none; leave it out")
        if tuple(rows.shape[1:]) != (self.c.length, self.c.channels):
            wanted = f"(batch, {self.c.length}, {self.c.channels})"
            raise ConfigError(f"series must be {wanted} by embed.length and embed.channels, got a tensor of shape "
                             f"{tuple(rows.shape)}")  # fmt: skip

    def patches(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B·C, N, patch) or (B, N, C·patch)
        """Overlapping patches of rows; the last row is repeated, so that it is in as many patches as others."""
        c = self.c
        longer: Tensor = F.pad(x.mT, (0, c.padding), mode="replicate")
        parts = longer.unfold(-1, c.patch_length, c.stride)  # (B, C, N, patch)
        made: Tensor = parts.flatten(0, 1) if c.channel_mixing == "independent" else parts.transpose(1, 2).flatten(2)
        return made

    def units(self, x: Tensor, into: bool) -> Tensor:
        """Standardise with the training data's mean and deviation (`into`), or convert back."""
        if not self.c.mean:
            return x
        center, scale = torch.tensor([self.c.mean, self.c.std]).to(x.device, non_blocking=True).unbind()
        return (x - center) / scale if into else x * scale + center

    def restore(self, forecast: Tensor, tokens: Tokens) -> Tensor:  # (B, horizon, C)
        """Restore the mean and deviation of the windows."""
        assert isinstance(tokens, SeriesTokens)
        forecast = forecast.float()
        if self.gain is not None and self.shift is not None:
            forecast = (forecast - self.shift.float()) / (self.gain.float() + EPS**2)
        return self.units(forecast * tokens.spread + tokens.level, into=False)

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        rows = self.c.channels if self.c.channel_mixing == "independent" else 1
        name = "input" if self.gain is None else "embedding"  # a trained gain needs the input's gradient
        return FrontEndCost(Counter({name: rows * linear_flops(self, self.c.count)}), self.c.count, rows=rows)

    def describe(self) -> str:
        c, how = self.c, "each of" if self.c.channel_mixing == "independent" else "all"
        return f"{c.count} patches of {c.patch_length} rows, {how} {c.channels} channels -> {self.map.out_features}"


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation of each channel of each window."""
    return x.mean(1, keepdim=True), (x.var(1, keepdim=True, correction=0) + EPS).sqrt()


class ForecastHead(nn.Module):
    """Forecast head: one linear map from all tokens of a channel to the next rows, shared by all channels."""

    def __init__(self, c: config.ForecastHead, trunk: config.Trunk, front: nn.Module) -> None:
        super().__init__()
        if not isinstance(front, SeriesEmbedding):
            raise ConfigError("head.kind: 'forecast' continues a time series; set embed.kind to series")
        self.c, self.channels, self.mixed = c, front.c.channels, front.c.channel_mixing == "mixed"
        told = {"head": c.horizon * (self.channels if self.mixed else 1)}  # by this name init "zero_init" makes it zero
        self.out = FusedLinear(front.c.count * trunk.dim, told, ("head",))
        self.line = FusedLinear(front.c.length, {"head": c.horizon}, ("head",)) if c.linear_skip else None
        self.restore = front.restore  # a method, so that the front end's weights are not registered twice

    def forward(self, tokens: Tokens) -> Tensor:  # (B, N, D) or (B·C, N, D) -> (B, horizon, C)
        said = self.out(F.dropout(tokens.x.flatten(1), self.c.dropout, self.training))
        rows = said.unflatten(1, (-1, self.channels)) if self.mixed else said.unflatten(0, (-1, self.channels)).mT
        if self.line is not None:
            assert isinstance(tokens, SeriesTokens)
            rows = rows + self.line(tokens.rows.mT.to(said.dtype)).mT
        return self.restore(rows, tokens)

    def flops(self, tokens: int) -> int:
        """FLOPs: once for all tokens of a window; the linear skip for each channel, where channels are mixed."""
        if self.line is None or not self.mixed:
            return linear_flops(self, 1)
        return linear_flops(self.out, 1) + linear_flops(self.line, self.channels)


FRONT_ENDS["series"] = SeriesEmbedding
HEADS["forecast"] = ForecastHead


class SeriesProcessor:
    """Series processor: a list of numbers, or of rows of them (one per channel); the same in an array."""

    column = "series"

    def __init__(self, front: config.SeriesEmbedding, augment: Any = None) -> None:
        if augment is not None:
            raise ConfigError("train.augment: it changes images, and series are read as they are; leave it out")
        self.front = front

    @property
    def about(self) -> dict[str, Any]:
        """The settings that examples depend on; the token size is not one."""
        return {"series": 1, "length": self.front.length, "channels": self.front.channels}

    def example(self, record: Record, name: str) -> TensorExample:
        if not self.front.channels:
            raise ConfigError("model.embed.channels: 0; set it to the number of values in a row of the series")
        if self.front.channel_mixing == "independent" and self.front.channels > 1:
            raise ConfigError("model.embed.channel_mixing: 'independent' predicts each channel separately, and this "
                              "task has one output for all; set it to mixed")  # fmt: skip
        return {"series": parse_window(record[name], self.front, f"{record.where}: column {name!r}")}

    def blank(self, context: int) -> TensorExample:
        """An empty example, to count costs."""
        return {"series": torch.zeros(self.front.length, self.front.channels)}

    def length(self, example: TensorExample) -> int:
        return self.front.count

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> dict[str, Tensor]:
        return {"ids": torch.stack([example["series"] for example in examples])}


def parse_window(found: Any, c: config.SeriesEmbedding, where: str) -> Tensor:  # (T, C)
    try:
        table = (found if isinstance(found, Tensor) else torch.tensor(found)).float()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{where} holds {found!r:.60}; expected {c.length} rows of {c.channels} numbers") from None
    table = table[:, None] if table.dim() == 1 else table
    if tuple(table.shape) != (c.length, c.channels):
        raise DataError(f"{where} is a series of {tuple(table.shape)} numbers, expected {(c.length, c.channels)} by "
                        "model.embed.length and model.embed.channels")  # fmt: skip
    if not bool(table.isfinite().all()):
        row = int((~table.isfinite()).any(-1).nonzero()[0])
        raise DataError(f"{where} has a gap in row {row}: a number is missing or infinite; fill it, or skip it by "
                        "data.on_bad_record=skip")  # fmt: skip
    return table


PROCESSORS["series"] = SeriesProcessor
