"""Records: what a file holds a line or a row at a time, as columns by name; the text column; the bad-record policy.

    {"en": "Go.", "fr": "Va !"}        en,fr          Record(en="Go.", fr="Va !")   .where == "pairs.csv:2"
                                       Go.,Va !

Records stream: one is in memory at a time, however long the file. Bytes that are no UTF-8 are explained with a remedy.
"""

import codecs
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, Literal, Protocol

from regard.config.errors import DataError
from regard.files import content_cache
from regard.files.compression import readable_errors

MAX_LINE_BYTES = (
    1 << 26
)  # bytes: a longer line is nothing to learn from, and a file without line ends would fill the memory


class Record(dict[str, Any]):
    """Columns by name, and where they stood. A column that is not there is a sentence."""

    def __init__(self, columns: dict[str, Any], where: str) -> None:
        super().__init__(columns)
        self.where = where

    def __missing__(self, name: str) -> Any:
        raise DataError(f"{self.where}: no column {name!r}; there are {', '.join(map(str, self)) or 'none'}, so name "
                        "one of them in data.text_column or task")  # fmt: skip


class BadRecordPolicy:
    """Meets bad records: the first stops everything, or all are passed over and counted."""

    def __init__(self, bad: Literal["error", "skip"] = "error") -> None:
        self.way, self.count, self.first = bad, 0, ""

    @classmethod
    def of(cls, sources: Iterable[Any]) -> "BadRecordPolicy":
        """As the sources say; a plain text says nothing."""
        return cls(
            "skip" if any(getattr(source, "on_bad_record", "error") == "skip" for source in sources) else "error"
        )

    def record_bad(self, problem: DataError) -> None:
        if self.way == "error":
            raise problem
        self.count, self.first = self.count + 1, self.first or str(problem)

    @property
    def summary(self) -> str:
        """What was passed over, in a sentence; nothing where nothing was."""
        bad = "1 bad record was" if self.count == 1 else f"{self.count:,} bad records were"
        return f"{bad} passed over (data.on_bad_record is skip), the first: {self.first}" if self.count else ""


class ReadableFile(Protocol):
    """A file that can be read more than once, unpacked; `digest` is of what is read."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def open(self) -> AbstractContextManager[IO[bytes]]: ...
    def parts(self) -> Iterator[str]: ...


class RecordSource(Protocol):
    """A source of records; `digest` tells what is read from it from anything else."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def settings_used(self) -> dict[str, Any]:
        """The settings of `data` that change what is read."""
        ...

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]: ...


def good_lines(file: ReadableFile, tally: BadRecordPolicy) -> Iterator[tuple[int, str]]:
    """The good lines of a file with their numbers."""
    for number, line in iterate_lines(file):
        if isinstance(line, DataError):
            tally.record_bad(line)
        else:
            yield number, line


def iterate_lines(file: ReadableFile) -> Iterator[tuple[int, str | DataError]]:
    """Every line with its number; one that cannot be read is what is wrong with it. Line ends stay."""
    with readable_errors(file.name), file.open() as opened:
        number = 0
        while raw := opened.readline(MAX_LINE_BYTES):
            number += 1
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            whole = raw.endswith(b"\n") or len(raw) < MAX_LINE_BYTES
            yield (
                number,
                decode_line(raw, f"{file.name}:{number}") if whole else line_too_long(opened, f"{file.name}:{number}"),
            )


def decode_line(raw: bytes, where: str) -> str | DataError:
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        wrong = f"byte 0x{raw[problem.start]:02X} at {problem.start:,} of the line"
        return DataError(f"{where}: not UTF-8: {wrong}; if the file is Latin-1, {suggest_conversion('LATIN1')}")


def line_too_long(opened: IO[bytes], where: str) -> DataError:
    """Reads on to the end of the line."""
    while (raw := opened.readline(MAX_LINE_BYTES)) and not raw.endswith(b"\n"):
        pass
    return DataError(f"{where}: a line of more than {MAX_LINE_BYTES >> 20} MiB; break it into several records")


@dataclass(frozen=True)
class Document:
    """One text, whole, and where it stood."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path

    def parts(self) -> Iterator[str]:
        yield self.text


@dataclass(frozen=True)
class TextColumn:
    """The texts in one column; those that are empty are left out."""

    table: RecordSource
    column: str
    on_bad_record: Literal["error", "skip"] = "error"

    @property
    def name(self) -> str:
        return self.table.name

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key([self.table.digest, self.column, self.on_bad_record])

    def documents(self, tally: BadRecordPolicy) -> Iterator[Document]:
        for record in self.table.records(tally):
            try:
                document = Document(record.where, text_of_record(record, self.column))
            except DataError as problem:
                tally.record_bad(problem)
            else:
                if document.text:
                    yield document


def text_of_record(record: Record, column: str) -> str:
    """A text, or words in a list."""
    found = record[column]
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return " ".join(found)
    if not isinstance(found, str):
        raise DataError(f"{record.where}: {column!r} is {found!r:.40} and no text; name one that is by "
                        "data.text_column or in task, or pass it over by data.on_bad_record=skip")  # fmt: skip
    return found


def explain_binary(block: bytes, place: int) -> str:
    """What is wrong with a text that has a zero byte."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"UTF-16, expected UTF-8; {suggest_conversion('UTF-16')}"
    return f"not a text: byte {place:,} is zero; name a text file in UTF-8"


def explain_encoding(problem: UnicodeDecodeError, start: int, lines: int) -> str:
    """What is wrong with bytes that are no UTF-8: `start` is the place of the first, `lines` their line."""
    sample = problem.object[problem.start : problem.start + 4096].decode("utf-8", "replace")
    if sample.count("\ufffd") > 0.3 * len(sample) and len(sample) > 64:
        return f"not a text: bytes from {start + problem.start:,} on are no characters; name a text file in UTF-8"
    line = lines + problem.object.count(b"\n", 0, problem.start)
    wrong = f"byte 0x{problem.object[problem.start]:02X} at {start + problem.start:,}"
    return f"not UTF-8: {wrong} (line {line:,}); if it is Latin-1, {suggest_conversion('LATIN1')}"


def suggest_conversion(encoding: str) -> str:
    return f"convert it with: iconv -f {encoding} -t UTF-8 OLD > NEW"
