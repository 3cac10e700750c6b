"""Config of audio embeddings: the sample rate, what one token is made of, and augmentation.

mel         log-mel spectrogram: the loudness of frequency bands in windows    tokens in time, or in time and pitch
convolved   the same, through two convolutions (Whisper)                       tokens in time
frames      stretches of raw samples                                           tokens in time
rates       every 100th, every 10th and every single sample, side by side      tokens in time at three rates
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_fraction, check_minimum, config_class

LONGEST = 3600.0  # seconds: what is heard at once must fit in memory


@config_class
class MelSpectrogram:
    """Log-mel spectrogram: windows of `win_length` samples, `hop_length` apart, their spectrum gathered in `n_mels`
    bands.

    The bands lie evenly on Slaney's or the HTK scale between `f_min` and `f_max` hertz (none: half the rate). A token
    is `frames_per_token` windows side by side; with `bands_per_token` it is so many bands of them, and tokens stand on
    a grid of time and frequency.
    """

    kind: Literal["mel"] = "mel"
    win_length: int = 400
    hop_length: int = 160
    n_mels: int = 80
    f_min: float = 0.0
    f_max: float | None = None
    mel_scale: Literal["slaney", "htk"] = "slaney"
    frames_per_token: int = 4
    bands_per_token: int | None = None

    def __post_init__(self) -> None:
        check_minimum(
            1,
            win_length=self.win_length,
            hop_length=self.hop_length,
            n_mels=self.n_mels,
            frames_per_token=self.frames_per_token,
            bands_per_token=self.bands_per_token,
        )
        check_minimum(0, f_min=self.f_min)
        if self.hop_length > self.win_length:
            raise ConfigError(
                f"hop_length: {self.hop_length} samples between windows of {self.win_length} leave some unheard"
            )
        if self.bands_per_token is not None and self.n_mels % self.bands_per_token:
            raise ConfigError(f"bands_per_token: {self.n_mels} mels are not a whole number of {self.bands_per_token}")
        if self.f_max is not None and self.f_max <= self.f_min:
            raise ConfigError(f"f_max: {self.f_max:g} hertz is not above f_min, which is {self.f_min:g}")

    @property
    def rows(self) -> int:
        """Tokens at one time."""
        return 1 if self.bands_per_token is None else self.n_mels // self.bands_per_token

    def windows(self, samples: int) -> int:
        """Windows that a sound fills; the last one may end in silence."""
        return 1 + max(0, -(-(samples - self.win_length) // self.hop_length))

    def steps(self, samples: int) -> int:
        """Tokens in time that a sound becomes."""
        return -(-self.windows(samples) // self.frames_per_token)

    def tokens(self, samples: int) -> int:
        return self.steps(samples) * self.rows


@config_class
class ConvSpectrogram:
    """Log-mel spectrogram read by two convolutions over three windows each, the second at every other window.

    Windows stand around every `hop_length`-th sample, and every sound is as long as can be: silence fills it, and both
    ends are mirrored (Radford et al. 2022). A spectrogram (B, mels, windows) may be given in the place of samples.
    """

    kind: Literal["conv"] = "conv"
    win_length: int = 400
    hop_length: int = 160
    n_mels: int = 80

    def __post_init__(self) -> None:
        self.spectrum  # noqa: B018  its settings are checked there

    @property
    def spectrum(self) -> MelSpectrogram:
        return MelSpectrogram(win_length=self.win_length, hop_length=self.hop_length, n_mels=self.n_mels)

    def windows(self, samples: int) -> int:
        return max(1, -(-samples // self.hop_length))

    def tokens(self, samples: int) -> int:
        return -(-self.windows(samples) // 2)


@config_class
class RawFrames:
    """Raw samples, `frame_size` of them a token."""

    kind: Literal["raw"] = "raw"
    frame_size: int = 160

    def __post_init__(self) -> None:
        check_minimum(1, frame_size=self.frame_size)

    def tokens(self, samples: int) -> int:
        return -(-samples // self.frame_size)


@config_class
class MultiRateFrames:
    """Raw samples at several rates: of every `steps[i]`-th sample, `frame_size` are a token; coarse ones come first.

    So with [100, 10, 1] a coarse token tells of 100 times as long as a fine one.
    """

    kind: Literal["multi_rate"] = "multi_rate"
    frame_size: int = 160
    strides: tuple[int, ...] = (100, 10, 1)

    def __post_init__(self) -> None:
        check_minimum(1, frame_size=self.frame_size)
        if not self.strides or any(step < 1 for step in self.strides):
            raise ConfigError(f"strides: {list(self.strides)} are not whole numbers from 1 on, such as [100, 10, 1]")
        if list(self.strides) != sorted(set(self.strides), reverse=True):
            raise ConfigError(f"strides: {list(self.strides)} do not fall from coarse to fine, such as [100, 10, 1]")

    def each(self, samples: int) -> tuple[int, ...]:
        """Tokens at each rate."""
        return tuple(-(-samples // (step * self.frame_size)) for step in self.strides)

    def tokens(self, samples: int) -> int:
        return sum(self.each(samples))


@config_class
class AudioAugment:
    """Changes to the sounds of a training batch, drawn anew each time; nothing is changed in evaluation.

    `speed` is up to such a part faster and higher, or slower and lower; `shift` up to so many seconds of silence before
    it; `noise` is white, up to such a part of the sound's own loudness. `time_masks` stretches of time and `freq_masks`
    stretches of frequency are hidden, each up to such a part of the whole as `mask_fraction` says (SpecAugment: Park et
    al. 2019).
    """

    speed: float = 0.0
    shift: float = 0.0
    noise: float = 0.0
    time_masks: int = 0
    freq_masks: int = 0
    mask_fraction: float = 0.2

    def __post_init__(self) -> None:
        check_minimum(0, shift=self.shift, noise=self.noise, time_masks=self.time_masks, freq_masks=self.freq_masks)
        check_fraction(mask_fraction=self.mask_fraction)
        if not 0 <= self.speed < 1:
            raise ConfigError(f"speed: {self.speed} is not from 0 up to 1; 0.1 is up to a tenth faster or slower")


@config_class
class AudioEmbedding(NonTextEmbedding):
    """Sound of one channel, `sample_rate` samples a second; files of another rate are resampled.

    A sound of more than `max_seconds` is refused, or cut there where `too_long` says so. With `normalize` it does not
    matter how loud it was recorded: samples have mean square 1, and the logs of mel bands mean 0 and deviation 1. With
    "peak" no band is more than 80 decibels below the loudest, and 20 decibels are half a unit: as Whisper hears.
    """

    kind: Literal["audio"] = "audio"
    sample_rate: int = 16_000
    max_seconds: float = 10.0
    too_long: Literal["error", "truncate"] = "error"
    features: MelSpectrogram | ConvSpectrogram | RawFrames | MultiRateFrames = MelSpectrogram()
    normalize: bool | Literal["peak"] = True
    augment: AudioAugment | None = None

    def __post_init__(self) -> None:
        check_minimum(1, sample_rate=self.sample_rate)
        if not 0 < self.max_seconds <= LONGEST:
            raise ConfigError(f"max_seconds: {self.max_seconds:g} is not more than 0 and at most {LONGEST:g}")
        spectral = isinstance(self.features, MelSpectrogram | ConvSpectrogram)
        if self.augment is not None and self.augment.time_masks + self.augment.freq_masks and not spectral:
            raise ConfigError("augment.time_masks: stretches of a spectrogram are hidden, and there is none here; set "
                             "time_masks and freq_masks to 0, or features.kind to mel")  # fmt: skip
        if self.normalize == "peak" and not spectral:
            raise ConfigError("normalize: 'peak' is about the bands of a spectrogram, and there is none here; set it "
                              "to true or false, or features.kind to mel")  # fmt: skip
        if isinstance(self.features, ConvSpectrogram) and self.limit <= self.features.win_length // 2:
            raise ConfigError(f"max_seconds: {self.limit} samples are too few for windows of "
                              f"{self.features.win_length} that are mirrored at the ends; "
                              f"{self.features.win_length // 2 + 1} are the least")  # fmt: skip
        high = self.features.f_max if isinstance(self.features, MelSpectrogram) else None
        if high is not None and high > self.sample_rate / 2:
            raise ConfigError(f"features.f_max: {high:g} hertz cannot be heard at a rate of {self.sample_rate:,}; at "
                              "most half of it")  # fmt: skip

    @property
    def limit(self) -> int:
        """The most samples."""
        return max(
            1, int(self.sample_rate * self.max_seconds + 1e-6)
        )  # seconds may be a quotient of samples by the rate

    @property
    def count(self) -> int:
        """The most tokens that a sound becomes."""
        return self.tokens(self.limit)

    def tokens(self, samples: int) -> int:
        """Tokens that a sound of so many samples becomes."""
        return self.features.tokens(self.limit if isinstance(self.features, ConvSpectrogram) else samples)
