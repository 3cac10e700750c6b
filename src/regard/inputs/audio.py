"""Audio embeddings: log-mel spectrogram, raw frames at one rate or several, or a spectrogram through convolutions.

    mel         samples ── windows ── |FFT|^2 ── bands ── log ──►  (windows, mels), a few windows per token
    frames      samples ── frames ──►  tokens
    rates       every 100th ── frames ──┐
                every 10th  ── frames ──┼──►  tokens, coarse rates first, each positioned at its start time
                all         ── frames ──┘
    convolved   samples ── windows around every hop-th ── log-mel ──►  (B, M, W)          (Whisper: Radford et al. 2022)
                (B, M, W) ── 3 windows ── GELU ── 3 at every other one ── GELU ──►  a token for each pair of windows

T samples, W windows, M mel bands. Windows start at the first sample, and silence pads the end, so a sound has the same
tokens alone and in a batch with longer ones. For `conv` every sound is padded with silence to the full length, with
reflection padding at both ends.
"""

import math
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.model import FRONT_ENDS
from regard.core.tokens import Tokens, grid_tokens, sequence_tokens
from regard.inputs.cost import FrontEndCost, TrunkCost, linear_flops

FLOOR = 1e-10  # smallest power before the logarithm
EPS = 1e-5
DEPTH = 8.0  # powers of ten below the loudest band, the floor of Whisper's scaling


