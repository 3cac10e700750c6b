"""Sources: where text comes from. A packaged name, a file, a folder or standard input, read as UTF-8 in parts.

Line ends stay as they are and a byte order mark is dropped; files named .gz are unpacked on the way. A folder gives its
.txt and .md files in the order of their paths, without hidden or empty ones. What is no text is refused by its name.
"""

import codecs
import gzip
import hashlib
import os
import shutil
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, NoReturn

from regard.config import PACKAGED, DataError
from regard.config.names import did_you_mean

HERE = Path(__file__).parent / "texts"
BLOCK = 1 << 18  # bytes read at a time; training a tokenizer holds 256 of them
TEXTS = (".txt", ".md", ".txt.gz", ".md.gz")
STANDARD = "-"


@dataclass(frozen=True)
class Document:
    """One text, whole, and where it stood."""

    path: str
    text: str


@dataclass(frozen=True)
class Source:
    """One text, which can be read in parts and more than once; `held` keeps what standard input says only once."""

    name: str
    path: Path
    held: IO[bytes] | None = None

    def parts(self) -> Iterator[str]:
        """The text, a block at a time; no character is split, and none lost."""
        decoder, read, lines = codecs.getincrementaldecoder("utf-8-sig")(), 0, 1
        for block in chain(self.blocks(), [b""]):
            read += len(block)
            if (zero := block.find(b"\0")) >= 0:
                raise DataError(f"{self.name}: {binary(block, read - len(block) + zero)}")
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as problem:
                raise DataError(f"{self.name}: {foreign(problem, read - len(problem.object), lines)}") from None
            lines += text.count("\n")
            if text:
                yield text

    def blocks(self) -> Iterator[bytes]:
        with readable(self.name), self.open() as file:
            while block := file.read(BLOCK):
                yield block

    @contextmanager
    def open(self) -> Iterator[IO[bytes] | gzip.GzipFile]:
        if self.held is not None:
            self.held.seek(0)
            yield self.held
        else:
            with gzip.open(self.path) if self.path.name.endswith(".gz") else self.path.open("rb") as file:
                yield file

    @cached_property
    def digest(self) -> str:
        """The sha256 of what is read."""
        found = hashlib.sha256()
        for block in self.blocks():
            found.update(block)
        return found.hexdigest()

    @property
    def empty(self) -> bool:
        return self.digest in (hashlib.sha256(b"").hexdigest(), hashlib.sha256(codecs.BOM_UTF8).hexdigest())


def read_texts(sources: Sequence[str]) -> Iterator[Document]:
    """The texts of the sources one after the other, each whole."""
    for source in find(sources):
        yield Document(source.name, "".join(source.parts()))


def find(names: Sequence[str]) -> list[Source]:
    """The texts that are there by these names; DataError where there is none."""
    return [source for name in names for source in found(name)]


def found(name: str) -> list[Source]:
    if name == STANDARD:
        return [filled(spooled())]
    if name in PACKAGED:
        return [Source(name, HERE / f"{name}.txt.gz")]
    path = Path(name).expanduser()
    if not os.path.lexists(path):
        near = did_you_mean(name, PACKAGED)
        raise DataError(f"{name}: no such file or folder{near} name a text, or a packaged one ({', '.join(PACKAGED)})")
    if path.is_dir():
        return inside(path)
    if path.exists() and not path.is_file():
        raise DataError(f"{name}: not a regular file; to read from a pipe, name - and send the text to standard input")
    return [filled(Source(name, path))]


def inside(folder: Path) -> list[Source]:
    """The texts in a folder and the folders in it."""
    paths = []
    with readable(str(folder)):
        for here, folders, names in os.walk(folder, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [Path(here, name) for name in names if name.endswith(TEXTS) and not name.startswith(".")]
    sources = [source for path in sorted(paths) if not (source := Source(str(path), path)).empty]
    if not sources:
        what = "only empty texts" if paths else "no .txt or .md files"
        raise DataError(f"{folder}: {what} in this folder; name one with texts, or the files themselves")
    return sources


def filled(source: Source) -> Source:
    if source.empty:
        raise DataError(f"{source.name}: empty; there must be some text to read")
    return source


def spooled() -> Source:
    """Standard input, kept in a nameless file: it will be read more than once, and may be larger than memory."""
    held = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the source is there
    source = Source("standard input", Path(STANDARD), held)
    weakref.finalize(source, held.close)
    with readable(source.name):
        if sys.stdin is None or sys.stdin.closed:
            raise OSError(0, "closed")
        shutil.copyfileobj(sys.stdin.buffer, held, BLOCK)
    return source


@contextmanager
def readable(name: str) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise DataError(f"{name}: not a whole gzip file ({problem}); pack it again, or name the plain text") from None
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise DataError(f"{problem.filename or name}: {reason}; name a text that can be read") from None


def refuse(problem: OSError) -> NoReturn:
    raise problem


def binary(block: bytes, place: int) -> str:
    """What is wrong with a text that has a zero byte."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"UTF-16, expected UTF-8; {convert('UTF-16')}"
    return f"not a text: byte {place:,} is zero; name a text file in UTF-8"


def foreign(problem: UnicodeDecodeError, start: int, lines: int) -> str:
    """What is wrong with bytes that are no UTF-8: `start` is the place of the first, `lines` their line."""
    sample = problem.object[problem.start : problem.start + 4096].decode("utf-8", "replace")
    if sample.count("\ufffd") > 0.3 * len(sample) and len(sample) > 64:
        return f"not a text: bytes from {start + problem.start:,} on are no characters; name a text file in UTF-8"
    line = lines + problem.object.count(b"\n", 0, problem.start)
    wrong = f"byte 0x{problem.object[problem.start]:02X} at {start + problem.start:,}"
    return f"not UTF-8: {wrong} (line {line:,}); if it is Latin-1, {convert('LATIN1')}"


def convert(encoding: str) -> str:
    return f"convert it with: iconv -f {encoding} -t UTF-8 OLD > NEW"
