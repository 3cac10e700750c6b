"""Config of positional encodings: sinusoidal, learned, one-hot, rotary, ALiBi, T5, relative, Shaw, conv-like."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_concat_width, check_minimum, config_class
from regard.config.inputs.graph import GraphDistanceBias


@config_class
class ConvLikePosition:
    """Position bias by learned row and column offsets: heads start as a convolution (Cordonnier et al. 2020).

    Each head has a learned offset and sharpness: its bias falls with the squared distance from that neighbour. `grid`
    is rows and tokens in a row: for pixels with one token per channel, [32, 96].
    """

    kind: Literal["conv_like"] = "conv_like"
    grid: tuple[int, ...] = (32, 32)

    def __post_init__(self) -> None:
        if len(self.grid) != 2:
            raise ConfigError(f"grid: {list(self.grid)} is not rows and tokens in a row, such as [32, 32]")
        check_minimum(1, rows=self.grid[0], columns=self.grid[1])


@config_class
class NoPosition:
    """No positions: the tokens are a set."""

    kind: Literal["none"] = "none"


@config_class
class SinusoidalPosition:
    """Sinusoidal positions, on one axis or several (channels divided evenly)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    mode: Literal["add", "concat", "qk"] = "add"
    axes: int = 1
    base: float = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    dim: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        check_minimum(1, axes=self.axes)
        check_concat_width(self.mode, self.dim)


@config_class
class LearnedPosition:
    """Learned positions; one table for each axis when `length` names several."""

    kind: Literal["learned"] = "learned"
    mode: Literal["add", "concat", "qk"] = "add"
    length: int | tuple[int, ...] = 512
    dim: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        for length in self.length if isinstance(self.length, tuple) else (self.length,):
            check_minimum(1, length=length)
        check_concat_width(self.mode, self.dim)


@config_class
class OneHotPosition:
    """One-hot positions, concatenated to the token vectors: the width grows by `length`."""

    kind: Literal["onehot"] = "onehot"
    mode: Literal["concat"] = "concat"
    length: int = 64

    def __post_init__(self) -> None:
        check_minimum(1, length=self.length)


@config_class
class RotaryPosition:
    """Rotary positions (RoPE): q and k are rotated by an angle proportional to the position (Su et al. 2021).

    `scaling` extends a model beyond its trained `original_length`: linear (Chen et al. 2023), dynamic (base grows with
    the input), yarn (Peng et al. 2023), llama3, longrope (Ding et al. 2024, with `freq_factors` for each pair).
    """

    kind: Literal["rotary"] = "rotary"
    base: float = 10_000.0
    layout: Literal["halves", "interleaved"] = "halves"
    fraction: float = 1.0
    scaling: Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"] = "none"
    factor: float = 1.0
    original_length: int = 2048
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    freq_factors: tuple[float, ...] = ()
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction: {self.fraction} is not a fraction between 0 and 1")
        for name in ("base", "factor", "original_length"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: {getattr(self, name)} must be more than zero")
        if self.scaling == "longrope" and not self.freq_factors:
            raise ConfigError("freq_factors: longrope needs one factor for each pair of channels")


@config_class
class AlibiPosition:
    """ALiBi: each head subtracts its own slope times the distance (Press et al. 2022)."""

    kind: Literal["alibi"] = "alibi"


@config_class
class T5Bias:
    """T5 bias: a trained number for each head and bucket of distances, buckets growing logarithmically (Raffel et al.
    2020)."""

    kind: Literal["t5"] = "t5"
    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        near = self.num_buckets // (4 if self.bidirectional else 2)
        if near < 1:
            raise ConfigError(
                f"num_buckets: {self.num_buckets} are too few; {4 if self.bidirectional else 2} are the least"
            )
        if self.max_distance <= near:
            raise ConfigError(f"max_distance: {self.max_distance} is not beyond the {near} near distances with their "
                              "own bucket")  # fmt: skip


@config_class
class ShawPosition:
    """Shaw's relative positions: a trained vector for each distance up to `max_distance`, added to the keys: q·(k + a)
    (Shaw et al. 2018)."""

    kind: Literal["shaw"] = "shaw"
    max_distance: int = 16
    tables: Literal["shared", "layer"] = "layer"

    def __post_init__(self) -> None:
        check_minimum(0, max_distance=self.max_distance)


@config_class
class RelativeBias:
    """Relative bias: a trained number r for each head and offset: (q·k + r)/sqrt(d), or outside the scale as in
    Swin."""

    kind: Literal["relative"] = "relative"
    max_distance: int = 16
    axes: int = 1
    scaled: bool = True
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        check_minimum(0, max_distance=self.max_distance)
        check_minimum(1, axes=self.axes)


Position = (
    NoPosition
    | SinusoidalPosition
    | LearnedPosition
    | OneHotPosition
    | RotaryPosition
    | AlibiPosition
    | T5Bias
    | ShawPosition
    | RelativeBias
    | GraphDistanceBias
    | ConvLikePosition
)
