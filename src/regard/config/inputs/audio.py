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
    """Log-mel spectrogram: windows of `window` samples, `hop` apart, their spectrum gathered in `mels` bands.

    The bands lie evenly on Slaney's or the HTK scale between `low` and `high` hertz (none: half the rate). A token is
    `frames` windows side by side; with `bands` it is so many bands of them, and tokens stand on a grid of time and
    frequency.
    """

    kind: Literal["mel"] = "mel"
    window: int = 400
    hop: int = 160
    mels: int = 80
    low: float = 0.0
    high: float | None = None
    scale: Literal["slaney", "htk"] = "slaney"
    frames: int = 4
    bands: int | None = None

    def __post_init__(self) -> None:
        check_minimum(1, window=self.window, hop=self.hop, mels=self.mels, frames=self.frames, bands=self.bands)
        check_minimum(0, low=self.low)
        if self.hop > self.window:
            raise ConfigError(f"hop: {self.hop} samples between windows of {self.window} leave some unheard")
        if self.bands is not None and self.mels % self.bands:
            raise ConfigError(f"bands: {self.mels} mels are not a whole number of {self.bands}")
        if self.high is not None and self.high <= self.low:
            raise ConfigError(f"high: {self.high:g} hertz is not above low, which is {self.low:g}")

    @property
    def rows(self) -> int:
        """Tokens at one time."""
        return 1 if self.bands is None else self.mels // self.bands

    def windows(self, samples: int) -> int:
        """Windows that a sound fills; the last one may end in silence."""
        return 1 + max(0, -(-(samples - self.window) // self.hop))

    def steps(self, samples: int) -> int:
        """Tokens in time that a sound becomes."""
        return -(-self.windows(samples) // self.frames)

    def tokens(self, samples: int) -> int:
        return self.steps(samples) * self.rows


@config_class
class ConvSpectrogram:
    """Log-mel spectrogram read by two convolutions over three windows each, the second at every other window.

    Windows stand around every `hop`-th sample, and every sound is as long as can be: silence fills it, and both ends
    are mirrored (Radford et al. 2022). A spectrogram (B, mels, windows) may be given in the place of samples.
    """

    kind: Literal["convolved"] = "convolved"
    window: int = 400
    hop: int = 160
    mels: int = 80

    def __post_init__(self) -> None:
        self.spectrum  # noqa: B018  its settings are checked there

    @property
    def spectrum(self) -> MelSpectrogram:
        return MelSpectrogram(window=self.window, hop=self.hop, mels=self.mels)

    def windows(self, samples: int) -> int:
        return max(1, -(-samples // self.hop))

    def tokens(self, samples: int) -> int:
        return -(-self.windows(samples) // 2)


@config_class
class RawFrames:
    """Raw samples, `size` of them a token."""

    kind: Literal["frames"] = "frames"
    size: int = 160

    def __post_init__(self) -> None:
        check_minimum(1, size=self.size)

    def tokens(self, samples: int) -> int:
        return -(-samples // self.size)


@config_class
class MultiRateFrames:
    """Raw samples at several rates: of every `steps[i]`-th sample, `size` are a token; coarse ones come first.

    So with [100, 10, 1] a coarse token tells of 100 times as long as a fine one.
    """

    kind: Literal["rates"] = "rates"
    size: int = 160
    steps: tuple[int, ...] = (100, 10, 1)

    def __post_init__(self) -> None:
        check_minimum(1, size=self.size)
        if not self.steps or any(step < 1 for step in self.steps):
            raise ConfigError(f"steps: {list(self.steps)} are not whole numbers from 1 on, such as [100, 10, 1]")
        if list(self.steps) != sorted(set(self.steps), reverse=True):
            raise ConfigError(f"steps: {list(self.steps)} do not fall from coarse to fine, such as [100, 10, 1]")

    def each(self, samples: int) -> tuple[int, ...]:
        """Tokens at each rate."""
        return tuple(-(-samples // (step * self.size)) for step in self.steps)

    def tokens(self, samples: int) -> int:
        return sum(self.each(samples))


@config_class
class AudioAugment:
    """Changes to the sounds of a training batch, drawn anew each time; nothing is changed in evaluation.

    `speed` is up to such a part faster and higher, or slower and lower; `shift` up to so many seconds of silence before
    it; `noise` is white, up to such a part of the sound's own loudness. `times` stretches of time and `bands` stretches
    of frequency are hidden, each up to such a part of the whole as `hidden` says (SpecAugment: Park et al. 2019).
    """

    speed: float = 0.0
    shift: float = 0.0
    noise: float = 0.0
    times: int = 0
    bands: int = 0
    hidden: float = 0.2

    def __post_init__(self) -> None:
        check_minimum(0, shift=self.shift, noise=self.noise, times=self.times, bands=self.bands)
        check_fraction(hidden=self.hidden)
        if not 0 <= self.speed < 1:
            raise ConfigError(f"speed: {self.speed} is not from 0 up to 1; 0.1 is up to a tenth faster or slower")


@config_class
class AudioEmbedding(NonTextEmbedding):
    """Sound of one channel, `rate` samples a second; files of another rate are resampled.

    A sound of more than `seconds` is refused, or cut there where `long` says so. With `normal` it does not matter how
    loud it was recorded: samples have mean square 1, and the logs of mel bands mean 0 and deviation 1. With "peak" no
    band is more than 80 decibels below the loudest, and 20 decibels are half a unit: as Whisper hears.
    """

    kind: Literal["sound"] = "sound"
    rate: int = 16_000
    seconds: float = 10.0
    long: Literal["refuse", "cut"] = "refuse"
    way: MelSpectrogram | ConvSpectrogram | RawFrames | MultiRateFrames = MelSpectrogram()
    normal: bool | Literal["peak"] = True
    vary: AudioAugment | None = None

    def __post_init__(self) -> None:
        check_minimum(1, rate=self.rate)
        if not 0 < self.seconds <= LONGEST:
            raise ConfigError(f"seconds: {self.seconds:g} is not more than 0 and at most {LONGEST:g}")
        spectral = isinstance(self.way, MelSpectrogram | ConvSpectrogram)
        if self.vary is not None and self.vary.times + self.vary.bands and not spectral:
            raise ConfigError("vary.times: stretches of a spectrogram are hidden, and there is none here; set times "
                              "and "
                             "bands to 0, or way.kind to mel")  # fmt: skip
        if self.normal == "peak" and not spectral:
            raise ConfigError("normal: 'peak' is about the bands of a spectrogram, and there is none here; set it to "
                             "true or false, or way.kind to mel")  # fmt: skip
        if isinstance(self.way, ConvSpectrogram) and self.limit <= self.way.window // 2:
            raise ConfigError(f"seconds: {self.limit} samples are too few for windows of {self.way.window} that are "
                             f"mirrored at the ends; {self.way.window // 2 + 1} are the least")  # fmt: skip
        high = self.way.high if isinstance(self.way, MelSpectrogram) else None
        if high is not None and high > self.rate / 2:
            raise ConfigError(f"way.high: {high:g} hertz cannot be heard at a rate of {self.rate:,}; at most half of "
                              "it")  # fmt: skip

    @property
    def limit(self) -> int:
        """The most samples."""
        return max(1, int(self.rate * self.seconds + 1e-6))  # seconds may be a quotient of samples by the rate

    @property
    def count(self) -> int:
        """The most tokens that a sound becomes."""
        return self.tokens(self.limit)

    def tokens(self, samples: int) -> int:
        """Tokens that a sound of so many samples becomes."""
        return self.way.tokens(self.limit if isinstance(self.way, ConvSpectrogram) else samples)
