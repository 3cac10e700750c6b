"""Config of time series: the patch embedding, and the forecast head."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_minimum, config_class


@config_class
class SeriesEmbedding(NonTextEmbedding):
    """Time series patches: the last `length` rows of a table, `patch_length` rows per token, `stride` rows apart
    (Nie et al. 2023).

    Channels are `independent`: each is a row of the batch, with shared weights; or `mixed`: a token has the patches of
    all channels. The last row is repeated until patches fill the length and one stride more, so that the newest rows
    are in as many patches as others.

    With `normalize` each channel of each window is standardised on input and restored on output (reversible instance
    normalisation: Kim et al. 2022), with a trained gain and shift if `affine`. `channels` (0), `channel_names`, `mean`
    and `std` are the columns of the training data, their means and deviations, filled in from the data.
    """

    kind: Literal["series"] = "series"
    channels: int = 0
    length: int = 336
    patch_length: int = 16
    stride: int = 8
    channel_mixing: Literal["independent", "mixed"] = "independent"
    normalize: bool = True
    affine: bool = True
    channel_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_minimum(0, channels=self.channels)
        check_minimum(1, length=self.length, patch_length=self.patch_length, stride=self.stride)
        if self.patch_length > self.length:
            raise ConfigError(f"patch_length: {self.patch_length} rows are more than length {self.length}")
        if self.stride > self.patch_length:
            raise ConfigError(f"stride: {self.stride} rows between patches of {self.patch_length} skip some rows")
        for name in ("channel_names", "mean", "std"):
            if (given := len(getattr(self, name))) not in (0, self.channels):
                raise ConfigError(f"{name}: {given} given for {self.channels} channels; leave it out")
        if any(scale <= 0 for scale in self.std):
            raise ConfigError("std: a deviation is more than zero; leave it out")

    @property
    def padding(self) -> int:
        """Rows that repeat the last one."""
        return -(self.length - self.patch_length) % self.stride + self.stride

    @property
    def count(self) -> int:
        """The number of tokens of a window."""
        return (self.length + self.padding - self.patch_length) // self.stride + 1


@config_class
class ForecastHead:
    """Forecast head: the next `horizon` rows of every channel at once, from all tokens; for embed.kind 'series'.

    With `linear_skip` a linear map of the window itself is added, so that the tokens model the rest (Zeng et al. 2023
    showed how far a linear model goes).
    """

    kind: Literal["forecast"] = "forecast"
    horizon: int = 96
    linear_skip: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_minimum(1, horizon=self.horizon)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: {self.dropout} is not a rate between 0 and 1")
