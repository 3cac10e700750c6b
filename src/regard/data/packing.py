"""Packing: files are unpacked on the way, by their names; what cannot be read is one sentence.

    words.txt.gz   words.jsonl.xz   words.csv.zst        read as words.txt, words.jsonl, words.csv
"""

import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from regard.config import DataError

BUFFER = 1 << 18
SIP = 1 << 12  # packed bytes taken at a time: zstd may make a thousand of each


class Frames(io.RawIOBase):
    """The frames of a .zst file, one after the other. The package's own reader takes a torn file for a whole one."""

    def __init__(self, file: IO[bytes], package: Any) -> None:
        self.file, self.fresh = file, package.ZstdDecompressor().decompressobj
        self.frame: Any = None
        self.left, self.ready = b"", io.BytesIO()

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        while not (count := self.ready.readinto(room)):
            packed = self.left or self.file.read(SIP)
            if not packed:
                if self.frame is not None:
                    raise EOFError("it ends in the middle of a frame")
                break
            self.frame = self.frame or self.fresh()
            self.ready, self.left = io.BytesIO(self.frame.decompress(packed)), b""
            if self.frame.eof:
                self.left, self.frame = self.frame.unused_data, None
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def zstandard(path: Path) -> IO[bytes]:
    """A .zst file through Python's own module (3.14), or the package of this name."""
    try:
        return cast(IO[bytes], import_module("compression.zstd").open(path))
    except ImportError:
        package = needed("zstandard", f"{path}: packed with zstd", "or pack it with gzip or xz")
    return cast(IO[bytes], io.BufferedReader(Frames(path.open("rb"), package), BUFFER))


PACKERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": zstandard}
WORDS = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}


def unpacking(path: Path) -> IO[bytes]:
    """The file, open to read what was packed in it."""
    return cast(IO[bytes], PACKERS[path.suffix](path) if path.suffix in PACKERS else path.open("rb"))


def format_of(name: str) -> str:
    """What a file's name says about what is in it: ".jsonl" of a.jsonl and of a.jsonl.gz."""
    path = Path(name)
    return (Path(path.stem) if path.suffix in PACKERS else path).suffix.lower()


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turns what reading may raise into one sentence."""
    try:
        yield
    except Exception as problem:
        torn = isinstance(problem, gzip.BadGzipFile | zlib.error | lzma.LZMAError | EOFError)
        if torn or type(problem).__name__ == "ZstdError":  # a class of a package that may not be there
            kind = WORDS.get(Path(name).suffix, "packed")
            raise DataError(f"{name}: not a whole {kind} file ({problem}); pack it again, or name the plain text"
                            ) from None  # fmt: skip
        if isinstance(problem, OSError):
            reason = (problem.strerror or str(problem)).lower()
            raise DataError(f"{problem.filename or name}: {reason}; name a text that can be read") from None
        raise


def needed(module: str, what: str, otherwise: str) -> Any:
    """A package of the extra `data`; DataError where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise DataError(f"{what}, and the package {module} that reads it is not here; pip install 'regard[data]', "
                        f"{otherwise}") from None  # fmt: skip
