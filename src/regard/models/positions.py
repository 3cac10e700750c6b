"""Further positional encodings: one-hot, convolution-like on a grid, Shaw's relative keys; and RoPE scaling.

    . . . . . . .
    . 7 3 2 4 . .      `?` is the pixel to predict; it comes after all pixels above and to the left.
    . 5 1 ?            Head 1 is initialised to the previous pixel, head 2 to the one above, and so on.

ConvLikePosition: a head whose score falls with the squared distance from one neighbour attends to that neighbour, so
many heads are a convolution (Cordonnier et al. 2020), and training moves them. The grid position follows from the order
of the tokens, so that a cache needs no further data. ShawPosition: a trained vector for each distance, added to the
keys (Shaw et al. 2018). RoPE scaling changes the angle of each pair of channels per position for texts longer than in
training, and returns the factor on q and k.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.positions import POSITIONS, ROPE_SCALINGS, Bias, Position, PreparedPosition, token_coordinates
from regard.core.tokens import TokenIndex, TokenLayout

# Rows and columns from the query's token to the key's. A token holds the previous pixel: that one is at (0, 0), and
# the pixel above is in the token to the right of it.
NEIGHBOUR_OFFSETS = ((0, 0), (-1, 1), (-1, 0), (-1, 2), (0, -1), (-2, 1), (-1, -1), (-1, 3))


class OneHotPosition(Position):
    """One-hot position concatenated to x; a linear layer can read it exactly."""

    def __init__(self, c: config.OneHotPosition) -> None:
        super().__init__()
        self.length, self.mode, self.extra = c.length, "concat", c.length

    def check(self, count: int, grid: tuple[int, ...] | None) -> None:
        if count > self.length:
            raise ConfigError(f"{count} tokens are more than position.length {self.length}")

    def table(self, places: TokenLayout) -> Tensor:
        return (token_coordinates(places, 1) == torch.arange(self.length, device=places.order.device)).float()


POSITIONS[config.OneHotPosition] = lambda c, dim, heads, width: OneHotPosition(c)


class ConvLikePosition(Position):
    """Row and column vectors added to x, and -sharpness·|offset - neighbour|² added to the scores."""

    first: Tensor

    def __init__(self, c: config.ConvLikePosition, dim: int, heads: int) -> None:
        super().__init__()
        self.c, self.mode = c, "add"
        self.rows, self.columns = (nn.Parameter(torch.empty(size, dim)) for size in c.grid)
        self.looks = nn.Parameter(torch.empty(heads, 3))  # for each head: rows, columns, log of the sharpness
        first = [NEIGHBOUR_OFFSETS[head % len(NEIGHBOUR_OFFSETS)] for head in range(heads)]
        self.register_buffer("first", torch.tensor(first, dtype=torch.float32))  # added to `looks`

    def check(self, count: int, grid: tuple[int, ...] | None) -> None:
        if count > self.c.grid[0] * self.c.grid[1]:
            raise ConfigError(f"{count} tokens are more than position.grid {list(self.c.grid)} has places for")

    def table(self, places: TokenLayout) -> Tensor:
        order = places.order[:1] if places.is_plain else places.order
        return self.rows[order // self.c.grid[1]] + self.columns[order % self.c.grid[1]]

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        return PreparedPosition(
            bias=ConvLikeBias(self.first + self.looks[:, :2], self.looks[:, 2].exp(), self.c.grid[1])
        )


@dataclass(eq=False)
class ConvLikeBias(Bias):
    neighbour: Tensor  # (H, 2)
    sharpness: Tensor  # (H,)
    columns: int

    def at(self, b: Tensor, h: Tensor, q: TokenIndex, k: TokenIndex) -> Tensor:
        down = k.order // self.columns - q.order // self.columns - self.neighbour[h, 0]
        across = k.order % self.columns - q.order % self.columns - self.neighbour[h, 1]
        return -self.sharpness[h] * (down * down + across * across)


POSITIONS[config.ConvLikePosition] = lambda c, dim, heads, width: ConvLikePosition(c, dim, heads)


class ShawPosition(Position):
    """Shaw's relative keys: q·(k + a) = q·k + q·a, from a small table of q·a by distance, without copying keys."""

    def __init__(self, c: config.ShawPosition, width: int) -> None:
        super().__init__()
        self.radius = c.max_distance
        self.keys = nn.Parameter(torch.empty(2 * c.max_distance + 1, width))

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        def make(q: Tensor, scale: float) -> Bias:
            return ShawBias(torch.einsum("bhqd,rd->bhqr", q, self.keys.to(q.dtype)) * scale, self.radius)

        return PreparedPosition(build_bias=make)

    def score_flops(self, heads: int, width: int, queries: int) -> int:
        """FLOPs of the table q·a."""
        return 2 * heads * queries * width * (2 * self.radius + 1)


