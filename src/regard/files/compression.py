"""Compressed files, opened transparently by suffix; errors are one sentence.

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

from regard.config.errors import DataError
from regard.files.paths import check_regular_file
from regard.files.size_limits import LIMIT_VARIABLE, format_bytes, max_bytes, stored_bytes

BUFFER = 1 << 18
SIP = 1 << 12  # compressed bytes read at a time: zstd may expand each to a thousand
WINDOW = 256 << 20  # largest dictionary window of an .xz file
RATIO = 100  # highest compression ratio


class ZstdFrames(io.RawIOBase):
    """Decompress the frames of a .zst file or the streams of an .xz file, one after the other; `fresh` starts a
    decompressor.

    The package's own reader accepts a truncated .zst file, and Python's lets an .xz file choose its memory use.
    """

    def __init__(self, file: IO[bytes], fresh: Callable[[], Any], padding: bytes = b"") -> None:
        self.file, self.fresh, self.padding = file, fresh, padding
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
                self.left, self.frame = self.frame.unused_data.lstrip(self.padding), None
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def open_zst(path: Path) -> IO[bytes]:
    """Open a .zst file with Python's own module (3.14), or the package zstandard."""
    try:
        return cast(IO[bytes], import_module("compression.zstd").open(path))
    except ImportError:
        package = require_package("zstandard", f"{path}: packed with zstd", "or pack it with gzip or xz")
    return cast(IO[bytes], ZstdFrames(path.open("rb"), package.ZstdDecompressor().decompressobj))


def open_xz(path: Path) -> IO[bytes]:
    """Open an .xz file with a limited dictionary; usual ones are below the limit (xz -9 takes 65 MB)."""
    return cast(IO[bytes], ZstdFrames(path.open("rb"), lambda: lzma.LZMADecompressor(memlimit=WINDOW), b"\0"))


class BoundedReader(io.RawIOBase):
    """Count decompressed bytes and refuse a high compression ratio: no text compresses a hundredfold."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file, self.path, self.count = file, path, 0
        self.most = max(max_bytes(path), RATIO * stored_bytes(path))

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        some = self.file.read(min(len(room), BUFFER))
        room[: len(some)] = some
        self.count += len(some)
        if self.count > self.most:
            raise DataError(f"{self.path}: more than {format_bytes(self.most)} come out of {stored_bytes(self.path):,} "
                            f"bytes; unpack it yourself, or set {LIMIT_VARIABLE} in the environment "
                            "higher")  # fmt: skip
        return len(some)

    def close(self) -> None:
        self.file.close()
        super().close()


DECOMPRESSORS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": open_xz, ".zst": open_zst}
WORDS = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed."""
    check_regular_file(path, "to read from a pipe, name - and send the text to standard input")
    if path.suffix not in DECOMPRESSORS:
        return path.open("rb")
    return cast(IO[bytes], io.BufferedReader(BoundedReader(DECOMPRESSORS[path.suffix](path), path), BUFFER))


def file_format(name: str) -> str:
    """The format suffix of a file: ".jsonl" of a.jsonl and of a.jsonl.gz."""
    path = Path(name)
    return (Path(path.stem) if path.suffix in DECOMPRESSORS else path).suffix.lower()


@contextmanager
def readable_errors(name: str) -> Iterator[None]:
    """Turn the errors of reading into one sentence."""
    try:
        yield
    except Exception as problem:
        torn = isinstance(problem, gzip.BadGzipFile | zlib.error | lzma.LZMAError | EOFError)
        if torn or type(problem).__name__ == "ZstdError":  # its package may not be installed
            kind = WORDS.get(Path(name).suffix, "packed")
            raise DataError(f"{name}: not a whole {kind} file ({problem}); pack it again, or name the plain text"
                            ) from None  # fmt: skip
        if isinstance(problem, OSError):
            reason = (problem.strerror or str(problem)).lower()
            raise DataError(f"{problem.filename or name}: {reason}; name a text that can be read") from None
        raise


def require_package(module: str, what: str, otherwise: str) -> Any:
    """Import a package of the extra `data`; DataError if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise DataError(f"{what}, and the package {module} that reads it is not here; pip install 'regard[data]', "
                        f"{otherwise}") from None  # fmt: skip
