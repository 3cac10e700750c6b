"""Positional encodings, applied in one of four places.

    embed      on the token vectors         sinusoidal, learned, one-hot; added or concatenated
    qk_offset  on the input of q and k      the same tables: W_q(x + p), while values stay W_v x
    rotate     on q and k themselves        rotary
    bias       on the scores                ALiBi; T5's, r_ij and Shaw's in regard.models.positions, relative_bias

A Position reads coordinates, never indices, so left padding, packing and caches need no special case.
`prepare` runs once per forward pass; blocks only apply the PreparedPosition that it returns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.tokens import TokenIndex, TokenLayout


class Bias:
    """Attention bias, added to the score of query i and key j in head h of row b: elementwise, without an n x n tensor.
    `at` takes index tensors that broadcast against each other; FlexAttention calls it with scalar indices."""

    def at(self, b: Tensor, h: Tensor, q: TokenIndex, k: TokenIndex) -> Tensor:
        raise NotImplementedError


@dataclass(eq=False)
class PreparedPosition:
    """A positional encoding prepared for all blocks of one forward pass."""

    qk_offset: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None
    interleaved: bool = False
    bias: Bias | None = None
    build_bias: Callable[[Tensor, float], Bias] | None = None  # a bias that depends on q or the scale

    def rotate(self, x: Tensor) -> Tensor:  # (B, H, N, d)
        if self.cos is None or self.sin is None:
            return x
        turned, rest = x[..., : 2 * self.cos.shape[-1]], x[..., 2 * self.cos.shape[-1] :]
        turned = rotate_pairs(turned, self.cos.to(x.dtype), self.sin.to(x.dtype), self.interleaved)
        return torch.cat([turned, rest], -1) if rest.shape[-1] else turned

    @property
    def biased(self) -> bool:
        return self.bias is not None or self.build_bias is not None

    def bias_for(self, q: Tensor, scale: float) -> Bias | None:
        return self.bias if self.build_bias is None else self.build_bias(q, scale)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate each pair of channels by its angle; a pair is (i, i + d/2), or neighbours when interleaved."""
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


class Position(nn.Module):
    """No position encoding, and the base class of the others."""

    mode = "none"
    extra = 0  # channels that concatenated positions add

    def table(self, places: TokenLayout) -> Tensor:  # (B, N, width)
        raise NotImplementedError

    def embed(self, x: Tensor, places: TokenLayout) -> Tensor:
        if self.mode == "add":
            return x + self.table(places).to(x.dtype)  #: S036
        if self.mode == "concat":
            return torch.cat([x, self.table(places).to(x.dtype).expand(*x.shape[:2], -1)], -1)
        return x

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        return PreparedPosition(qk_offset=self.table(q) if self.mode == "qk" else None)

    def check(self, count: int, grid: tuple[int, ...] | None) -> None:
        """Raise if the input has too many tokens; compares Python numbers only, so it never waits for the GPU."""


def token_coordinates(places: TokenLayout, axes: int) -> Tensor:
    if (got := places.coordinates.shape[-1]) != axes:
        raise ConfigError(f"these positions have {axes} axes, and the tokens {got} coordinates")
    return places.coordinates


# ---------------------------------------------------------------- on token vectors
class SinusoidalPosition(Position):
    """Sinusoidal positions, sin and cos of pos / base^(2i/d): a shift of position is a rotation (docs/positions.md)."""

    def __init__(self, c: config.SinusoidalPosition, dim: int) -> None:
        super().__init__()
        self.c, self.mode, self.width = c, c.mode, c.dim or dim
        self.extra = self.width if c.mode == "concat" else 0
        if self.width % (2 * c.axes):
            raise ConfigError(f"position.dim {self.width} is not divisible by two for each of {c.axes} axes")

    def table(self, places: TokenLayout) -> Tensor:
        at, each = token_coordinates(places, self.c.axes) + self.c.offset, self.width // self.c.axes
        parts = [sinusoidal_table(at[..., axis], each, self.c.base, self.c.layout) for axis in range(self.c.axes)]
        return torch.cat(parts, -1)


def sinusoidal_table(at: Tensor, width: int, base: float = 10_000.0, layout: str = "interleaved") -> Tensor:
    """(…, width): sines and cosines of the coordinates `at`, interleaved or in two halves."""
    dtype = at.dtype if at.is_floating_point() else torch.float32
    pairs = torch.arange(0, width, 2, device=at.device, dtype=torch.float64) / width
    angle = at.to(dtype)[..., None] * (base**-pairs).to(dtype)  #: S029
    waves = (angle.sin(), angle.cos())
    return torch.stack(waves, -1).flatten(-2) if layout == "interleaved" else torch.cat(waves, -1)