class MelSpectrogram(nn.Module):
    """Log-mel spectrogram tokens, each of `frames_per_token` windows."""

    def __init__(self, c: config.AudioEmbedding, width: int) -> None:
        super().__init__()
        assert isinstance(c.features, config.MelSpectrogram)
        self.c, self.way = c, c.features
        self.map = nn.Linear(self.way.frames_per_token * (self.way.bands_per_token or self.way.n_mels), width)

    def forward(self, samples: Tensor, real: Tensor | None, hide: Tensor | None = None) -> Tokens:
        """Samples to tokens. `hide` (B, pieces, 4) are SpecAugment masks: first window, windows, first band, bands."""
        way, steps = self.way, self.way.steps(samples.shape[1])
        table = log_mel_spectrogram(samples, way, self.c.sample_rate, steps * way.frames_per_token)  # (B, W, M)
        keep = (
            None
            if real is None
            else real.unflatten(1, (steps, way.rows))[..., 0].repeat_interleave(way.frames_per_token, 1)
        )
        table = normalize_spectrogram(table, self.c.normalize, keep)
        if hide is not None:
            table = table.masked_fill(spec_augment_mask(hide, *table.shape[1:]), 0.0)
        # (B, steps, frames, rows, bands) -> a token for each step and row
        parts = table.unflatten(2, (way.rows, -1)).unflatten(1, (steps, -1)).transpose(2, 3).flatten(3).flatten(1, 2)
        x = self.map(parts.to(self.map.weight.dtype))
        return grid_tokens(x, (steps, way.rows)) if way.bands_per_token is not None else sequence_tokens(x)

    def cost(self) -> Counter[str]:
        """The filterbank is a matrix product too."""
        way, count = self.way, self.c.count
        prepared = 2 * way.steps(self.c.limit) * way.frames_per_token * (way.win_length // 2 + 1) * way.n_mels
        return Counter({"input": linear_flops(self, count), "prepared": prepared})


def log_mel_spectrogram(
    samples: Tensor, c: config.MelSpectrogram, rate: int, count: int
) -> Tensor:  # (B, T) -> (B, count, M)
    """Log-mel spectrogram: the logarithm of the power in each band, for `count` Hann windows."""
    with torch.autocast(samples.device.type, enabled=False):  # lower precision would be audible
        longer = (count - 1) * c.hop_length + c.win_length - samples.shape[1]
        return mel_bands(
            F.pad(samples.float(), (0, max(0, longer))).unfold(1, c.win_length, c.hop_length)[:, :count], c, rate
        )


def mel_bands(frames: Tensor, c: config.MelSpectrogram, rate: int) -> Tensor:  # (B, W, window) -> (B, W, M)
    spectrum = torch.fft.rfft(frames * torch.hann_window(c.win_length, device=frames.device))
    power = spectrum.real.square() + spectrum.imag.square()
    loud: Tensor = power @ mel_filterbank(c, rate, frames.device)
    return loud.clamp(min=FLOOR).log()


def mel_filterbank(
    c: config.MelSpectrogram, rate: int, device: torch.device | None = None
) -> Tensor:  # (window//2 + 1, M)
    """Triangular mel filters, evenly spaced on the mel scale, each of area one (Slaney) or height one (HTK)."""
    high = rate / 2 if c.f_max is None else c.f_max
    ends = torch.tensor([c.f_min, high], dtype=torch.float64, device=device)
    low_mel, high_mel = hertz_to_mel(ends, c.mel_scale)
    steps = torch.linspace(0, 1, c.n_mels + 2, dtype=torch.float64, device=device)
    edges = mel_to_hertz(low_mel + (high_mel - low_mel) * steps, c.mel_scale)
    bins = torch.linspace(0, rate / 2, c.win_length // 2 + 1, dtype=torch.float64, device=device)
    if c.win_length % 2:  # an odd window has no bin at the Nyquist frequency
        bins = torch.arange(c.win_length // 2 + 1, dtype=torch.float64, device=device) * (rate / c.win_length)
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    up, down = (bins[:, None] - left) / (middle - left), (right - bins[:, None]) / (right - middle)
    area = 2 / (right - left) if c.mel_scale == "slaney" else 1.0
    return (torch.minimum(up, down).clamp(min=0) * area).float()


def hertz_to_mel(hertz: Tensor, scale: str) -> Tensor:
    """HTK: 2595 log10(1 + f/700). Slaney: 3f/200 up to 1,000 hertz, and 27 steps for every factor of 6.4 beyond."""
    if scale == "htk":
        return 2595 * torch.log10(1 + hertz / 700)
    return torch.where(hertz < 1000, 3 * hertz / 200, 15 + (hertz.clamp(min=1) / 1000).log() * 27 / math.log(6.4))


def mel_to_hertz(mel: Tensor, scale: str) -> Tensor:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    return torch.where(mel < 15, 200 * mel / 3, 1000 * torch.exp((mel - 15) * math.log(6.4) / 27))


def normalize_spectrogram(table: Tensor, normal: bool | str, keep: Tensor | None = None) -> Tensor:  # (B, W, M), (B, W)
    """Normalise log-mel values: by their own mean and standard deviation, by the loudest, or not at all."""
    if normal == "peak":
        table = table / math.log(10)
        return (torch.maximum(table, table.amax((1, 2), keepdim=True) - DEPTH) + 4) / 4
    return standardize(table, keep) if normal else table


def standardize(table: Tensor, keep: Tensor | None) -> Tensor:  # (B, W, M), (B, W)
    """Standardise to mean 0 and deviation 1 over the windows in `keep`."""
    weight = torch.ones_like(table[..., :1]) if keep is None else keep.to(table.dtype)[..., None]
    count = (weight.sum((1, 2), keepdim=True) * table.shape[2]).clamp(min=1)
    far = table - (table * weight).sum((1, 2), keepdim=True) / count
    return far / ((far.square() * weight).sum((1, 2), keepdim=True) / count + EPS).sqrt()


def spec_augment_mask(hide: Tensor, windows: int, mels: int) -> Tensor:  # (B, pieces, 4) -> (B, W, M)
    """SpecAugment mask, True where hidden: pieces are (first window, windows, first band, bands)."""
    time, pitch = torch.arange(windows, device=hide.device), torch.arange(mels, device=hide.device)
    first, long, low, wide = hide[..., None].unbind(2)
    when, which = (time >= first) & (time < first + long), (pitch >= low) & (pitch < low + wide)
    return (when[..., None] & which[:, :, None]).any(1)


class RawFrames(nn.Module):
    """Tokens from frames of raw samples."""

    def __init__(self, c: config.AudioEmbedding, width: int) -> None:
        super().__init__()
        assert isinstance(c.features, config.RawFrames)
        self.c, self.size = c, c.features.frame_size
        self.map = nn.Linear(self.size, width)

    def forward(self, samples: Tensor, real: Tensor | None) -> Tokens:
        samples = normalize_samples(samples, real, self.size) if self.c.normalize else samples
        return sequence_tokens(self.map(frame_samples(samples, self.size).to(self.map.weight.dtype)))

    def cost(self) -> Counter[str]:
        return Counter({"input": linear_flops(self, self.c.count)})


class MultiRateFrames(nn.Module):
    """Tokens from frames of raw samples at several rates, with a projection and a trained vector for each rate."""

    def __init__(self, c: config.AudioEmbedding, width: int) -> None:
        super().__init__()
        assert isinstance(c.features, config.MultiRateFrames)
        self.c, self.way = c, c.features
        self.maps = nn.ModuleList(nn.Linear(c.features.frame_size, width) for _ in c.features.strides)
        self.rates = nn.Embedding(len(c.features.strides), width)

    def forward(self, samples: Tensor, real: Tensor | None) -> Tokens:
        way, kind = self.way, self.rates.weight.dtype
        fine = None if real is None else real[:, -way.each(samples.shape[1])[-1] :]
        samples = normalize_samples(samples, fine, way.frame_size * way.strides[-1]) if self.c.normalize else samples
        parts, times = [], []
        for step, map, rate in zip(way.strides, self.maps, self.rates.weight, strict=True):
            parts.append(map(frame_samples(samples[:, ::step], way.frame_size).to(kind)) + rate)  #: S081
            times.append(torch.arange(parts[-1].shape[1], device=samples.device) * (step // way.strides[-1]))
        tokens = sequence_tokens(torch.cat(parts, 1))
        tokens.coords = torch.cat(times).expand(len(samples), -1)[..., None]
        return tokens

    def cost(self) -> Counter[str]:
        counts = zip(self.maps, self.way.each(self.c.limit), strict=True)
        return Counter({"input": sum(linear_flops(one, many) for one, many in counts)})


def frame_samples(samples: Tensor, size: int) -> Tensor:  # (B, T) -> (B, N, size)
    """All samples in frames of `size`; the last frame is padded with silence."""
    whole: Tensor = F.pad(samples, (0, -samples.shape[1] % size)).unflatten(1, (-1, size))
    return whole


def normalize_samples(samples: Tensor, real: Tensor | None, size: int) -> Tensor:
    """Samples scaled to a mean square of one over the real frames."""
    count = -(-samples.shape[1] // size) if real is None else real.sum(1, keepdim=True)
    power = samples.float().square().sum(1, keepdim=True) / (count * size)
    return samples / (power + EPS**2).sqrt()


AUDIO_FEATURES: dict[str, Any] = {"mel": MelSpectrogram, "raw": RawFrames, "multi_rate": MultiRateFrames}


class AudioEmbedding(nn.Module):
    """Audio front end: samples (B, T) to Tokens; `real` (B, N) marks real tokens where some are padding."""

    def __init__(self, c: config.AudioEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.way = AUDIO_FEATURES[c.features.kind](c, width)

    def forward(self, samples: Tensor, *, real: Tensor | None = None, **given: Tensor) -> Tokens:
        count = self.count(samples)
        spectral = isinstance(self.c.features, config.MelSpectrogram | config.ConvSpectrogram)
        if given.keys() - {"hide"} or ("hide" in given and not spectral):
            raise ConfigError(f"{', '.join(given)}: sounds carry none; leave it out")
        if real is not None and tuple(real.shape) != (len(samples), count):
            raise ConfigError(f"real must be {(len(samples), count)}, a claim for each token; got {tuple(real.shape)}")
        tokens: Tokens = self.way(samples, real, **given)
        if real is not None:
            tokens.is_real, tokens.is_plain, tokens.grid = real, False, None
        return tokens

    def count(self, x: Tensor) -> int:
        """The number of tokens of each sound; raises if the input is not audio."""
        c, way = self.c, self.c.features
        if x.dim() == 2 and 0 < x.shape[1] <= c.limit:
            return c.tokens(x.shape[1])
        other = ""
        if isinstance(way, config.ConvSpectrogram):
            most = way.windows(c.limit)
            if x.dim() == 3 and x.shape[1] == way.n_mels and 0 < x.shape[2] <= most:
                return -(-x.shape[2] // 2)
            other = f", or a spectrogram (batch, {way.n_mels}, 1 to {most:,})"
        raise ConfigError(f"samples must be (batch, 1 to {c.limit:,}) by embed.sample_rate and "
                          f"embed.max_seconds{other}, got a tensor of shape {tuple(x.shape)}")  # fmt: skip

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        return FrontEndCost(self.way.cost(), self.c.count)

    def describe(self) -> str:
        c = self.c
        return f"{c.features.kind}, {c.max_seconds:g} s at {c.sample_rate:,} Hz -> {c.count:,} tokens"


FRONT_ENDS["audio"] = AudioEmbedding


class ConvSpectrogram(nn.Module):
    """Convolutional spectrogram embedding (Whisper): samples (B, T), or a ready spectrogram (B, M, W), to Tokens."""

    def __init__(self, c: config.AudioEmbedding, width: int) -> None:
        super().__init__()
        assert isinstance(c.features, config.ConvSpectrogram)
        self.c, self.way = c, c.features
        self.first = nn.Conv1d(self.way.n_mels, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)

    def forward(self, samples: Tensor, real: Tensor | None, hide: Tensor | None = None) -> Tokens:
        """Samples to tokens; `hide` are SpecAugment masks, as for mel tokens."""
        table = samples if samples.dim() == 3 else self.spectrogram(samples)
        if hide is not None:
            table = table.masked_fill(spec_augment_mask(hide, table.shape[2], table.shape[1]).mT, 0.0)
        x = F.gelu(self.first(table.to(self.first.weight.dtype)))
        return sequence_tokens(F.gelu(self.second(x)).mT)

    def spectrogram(self, samples: Tensor) -> Tensor:  # (B, T) -> (B, M, W)
        way, limit = self.way, self.c.limit
        with torch.autocast(samples.device.type, enabled=False):  # lower precision would be audible
            whole = F.pad(samples.float(), (0, limit - samples.shape[1]))
            mirrored = F.pad(whole, (way.win_length // 2, way.win_length // 2), mode="reflect")
            frames = mirrored.unfold(1, way.win_length, way.hop_length)[:, : way.windows(limit)]
            return normalize_spectrogram(mel_bands(frames, way.spectrum, self.c.sample_rate), self.c.normalize).mT

    def cost(self) -> Counter[str]:
        windows, way = self.way.windows(self.c.limit), self.way
        first, second = (2 * each.weight.numel() for each in (self.first, self.second))
        bands = 2 * windows * (way.win_length // 2 + 1) * way.n_mels
        return Counter({"input": first * windows, "embedding": second * self.c.count, "prepared": bands})


AUDIO_FEATURES["conv"] = ConvSpectrogram
