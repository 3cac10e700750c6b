"""Audio reader: audio files read in segments, mixed down to one channel and resampled.

    a.wav                     read directly: integers of 8, 16, 24 and 32 bits, floats of 32 and 64
    a.flac a.ogg a.mp3 ...    with the package soundfile (extra `data`)
    a.wav#5145+5148           a segment: 5,148 samples from sample 5,145 on

Channels are averaged. Other sample rates are resampled by windowed sinc interpolation.
"""

import math
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import DataError
from regard.files.compression import readable_errors, require_package

CUT = re.compile(r"(.+)#(\d{1,18})\+(\d{1,18})", re.DOTALL)
CLIPPED = 0.01  # fraction of samples at full scale from which a recording counts as clipped
CROSSINGS = 16  # zero crossings of the sinc on each side: more make a sharper filter
BIGGEST = 1 << 24  # maximum size of a resampling table
HEADER = 64  # bytes of a WAV header that are read
WHOLE, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # sample format codes of WAV files: PCM, IEEE float, extensible
MONO_NOTICE = "a sound of several channels becomes their mean (reported once)"
LOUD = "a sound is clipped: more than one sample in a hundred is at the maximum (reported once)"


class AudioReader(Protocol):
    """An open audio file: sample rate, channels and length, and samples on request."""

    @property
    def rate(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def count(self) -> int: ...

    def read(self, start: int, count: int) -> Tensor:  # (count, channels), from -1 to 1
        ...


# ---------------------------------------------------------------- WAV


@dataclass(frozen=True)
class WavReader:
    """WAV reader: the samples' position and format."""

    file: IO[bytes]
    rate: int
    channels: int
    count: int
    begin: int
    width: int  # bytes per sample
    floats: bool

    def read(self, start: int, count: int) -> Tensor:
        size = self.width * self.channels
        self.file.seek(self.begin + start * size)
        raw = bytearray(self.file.read(count * size))
        return decode_pcm(raw, self.width, self.floats).view(-1, self.channels)


def decode_pcm(raw: bytearray, width: int, floats: bool) -> Tensor:
    """Decode little-endian samples as in WAV files."""
    if not raw:
        return torch.empty(0)
    if floats:
        return torch.frombuffer(raw, dtype=torch.float64 if width == 8 else torch.float32).float()
    if width == 1:  # 8-bit samples are unsigned
        return (torch.frombuffer(raw, dtype=torch.uint8).float() - 128) / 128
    if width == 3:
        three = torch.frombuffer(raw, dtype=torch.uint8).view(-1, 3).int()
        up: Tensor = (three << torch.tensor([8, 16, 24])).sum(-1, dtype=torch.int32)  # sign bit in bit 31
        return (up.to(torch.float64) / 2**31).float()
    kind = torch.int16 if width == 2 else torch.int32
    return (torch.frombuffer(raw, dtype=kind).double() / float(1 << (8 * width - 1))).float()


def open_wav(file: IO[bytes], size: int, name: str) -> WavReader | None:
    """Read a WAV header; None if the encoding is not supported here."""
    head = file.read(12)
    if head[:4] in (b"RF64", b"RIFX"):  # larger than 4 GB, or big-endian
        return None
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise DataError(f"{name}: begins with {head[:4]!r} and not as a WAV file does; name a sound, or give the file "
                        "the ending of what it is")  # fmt: skip
    form: tuple[int, int, int, int] | None = None
    while len(chunk := file.read(8)) == 8:
        kind, length = struct.unpack("<4sI", chunk)
        if kind == b"data" and form is not None:
            return check_wav(file, form, length, size - file.tell(), name)
        body = file.read(min(length, HEADER)) if kind == b"fmt " else b""
        form = parse_wav_format(body, name) if kind == b"fmt " else form
        file.seek(length - len(body) + length % 2, 1)  # chunks are padded to even length
    raise DataError(f"{name}: a WAV file without its {'samples' if form else 'header'}; it was cut short, so write it "
                    "again")  # fmt: skip


def parse_wav_format(raw: bytes, name: str) -> tuple[int, int, int, int]:
    """Format code, channels, sample rate and bits per sample."""
    if len(raw) < 16:
        raise DataError(f"{name}: a WAV file whose header ends after {len(raw)} bytes of 16; it was cut short, so "
                        "write it again")  # fmt: skip
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", raw[:16])
    if code == EXTENSIBLE and len(raw) >= 26:
        code = struct.unpack("<H", raw[24:26])[0]
    if not channels or not rate:
        raise DataError(f"{name}: a WAV file of {channels} channels and {rate} samples a second; write it again")
    return code, channels, rate, bits


def check_wav(file: IO[bytes], form: tuple[int, int, int, int], length: int, there: int, name: str) -> WavReader | None:
    code, channels, rate, bits = form
    known = (code == WHOLE and bits in (8, 16, 24, 32)) or (code == FLOAT and bits in (32, 64))
    if not known:
        return None
    if length in (0, 0xFFFFFFFF):  # written to a pipe: the writer could not fill in the length
        length = there
    if length > there:
        raise DataError(f"{name}: its header gives {length:,} bytes of samples, and has {there:,}; it was cut short, "
                        "so write it again")  # fmt: skip
    return WavReader(file, rate, channels, length // (channels * bits // 8), file.tell(), bits // 8, code == FLOAT)


# ---------------------------------------------------------------- other formats


@dataclass(frozen=True)
class SoundFileReader:
    """Audio files that soundfile reads."""

    file: Any
    name: str

    @property
    def rate(self) -> int:
        return int(self.file.samplerate)

    @property
    def channels(self) -> int:
        return int(self.file.channels)

    @property
    def count(self) -> int:
        return int(self.file.frames)

    def read(self, start: int, count: int) -> Tensor:
        try:
            self.file.seek(start)
            return torch.from_numpy(self.file.read(count, dtype="float32", always_2d=True))
        except RuntimeError as problem:  # also covers soundfile's own errors
            raise audio_error(self.name, problem) from None


def audio_error(name: str, problem: Exception) -> DataError:
    reason = str(problem).partition("\n")[0].rstrip(".")
    return DataError(f"{name}: not a whole sound file ({reason}); name a sound, or write it again")


@contextmanager
def open_audio(path: Path, name: str = "") -> Iterator[AudioReader]:
    """Open an audio file."""
    name = name or str(path)
    with readable_errors(name):
        if path.suffix.lower() == ".wav":
            with path.open("rb") as file:
                found = open_wav(file, path.stat().st_size, name)
                if found is not None:
                    yield found
                    return
        path.open("rb").close()  # report missing or unreadable files first
    package = require_package("soundfile", f"{name}: a sound that is no plain WAV file", "or save it as 16-bit WAV")
    try:
        other = package.SoundFile(str(path))
    except RuntimeError as problem:
        raise audio_error(name, problem) from None
    with other:
        yield SoundFileReader(other, name)


class AudioSpan(NamedTuple):
    """A file and a segment of it; without a length to the end."""

    path: Path
    start: int = 0
    size: int | None = None


def parse_audio_span(text: str, where: str = "") -> AudioSpan:
    """Parse "a.wav" or "a.wav#5145+5148", relative to the folder of the file that names it."""
    beside = Path(where.rpartition(":")[0] or where).parent
    for each in (Path(text).expanduser(), beside / text):
        if each.is_file():
            return AudioSpan(each)
    found = CUT.fullmatch(text)
    if found is not None:
        return parse_audio_span(found[1], where)._replace(start=int(found[2]), size=int(found[3]))
    there = f", here or in {beside}" if where else ""
    raise DataError(
        f"{where or text}: no sound file {text!r}{there}; correct its name, or skip it by data.on_bad_record=skip"
    )


def read_audio(source: str | Path, rate: int, limit: float, *, cut: bool = False, where: str = "") -> Tensor:
    """(T,) the samples of a file or segment, mono, at this rate; at most `limit` seconds of them.

    `where` is the record that names the file; longer audio is refused, or `cut`.
    """
    path, start, size = parse_audio_span(str(source), where)
    name = f"{where}: {source}" if where and str(source) not in where else str(source)
    with open_audio(path, name) as file:
        if start + (size or 0) > file.count:
            raise DataError(f"{name}: the file has {file.count:,} samples; correct start and length")
        count = file.count - start if size is None else size
        if count > limit * file.rate and not cut:
            raise DataError(f"{name}: {count / file.rate:,.1f} seconds of sound, more than {limit:g}; cut it, or set "
                            "model.embed.max_seconds, or model.embed.too_long=truncate")  # fmt: skip
        count = min(count, max(1, int(limit * file.rate)))
        samples, old = file.read(start, count), file.rate
        if len(samples) < count:
            raise DataError(f"{name}: {len(samples):,} samples of {count:,}; it was cut short, so write it again")
    return resample(to_mono(samples, name), old, rate, name)


def to_mono(samples: Tensor, name: str) -> Tensor:  # (T, channels) -> (T,)
    """The mean of the channels; raises if samples are missing or not finite."""
    if not len(samples):
        raise DataError(f"{name}: a sound without samples; leave it out, or skip it by data.on_bad_record=skip")
    if not bool(samples.isfinite().all()):
        raise DataError(f"{name}: holds numbers that are no samples (infinite, or none at all); write it again")
    if samples.shape[1] > 1:
        warnings.warn(MONO_NOTICE, stacklevel=2)
    mean = samples.mean(-1)
    if not bool(mean.any()):
        raise DataError(f"{name}: silence from beginning to end; leave it out, or skip it by data.on_bad_record=skip")
    if float((samples.abs() >= 1 - 2**-14).float().mean()) > CLIPPED:
        warnings.warn(LOUD, stacklevel=2)
    return mean


# ---------------------------------------------------------------- resampling


def resample(samples: Tensor, old: int, new: int, name: str = "a sound") -> Tensor:
    """Polyphase resampling to (T·new/old,): each sample is a sum of its neighbours, weighted by a windowed sinc.

    With old/new = down/up in lowest terms, sample j·up + p lies at time j·down + p·down/up of the input. There are
    therefore `up` filters, and each is a convolution with stride `down`.
    """
    if old == new:
        return samples
    up, down = new // math.gcd(old, new), old // math.gcd(old, new)
    width = math.ceil(CROSSINGS * max(1.0, down / up))
    if up * (2 * width + down) > BIGGEST:
        raise DataError(f"{name}: {old:,} samples a second, which has no small ratio to {new:,} "
                        "(model.embed.sample_rate); bring it to that rate with another program")  # fmt: skip
    weights = sinc_kernel(up, down, width)
    count = -(-len(samples) * up // down)
    around = F.pad(samples, (width, width + down))[None, None]
    made = F.conv1d(around, weights[:, None], stride=down)[0].mT.flatten()  # (up, J) -> time order
    return made[:count].contiguous()


@lru_cache(maxsize=8)
def sinc_kernel(up: int, down: int, width: int) -> Tensor:  # (up, 2·width + down)
    """Filter weights of the input samples around each output sample; frequencies above half of either rate are
    removed."""
    at = torch.arange(-width, width + down, dtype=torch.float64)
    far = at - (torch.arange(up, dtype=torch.float64) * down / up)[:, None]
    cutoff = min(1.0, up / down) * (1 - 1 / CROSSINGS)  # cutoff below half the rate
    window = torch.cos(far / width * math.pi / 2).clamp(min=0).square() * (far.abs() <= width)
    return (cutoff * torch.sinc(cutoff * far) * window).float()