@dataclass(eq=False)
class ShawBias(Bias):
    table: Tensor  # (B, H, Q, 2·radius + 1)
    radius: int

    def at(self, b: Tensor, h: Tensor, q: TokenIndex, k: TokenIndex) -> Tensor:
        return self.table[b, h, q.i, (k.order - q.order).clamp(-self.radius, self.radius) + self.radius]


POSITIONS[config.ShawPosition] = lambda c, dim, heads, width: ShawPosition(c, width)


def scale_linear(c: config.RotaryPosition, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """Linear RoPE scaling: all wavelengths times one factor (Chen et al. 2023)."""
    return pairs / c.factor, 1.0


def scale_dynamic(c: config.RotaryPosition, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """Dynamic RoPE scaling: another base, by the ratio of input length to trained length."""
    if count <= c.original_length:
        return pairs, 1.0
    width = 2 * len(pairs)
    # NTK-aware: with this exponent the longest wavelength grows by exactly the ratio
    base = c.base * (c.factor * count / c.original_length - (c.factor - 1)) ** (width / (width - 2))
    exponents = torch.arange(0, width, 2, device=pairs.device, dtype=torch.float32) / width
    return 1.0 / base**exponents, 1.0


def scale_llama3(c: config.RotaryPosition, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """Llama 3's RoPE scaling: long wavelengths are scaled, short ones kept, those between interpolated."""
    turns = c.original_length * pairs / (2 * math.pi)
    keep = ((turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor)).clamp(0, 1)
    return pairs * (keep + (1 - keep) / c.factor), 1.0


def scale_yarn(c: config.RotaryPosition, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """YaRN: the same by channel index, with a factor on q and k (Peng et al. 2023)."""
    keep = 1 - linear_ramp(
        yarn_channel(c, len(pairs), c.beta_fast), yarn_channel(c, len(pairs), c.beta_slow), len(pairs), pairs.device
    )
    return pairs * (keep + (1 - keep) / c.factor), 0.1 * math.log(c.factor) + 1 if c.factor > 1 else 1.0


def scale_longrope(c: config.RotaryPosition, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """LongRoPE: a factor for every wavelength (Ding et al. 2024)."""
    loud = math.sqrt(1 + math.log(c.factor) / math.log(c.original_length)) if c.factor > 1 else 1.0
    return pairs / torch.tensor(c.freq_factors).to(pairs.device, non_blocking=True), loud


def yarn_channel(c: config.RotaryPosition, count: int, turns: float) -> float:
    """The channel whose wave turns `turns` times within the trained length."""
    return count * math.log(c.original_length / (turns * 2 * math.pi)) / math.log(c.base)


def linear_ramp(low: float, high: float, count: int, device: torch.device) -> Tensor:
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * count - 1)
    steps = torch.arange(count, device=device, dtype=torch.float32)
    return ((steps - low) / max(high - low, 0.001)).clamp(0, 1)


ROPE_SCALINGS.update(
    linear=scale_linear, dynamic=scale_dynamic, llama3=scale_llama3, yarn=scale_yarn, longrope=scale_longrope
)
