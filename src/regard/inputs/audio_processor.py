"""Sounds of records: files or samples, at the front end's rate; varied a little while a model trains."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import config
from regard.config import ConfigError, DataError
from regard.data import Record
from regard.data.cuts import COLUMN
from regard.data.sounds import one_channel, read_sound
from regard.inputs.senses import SENSES, Example

ROUND = 8  # batches are as long as a multiple of so many tokens in time, so that there are few lengths


class Sounds:
    """A file, a cut of one ("a.wav#5145+5148"), or samples from -1 to 1 at the rate of model.embed.rate."""

    column = COLUMN

    def __init__(self, front: config.Sound, augment: Any = None) -> None:
        if augment is not None:
            raise ConfigError("train.augment: it changes images; sounds are varied by model.embed.vary")
        self.front, self.vary = front, front.vary

    @property
    def about(self) -> dict[str, Any]:
        """What examples depend on: not on what a token is."""
        return {"sound": 1, **{name: getattr(self.front, name) for name in ("rate", "seconds", "long")}}

    def example(self, record: Record, name: str) -> Example:
        found, c, cut = record[name], self.front, self.front.long == "cut"
        if isinstance(found, str | Path):
            return {"sound": read_sound(found, c.rate, c.seconds, cut=cut, where=record.where)}
        where = f"{record.where}: column {name!r}"
        samples = one_channel(given(found, where), where)
        if len(samples) > c.limit and not cut:
            raise DataError(f"{where} holds {len(samples):,} samples, and {c.seconds:g} seconds are {c.limit:,}; cut "
                            "it, or set model.embed.seconds, or model.embed.long=cut")  # fmt: skip
        return {"sound": samples[: c.limit]}

    def blank(self, context: int) -> Example:
        """An example without content, for whoever counts what a model costs: as long as can be."""
        return {"sound": torch.zeros(self.front.limit)}

    def length(self, example: Example) -> int:
        return self.front.tokens(len(example["sound"]))

    def batch(self, examples: Sequence[Example], chance: Generator | None) -> dict[str, Tensor]:
        sounds = [example["sound"] for example in examples]
        vary = self.vary if chance is not None else None
        if vary is not None and chance is not None:
            sounds = [varied(sound, vary, self.front, chance) for sound in sounds]
        longest = max(map(len, sounds))
        width = min(-(-longest // self.step) * self.step, self.front.limit)
        batch = {"ids": torch.stack([F.pad(sound, (0, width - len(sound))) for sound in sounds]),
                 "real": torch.stack([self.real(len(sound), width) for sound in sounds])}  # fmt: skip
        if vary is not None and chance is not None and vary.times + vary.bands:
            batch["hide"] = torch.stack([self.hide(len(sound), vary, chance) for sound in sounds])
        return batch

    @property
    def step(self) -> int:
        """Samples in a few tokens."""
        way = self.front.way
        if isinstance(way, config.Mel | config.Convolved):
            return ROUND * way.hop * (way.frames if isinstance(way, config.Mel) else 2)
        return ROUND * way.size * (way.steps[-1] if isinstance(way, config.Rates) else 1)

    def real(self, samples: int, width: int) -> Tensor:  # (N,)
        """Which tokens of a batch this wide are sound."""
        way = self.front.way
        if isinstance(way, config.Rates):
            each = zip(way.each(samples), way.each(width), strict=True)
            return torch.cat([torch.arange(wide) < count for count, wide in each])
        return torch.arange(self.front.tokens(width)) < self.front.tokens(samples)

    def hide(self, samples: int, vary: config.Vary, chance: Generator) -> Tensor:  # (pieces, 4)
        """Stretches of time and of frequency that will not be heard."""
        way = self.front.way
        assert isinstance(way, config.Mel | config.Convolved)
        windows = way.windows(samples)
        times = [(*stretch(windows, vary.hidden, chance), 0, way.mels) for _ in range(vary.times)]
        bands = [(0, windows, *stretch(way.mels, vary.hidden, chance)) for _ in range(vary.bands)]
        return torch.tensor(times + bands)


def given(found: Any, where: str) -> Tensor:  # (T, channels)
    """Samples in a list, an array or a tensor: of one channel, or a row of channels at each moment."""
    try:
        table = (found if isinstance(found, Tensor) else torch.tensor(found)).float()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{where} holds {found!r:.60}; expected the name of a sound file, or samples") from None
    if table.dim() not in (1, 2):
        raise DataError(f"{where} holds a table of {tuple(table.shape)} numbers; samples are a row of them, or rows of "
                        "channels")  # fmt: skip
    return table[:, None] if table.dim() == 1 else table


def varied(sound: Tensor, c: config.Vary, front: config.Sound, chance: Generator) -> Tensor:
    """The same sound a little faster or slower, later, and with noise; never longer than the front end takes."""
    speed, shift, noise = torch.rand(3, generator=chance).tolist()
    if c.speed:
        factor = math.exp((2 * speed - 1) * math.log1p(c.speed))
        size = max(1, round(len(sound) / factor))
        sound = F.interpolate(sound[None, None], size=size, mode="linear", align_corners=True)[0, 0]
    room = max(0, front.limit - len(sound))
    sound = F.pad(sound, (min(room, int(shift * c.shift * front.rate)), 0))[: front.limit]
    if c.noise:
        loud = sound.square().mean().sqrt() * c.noise * noise
        sound = sound + loud * torch.randn(len(sound), generator=chance)
    return sound


def stretch(whole: int, most: float, chance: Generator) -> tuple[int, int]:
    """Where a hidden stretch begins and how long it is."""
    size = int(torch.randint(int(whole * most) + 1, (), generator=chance))
    return int(torch.randint(whole - size + 1, (), generator=chance)), size


SENSES["sound"] = Sounds
