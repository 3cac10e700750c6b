"""AudioProcessor: records with audio files or samples, resampled to the front end's rate, augmented in training."""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.data.readers.audio import read_audio, resample, to_mono
from regard.data.readers.audio_segments import AUDIO_COLUMN
from regard.data.records import Record
from regard.inputs.processors import PROCESSORS, TensorExample

ROUND = 8  # batch lengths are multiples of so many tokens, so that there are few shapes


class AudioProcessor:
    """Audio processor for a file, a segment ("a.wav#5145+5148"), samples from -1 to 1 at model.embed.sample_rate, or
    samples with another rate: (samples, rate)."""

    column = AUDIO_COLUMN

    def __init__(self, front: config.AudioEmbedding, augment: Any = None) -> None:
        if augment is not None:
            raise ConfigError("train.augment: it changes images; sounds are varied by model.embed.augment")
        self.front, self.vary = front, front.augment

    @property
    def about(self) -> dict[str, Any]:
        """The settings that examples depend on; the token size is not one."""
        return {"sound": 1, **{name: getattr(self.front, name) for name in ("sample_rate", "max_seconds", "too_long")}}

    def example(self, record: Record, name: str) -> TensorExample:
        found, c, cut = record[name], self.front, self.front.too_long == "truncate"
        if isinstance(found, str | Path):
            return {"sound": read_audio(found, c.sample_rate, c.max_seconds, cut=cut, where=record.where)}
        where = f"{record.where}: column {name!r}"
        if (rated := samples_with_rate(found)) is not None:
            return {"sound": self.resample(*rated, where)}
        samples = to_mono(parse_samples(found, where), where)
        if len(samples) > c.limit and not cut:
            raise DataError(f"{where} holds {len(samples):,} samples, and {c.max_seconds:g} seconds are {c.limit:,}; "
                            "cut it, or set model.embed.max_seconds, or model.embed.too_long=truncate")  # fmt: skip
        return {"sound": samples[: c.limit]}

    def resample(self, found: Any, rate: int, where: str) -> Tensor:
        """Resample samples as `read_audio` does for a file."""
        samples, c = parse_samples(found, where), self.front
        if rate < 1:
            raise DataError(f"{where} has a rate of {rate} samples a second; give the one that it was recorded with")
        if not (found if isinstance(found, Tensor) else torch.tensor(found)).is_floating_point():
            raise DataError(f"{where} holds whole numbers; samples are from -1 to 1, so divide them by the largest "
                            "number of their kind (32,768 where they have 16 bits)")  # fmt: skip
        if len(samples) > c.max_seconds * rate and c.too_long != "truncate":
            raise DataError(f"{where}: {len(samples) / rate:,.1f} seconds of sound, more than {c.max_seconds:g}; cut "
                            "it, or set model.embed.max_seconds, or model.embed.too_long=truncate")  # fmt: skip
        return resample(to_mono(samples[: max(1, int(c.max_seconds * rate))], where), rate, c.sample_rate, where)

    def blank(self, context: int) -> TensorExample:
        """An empty example of maximum length, to count costs."""
        return {"sound": torch.zeros(self.front.limit)}

    def length(self, example: TensorExample) -> int:
        return self.front.tokens(len(example["sound"]))

    def collate(self, examples: Sequence[TensorExample], chance: Generator | None) -> dict[str, Tensor]:
        sounds = [example["sound"] for example in examples]
        vary = self.vary if chance is not None else None
        if vary is not None and chance is not None:
            sounds = [augment_audio(sound, vary, self.front, chance) for sound in sounds]
        longest = max(map(len, sounds))
        width = min(-(-longest // self.step) * self.step, self.front.limit)
        batch = {"ids": torch.stack([F.pad(sound, (0, width - len(sound))) for sound in sounds]),
                 "real": torch.stack([self.real(len(sound), width) for sound in sounds])}  # fmt: skip
        if vary is not None and chance is not None and vary.time_masks + vary.freq_masks:
            batch["hide"] = torch.stack([self.hide(len(sound), vary, chance) for sound in sounds])
        return batch

    @property
    def step(self) -> int:
        """Samples per token, at the coarsest rate."""
        way = self.front.features
        if isinstance(way, config.MelSpectrogram | config.ConvSpectrogram):
            return ROUND * way.hop_length * (way.frames_per_token if isinstance(way, config.MelSpectrogram) else 2)
        return ROUND * way.frame_size * (way.strides[-1] if isinstance(way, config.MultiRateFrames) else 1)

    def real(self, samples: int, width: int) -> Tensor:  # (N,)
        """Which tokens of a padded row are real."""
        way = self.front.features
        if isinstance(way, config.MultiRateFrames):
            each = zip(way.each(samples), way.each(width), strict=True)
            return torch.cat([torch.arange(wide) < count for count, wide in each])
        return torch.arange(self.front.tokens(width)) < self.front.tokens(samples)

    def hide(self, samples: int, vary: config.AudioAugment, chance: Generator) -> Tensor:  # (pieces, 4)
        """Random SpecAugment masks in time and frequency."""
        way = self.front.features
        assert isinstance(way, config.MelSpectrogram | config.ConvSpectrogram)
        windows = way.windows(samples)
        times = [(*random_span(windows, vary.mask_fraction, chance), 0, way.n_mels) for _ in range(vary.time_masks)]
        bands = [(0, windows, *random_span(way.n_mels, vary.mask_fraction, chance)) for _ in range(vary.freq_masks)]
        return torch.tensor(times + bands)


def samples_with_rate(found: Any) -> tuple[Any, int] | None:
    """Samples with their rate: (samples, rate), or a dict as in hub datasets."""
    if isinstance(found, Mapping) and "array" in found and "sampling_rate" in found:
        return found["array"], int(found["sampling_rate"])
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Integral) and hasattr(found[0], "__len__"):
        return found[0], int(found[1])
    return None


def parse_samples(found: Any, where: str) -> Tensor:  # (T, channels)
    """Samples from a list, an array or a tensor: mono, or one row of channels per sample."""
    try:
        table = (found if isinstance(found, Tensor) else torch.tensor(found)).float()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{where} holds {found!r:.60}; expected the name of a sound file, or samples") from None
    if table.dim() not in (1, 2):
        raise DataError(f"{where} holds a table of {tuple(table.shape)} numbers; samples are a row of them, or rows of "
                        "channels")  # fmt: skip
    return table[:, None] if table.dim() == 1 else table


def augment_audio(sound: Tensor, c: config.AudioAugment, front: config.AudioEmbedding, chance: Generator) -> Tensor:
    """Augmented audio: changed in speed, shifted in time, with noise; never longer than the front end allows."""
    speed, shift, noise = torch.rand(3, generator=chance).tolist()
    if c.speed:
        factor = math.exp((2 * speed - 1) * math.log1p(c.speed))
        size = max(1, round(len(sound) / factor))
        sound = F.interpolate(sound[None, None], size=size, mode="linear", align_corners=True)[0, 0]
    room = max(0, front.limit - len(sound))
    sound = F.pad(sound, (min(room, int(shift * c.shift * front.sample_rate)), 0))[: front.limit]
    if c.noise:
        loud = sound.square().mean().sqrt() * c.noise * noise
        sound = sound + loud * torch.randn(len(sound), generator=chance)
    return sound


def random_span(whole: int, most: float, chance: Generator) -> tuple[int, int]:
    """The start and length of a random masked span."""
    size = int(torch.randint(int(whole * most) + 1, (), generator=chance))
    return int(torch.randint(whole - size + 1, (), generator=chance)), size


PROCESSORS["audio"] = AudioProcessor
