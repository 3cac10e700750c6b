"""Config of time series: the patch embedding, and the forecast head."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_minimum, config_class


@config_class
class SeriesEmbedding(NonTextEmbedding):
    """The last `length` rows of a table of numbers, `patch` rows a token, `stride` rows apart (Nie et al. 2023).

    Channels are `independent`: each is read by itself with the same weights, as if it were a row of the batch; or
    `mixed`: a token is the patches of all of them. The last row is repeated at the end until patches fill the length
    and one stride more, so that the newest rows are in as many patches as the others.

    With `normal` each channel of each window has mean 0 and deviation 1 on the way in, and gets back what was taken on
    the way out (reversible instance normalisation: Kim et al. 2022), with a trained gain and shift if `affine`.
    `channels` (0), `names`, `center` and `scale` are the columns of the training data, their means and deviations,
    found there.
    """

    kind: Literal["series"] = "series"
    channels: int = 0
    length: int = 336
    patch: int = 16
    stride: int = 8
    mix: Literal["independent", "mixed"] = "independent"
    normal: bool = True
    affine: bool = True
    names: tuple[str, ...] = ()
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_minimum(0, channels=self.channels)
        check_minimum(1, length=self.length, patch=self.patch, stride=self.stride)
        if self.patch > self.length:
            raise ConfigError(f"patch: {self.patch} rows are more than length {self.length}")
        if self.stride > self.patch:
            raise ConfigError(f"stride: {self.stride} rows between patches of {self.patch} leave some unread")
        for name in ("names", "center", "scale"):
            if (given := len(getattr(self, name))) not in (0, self.channels):
                raise ConfigError(f"{name}: {given} given for {self.channels} channels; leave it out")
        if any(scale <= 0 for scale in self.scale):
            raise ConfigError("scale: a deviation is more than zero; leave it out")

    @property
    def padding(self) -> int:
        """Rows that repeat the last one."""
        return -(self.length - self.patch) % self.stride + self.stride

    @property
    def count(self) -> int:
        """The tokens that a window becomes."""
        return (self.length + self.padding - self.patch) // self.stride + 1


@config_class
class ForecastHead:
    """The next `horizon` rows of every channel at once, from all tokens side by side; for embed.kind 'series'.

    With `line` a straight map of the window itself is added, so that the tokens tell what no line can (Zeng et al.
    2023 found how far a line goes).
    """

    kind: Literal["forecast"] = "forecast"
    horizon: int = 96
    line: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_minimum(1, horizon=self.horizon)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: {self.dropout} is not a rate between 0 and 1")
