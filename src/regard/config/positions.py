"""Config of positional encodings: sinusoidal, learned, one-hot, rotary, ALiBi, T5, relative, Shaw, conv-like."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_concat_width, check_minimum, config_class
from regard.config.inputs.graph import GraphDistanceBias


@config_class
class ConvLikePosition:
    """A vector for each row and each column, and heads that begin as a convolution (Cordonnier et al. 2020).

    Each head has a neighbour to look at and how sharply, both learned: what it adds to a score falls with the squared
    distance from there. `grid` is rows and tokens in a row: of pixels whose channels are told one by one, [32, 96].
    """

    kind: Literal["near"] = "near"
    grid: tuple[int, ...] = (32, 32)

    def __post_init__(self) -> None:
        if len(self.grid) != 2:
            raise ConfigError(f"grid: {list(self.grid)} is not rows and tokens in a row, such as [32, 32]")
        check_minimum(1, rows=self.grid[0], columns=self.grid[1])


@config_class
class NoPosition:
    """No positions: the model sees a set."""

    kind: Literal["none"] = "none"


@config_class
class SinusoidalPosition:
    """Sines and cosines of the place, on one axis or several (channels shared out evenly)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    mode: Literal["add", "concat", "qk"] = "add"
    axes: int = 1
    base: float = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    width: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        check_minimum(1, axes=self.axes)
        check_concat_width(self.mode, self.width)


@config_class
class LearnedPosition:
    """A trained vector for each place; one table for each axis when `length` names several."""

    kind: Literal["learned"] = "learned"
    mode: Literal["add", "concat", "qk"] = "add"
    length: int | tuple[int, ...] = 512
    width: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        for length in self.length if isinstance(self.length, tuple) else (self.length,):
            check_minimum(1, length=length)
        check_concat_width(self.mode, self.width)


@config_class
class OneHotPosition:
    """A one beside the token's vector in the channel of its place: reversible, and the width grows by `length`."""

    kind: Literal["onehot"] = "onehot"
    mode: Literal["concat"] = "concat"
    length: int = 64

    def __post_init__(self) -> None:
        check_minimum(1, length=self.length)


@config_class
class RotaryPosition:
    """q and k turned by an angle that grows with the place (Su et al. 2021).

    `scaling` names a published way to reach beyond the trained `length`: linear (Chen et al. 2023), dynamic (base
    grows with the input), yarn (Peng et al. 2023), llama3, longrope (Ding et al. 2024, with `factors` for each pair).
    """

    kind: Literal["rotary"] = "rotary"
    base: float = 10_000.0
    layout: Literal["halves", "interleaved"] = "halves"
    part: float = 1.0
    scaling: Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"] = "none"
    factor: float = 1.0
    length: int = 2048
    fast: float = 32.0
    slow: float = 1.0
    low: float = 1.0
    high: float = 4.0
    factors: tuple[float, ...] = ()
    stretch: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ConfigError(f"part: {self.part} is not a fraction between 0 and 1")
        for name in ("base", "factor", "length"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: {getattr(self, name)} must be more than zero")
        if self.scaling == "longrope" and not self.factors:
            raise ConfigError("factors: longrope needs one factor for each pair of channels")


@config_class
class AlibiPosition:
    """Each head subtracts its own slope times the distance (Press et al. 2022)."""

    kind: Literal["alibi"] = "alibi"


@config_class
class T5Bias:
    """A trained number for each head and bucket of distances, buckets growing logarithmically (Raffel et al. 2020)."""

    kind: Literal["buckets"] = "buckets"
    buckets: int = 32
    distance: int = 128
    both: bool = True
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        near = self.buckets // (4 if self.both else 2)
        if near < 1:
            raise ConfigError(f"buckets: {self.buckets} are too few; {4 if self.both else 2} are the least")
        if self.distance <= near:
            raise ConfigError(f"distance: {self.distance} is not beyond the {near} near distances with their own "
                              "bucket")  # fmt: skip


@config_class
class ShawPosition:
    """A trained vector for each distance up to `radius`, added to the keys: q·(k + a) (Shaw et al. 2018)."""

    kind: Literal["shaw"] = "shaw"
    radius: int = 16
    tables: Literal["shared", "layer"] = "layer"

    def __post_init__(self) -> None:
        check_minimum(0, radius=self.radius)


@config_class
class RelativeBias:
    """A trained number r for each head and offset: (q·k + r)/sqrt(d), or outside the scale as in Swin."""

    kind: Literal["relative"] = "relative"
    radius: int = 16
    axes: int = 1
    inside: bool = True
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        check_minimum(0, radius=self.radius)
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