class LearnedPosition(Position):
    """Learned positions: a trained vector for each; several axes have one table each, concatenated (rows, columns)."""

    def __init__(self, c: config.LearnedPosition, dim: int) -> None:
        super().__init__()
        self.c, self.mode, width = c, c.mode, c.dim or dim
        self.extra = width if c.mode == "concat" else 0
        lengths = c.length if isinstance(c.length, tuple) else (c.length,)
        if width % len(lengths):
            raise ConfigError(f"position.dim {width} is not divisible by {len(lengths)} axes")
        sizes = [(length + c.offset, width // len(lengths)) for length in lengths]
        self.tables = nn.ParameterList([nn.Parameter(torch.empty(size)) for size in sizes])

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(table.shape[0] - self.c.offset for table in self.tables)

    def check(self, count: int, grid: tuple[int, ...] | None) -> None:
        sizes = (count,) if len(self.lengths) == 1 else grid or self.lengths
        if any(size > length for size, length in zip(sizes, self.lengths, strict=False)):
            enough = ", ".join(str(max(pair)) for pair in zip(sizes, self.lengths, strict=False))
            given, known = "x".join(map(str, sizes)), "x".join(map(str, self.lengths))
            raise ConfigError(f"{given} tokens are more than position.length {known}; cut, or model.extend({enough})")

    def table(self, places: TokenLayout) -> Tensor:
        at = token_coordinates(places, len(self.tables)) + self.c.offset
        each = [F.embedding(at[..., axis], table) for axis, table in enumerate(self.tables)]
        return each[0] if len(each) == 1 else torch.cat(each, -1)


# ---------------------------------------------------------------- on q and k
class RotaryPosition(Position):
    """RoPE: q and k are rotated by angles proportional to the position, so q·k depends only on the distance."""

    def __init__(self, c: config.RotaryPosition, width: int) -> None:
        super().__init__()
        self.c, self.width = c, int(width * c.fraction) // 2 * 2
        if c.freq_factors and len(c.freq_factors) != self.width // 2:
            raise ConfigError(f"position.freq_factors: {len(c.freq_factors)} for {self.width // 2} pairs of channels")

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        if self.c.scaling == "dynamic" and not (q.is_plain and q is k):
            raise ConfigError("position.scaling 'dynamic' goes by the input's length: no cache, padding or packing")
        pairs, loud = rotary_frequencies(self.c, self.width, q.count, q.order.device)
        angle = token_coordinates(q, 1).to(pairs.dtype) * pairs  # (B, N, d/2)
        cos, sin = (angle.cos() * loud)[:, None], (angle.sin() * loud)[:, None]
        return PreparedPosition(cos=cos, sin=sin, interleaved=self.c.layout == "interleaved")


def rotary_frequencies(c: config.RotaryPosition, width: int, count: int, device: torch.device) -> tuple[Tensor, float]:
    """The rotation angle of each pair of channels per position, and the attention factor of a RoPE scaling."""
    pairs = 1.0 / c.base ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    pairs, loud = (pairs, 1.0) if c.scaling == "none" else ROPE_SCALINGS[c.scaling](c, pairs, count)
    return pairs, loud if c.attention_factor is None else c.attention_factor


# RoPE scaling for texts longer than those of training, by name; `regard.models.positions` registers them.
ROPE_SCALINGS: dict[str, Callable[[config.RotaryPosition, Tensor, int], tuple[Tensor, float]]] = {}


# ---------------------------------------------------------------- on the scores
class AlibiPosition(Position):
    """ALiBi: each head subtracts slope x distance; slopes are powers of 2^(-8/heads)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        return PreparedPosition(bias=AlibiBias(alibi_slopes(self.heads, q.order.device)))


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """The published slopes; heads beyond the last power of two take every second slope of the next power."""
    near, head = 2 ** math.floor(math.log2(heads)), torch.arange(heads, device=device, dtype=torch.float32)
    return torch.exp2(-8 * torch.where(head < near, (head + 1) / near, (head - near + 0.5) / near))


@dataclass(eq=False)
class AlibiBias(Bias):
    slopes: Tensor

    def at(self, b: Tensor, h: Tensor, q: TokenIndex, k: TokenIndex) -> Tensor:
        return -self.slopes[h] * (q.order - k.order).abs()


class LearnedBias(Position):
    """A trained bias for each head and offset index: the base of T5's bias, of r_ij and of graph distances."""

    def __init__(self, count: int, heads: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(count, heads))

    def index(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        raise NotImplementedError

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        return PreparedPosition(bias=BiasTable(self.bias, self.index))


@dataclass(eq=False)
class BiasTable(Bias):
    """Bias from a table: bias[index(q, k), h], times `scale` where r_ij is added before the division by sqrt(d)."""

    table: Tensor
    index: Callable[[TokenIndex, TokenIndex], Tensor]
    scale: float = 1.0

    def at(self, b: Tensor, h: Tensor, q: TokenIndex, k: TokenIndex) -> Tensor:
        return self.table[self.index(q, k), h] * self.scale


def build_position(c: config.Position, dim: int, heads: int, width: int) -> Position:
    """The position module of a config: `dim` is the width of the vectors, `width` that of a head."""
    return POSITIONS[type(c)](c, dim, heads, width)


POSITIONS: dict[type, Callable[[Any, int, int, int], Position]] = {
    config.NoPosition: lambda c, dim, heads, width: Position(),
    config.SinusoidalPosition: lambda c, dim, heads, width: SinusoidalPosition(c, dim),
    config.LearnedPosition: lambda c, dim, heads, width: LearnedPosition(c, dim),
    config.RotaryPosition: lambda c, dim, heads, width: RotaryPosition(c, width),
    config.AlibiPosition: lambda c, dim, heads, width: AlibiPosition(heads),
}
