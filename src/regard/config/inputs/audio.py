"""Config of audio embeddings: the sample rate, what one token is made of, and augmentation.

mel         log-mel spectrogram: power of frequency bands in windows           tokens in time, or in time and pitch
convolved   the same, through two convolutions (Whisper)                       tokens in time
frames      frames of raw samples                                              tokens in time
rates       every 100th, every 10th and every single sample                    tokens in time at three rates
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_fraction, check_minimum, config_class

LONGEST = 3600.0  # longest input in seconds: it must fit in memory


@config_class
class MelSpectrogram:
    """Log-mel spectrogram: windows of `win_length` samples, `hop_length` apart, whose spectrum is summed in `n_mels`
    bands.

    The bands are evenly spaced on Slaney's or the HTK mel scale between `f_min` and `f_max` hertz (none: the Nyquist
    frequency). A token is `frames_per_token` windows; with `bands_per_token` it is that many bands of them, and tokens
    lie on a grid of time and frequency.
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
                f"hop_length: {self.hop_length} is larger than win_length {self.win_length}: it skips samples; lower it"
            )
        if self.bands_per_token is not None and self.n_mels % self.bands_per_token:
            raise ConfigError(f"bands_per_token: {self.n_mels} mels are not a whole number of {self.bands_per_token}")
        if self.f_max is not None and self.f_max <= self.f_min:
            raise ConfigError(f"f_max: {self.f_max:g} hertz is not above f_min, which is {self.f_min:g}")

    @property
    def rows(self) -> int:
        """Tokens at one time step."""
        return 1 if self.bands_per_token is None else self.n_mels // self.bands_per_token

    def windows(self, samples: int) -> int:
        """Windows of a sound; the last one may be padded with silence."""
        return 1 + max(0, -(-(samples - self.win_length) // self.hop_length))

    def steps(self, samples: int) -> int:
        """Time steps of a sound in tokens."""
        return -(-self.windows(samples) // self.frames_per_token)

    def tokens(self, samples: int) -> int:
        return self.steps(samples) * self.rows


@config_class
class ConvSpectrogram:
    """Log-mel spectrogram read by two convolutions over three windows each, the second with stride 2 (Whisper).

    Windows are centred at every `hop_length`-th sample, and every sound has full length: silence pads it, with
    reflection padding at both ends (Radford et al. 2022). A spectrogram (B, mels, windows) may be given instead of
    samples.
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
    """Raw samples, `frame_size` of them per token."""

    kind: Literal["raw"] = "raw"
    frame_size: int = 160

    def __post_init__(self) -> None:
        check_minimum(1, frame_size=self.frame_size)

    def tokens(self, samples: int) -> int:
        return -(-samples // self.frame_size)


@config_class
class MultiRateFrames:
    """Raw samples at several rates: of every `steps[i]`-th sample, `frame_size` make a token; coarse rates come first.

    With [100, 10, 1], a coarse token covers 100 times the duration of a fine one.
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
    """Audio augmentation of training batches, drawn anew each time; evaluation audio is unchanged.

    `speed` is the maximum relative change of speed and pitch; `shift` the maximum silence in front, in seconds; `noise`
    the maximum of white noise relative to the sound's own level. `time_masks` spans of time and `freq_masks` spans of
    frequency are masked, each at most the fraction `mask_fraction` of the whole (SpecAugment: Park et al. 2019).
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
    """Audio embedding: mono audio with `sample_rate` samples a second; files of another rate are resampled.

    A sound of more than `max_seconds` is refused, or truncated if `too_long` says so. `normalize` removes the recording
    level: samples have mean square 1, and log-mel values mean 0 and deviation 1. "peak" is Whisper's scaling: no band
    is more than 80 decibels below the loudest, and 20 decibels are half a unit.
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
            raise ConfigError("augment.time_masks: they mask parts of a spectrogram, and there is none here; set "
                             "time_masks and freq_masks to 0, or features.kind to mel")  # fmt: skip
        if self.normalize == "peak" and not spectral:
            raise ConfigError("normalize: 'peak' normalises a spectrogram, and there is none here; set it "
                              "to true or false, or features.kind to mel")  # fmt: skip
        if isinstance(self.features, ConvSpectrogram) and self.limit <= self.features.win_length // 2:
            raise ConfigError(f"max_seconds: {self.limit} samples are too few for windows of "
                              f"{self.features.win_length} that are mirrored at the ends; "
                              f"{self.features.win_length // 2 + 1} are the least")  # fmt: skip
        high = self.features.f_max if isinstance(self.features, MelSpectrogram) else None
        if high is not None and high > self.sample_rate / 2:
            raise ConfigError(f"features.f_max: {high:g} hertz is more than half the sample rate of "
                              f"{self.sample_rate:,}; lower it")  # fmt: skip

    @property
    def limit(self) -> int:
        """The maximum number of samples."""
        return max(
            1, int(self.sample_rate * self.max_seconds + 1e-6)
        )  # tolerate rounding: seconds may be samples / rate

    @property
    def count(self) -> int:
        """The maximum number of tokens of a sound."""
        return self.tokens(self.limit)

    def tokens(self, samples: int) -> int:
        """The tokens of a sound of so many samples."""
        return self.features.tokens(self.limit if isinstance(self.features, ConvSpectrogram) else samples)
