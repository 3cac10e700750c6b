"""Records: what a file holds a line or a row at a time, as columns by name; and what to do about a bad one.

    {"en": "Go.", "fr": "Va !"}        en,fr          Record(en="Go.", fr="Va !")   .where == "pairs.csv:2"
                                       Go.,Va !

Records stream: one is in memory at a time, however long the file.
"""

import codecs
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import IO, Any, Literal, Protocol

from regard.config import DataError
from regard.data.packing import readable
from regard.data.utf8 import convert

LONGEST = 1 << 26  # bytes: a longer line is nothing to learn from, and a file without line ends would fill the memory


class Record(dict[str, Any]):
    """Columns by name, and where they stood. A column that is not there is a sentence."""

    def __init__(self, columns: dict[str, Any], where: str) -> None:
        super().__init__(columns)
        self.where = where

    def __missing__(self, name: str) -> Any:
        raise DataError(f"{self.where}: no column {name!r}; there are {', '.join(map(str, self)) or 'none'}, so name "
                        "one of them in data.column or task")  # fmt: skip


class Tally:
    """Meets bad records: the first stops everything, or all are passed over and counted."""

    def __init__(self, bad: Literal["stop", "skip"] = "stop") -> None:
        self.way, self.count, self.first = bad, 0, ""

    @classmethod
    def of(cls, sources: Iterable[Any]) -> "Tally":
        """As the sources say; a plain text says nothing."""
        return cls("skip" if any(getattr(source, "bad", "stop") == "skip" for source in sources) else "stop")

    def bad(self, problem: DataError) -> None:
        if self.way == "stop":
            raise problem
        self.count, self.first = self.count + 1, self.first or str(problem)

    @property
    def told(self) -> str:
        """What was passed over, in a sentence; nothing where nothing was."""
        bad = "1 bad record was" if self.count == 1 else f"{self.count:,} bad records were"
        return f"{bad} passed over (data.bad is skip), the first: {self.first}" if self.count else ""


class File(Protocol):
    """A file that can be read more than once, unpacked; `digest` is of what is read."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def open(self) -> AbstractContextManager[IO[bytes]]: ...
    def parts(self) -> Iterator[str]: ...


class Table(Protocol):
    """A source of records; `digest` tells what is read from it from anything else."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def heeds(self) -> dict[str, Any]:
        """The settings of `data` that change what is read."""
        ...

    def records(self, tally: Tally) -> Iterator[Record]: ...


def lines(file: File, tally: Tally) -> Iterator[tuple[int, str]]:
    """The good lines of a file with their numbers."""
    for number, line in all_lines(file):
        if isinstance(line, DataError):
            tally.bad(line)
        else:
            yield number, line


def all_lines(file: File) -> Iterator[tuple[int, str | DataError]]:
    """Every line with its number; one that cannot be read is what is wrong with it. Line ends stay."""
    with readable(file.name), file.open() as opened:
        number = 0
        while raw := opened.readline(LONGEST):
            number += 1
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            whole = raw.endswith(b"\n") or len(raw) < LONGEST
            yield number, decoded(raw, f"{file.name}:{number}") if whole else too_long(opened, f"{file.name}:{number}")


def decoded(raw: bytes, where: str) -> str | DataError:
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        wrong = f"byte 0x{raw[problem.start]:02X} at {problem.start:,} of the line"
        return DataError(f"{where}: not UTF-8: {wrong}; if the file is Latin-1, {convert('LATIN1')}")


def too_long(opened: IO[bytes], where: str) -> DataError:
    """Reads on to the end of the line."""
    while (raw := opened.readline(LONGEST)) and not raw.endswith(b"\n"):
        pass
    return DataError(f"{where}: a line of more than {LONGEST >> 20} MiB; break it into several records")
