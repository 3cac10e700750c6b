"""Records: the lines or rows of a file as columns by name; the text column; the bad-record policy.

    {"en": "Go.", "fr": "Va !"}        en,fr          Record(en="Go.", fr="Va !")   .where == "pairs.csv:2"
                                       Go.,Va !

Records are streamed: one at a time is in memory. Invalid UTF-8 raises an error that suggests a remedy.
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

MAX_LINE_BYTES = 1 << 26  # bytes: a longer line has no use, and a file without line ends would fill the memory


class Record(dict[str, Any]):
    """A record: columns by name, and its file and line. A missing column raises DataError."""

    def __init__(self, columns: dict[str, Any], where: str) -> None:
        super().__init__(columns)
        self.where = where

    def __missing__(self, name: str) -> Any:
        raise DataError(f"{self.where}: no column {name!r}; there are {', '.join(map(str, self)) or 'none'}, so name "
                        "one of them in data.text_column or task")  # fmt: skip


class BadRecordPolicy:
    """Bad-record policy: raise at the first bad record, or skip and count them."""

    def __init__(self, bad: Literal["error", "skip"] = "error") -> None:
        self.way, self.count, self.first = bad, 0, ""

    @classmethod
    def of(cls, sources: Iterable[Any]) -> "BadRecordPolicy":
        """The policy of the sources; plain texts have none."""
        return cls(
            "skip" if any(getattr(source, "on_bad_record", "error") == "skip" for source in sources) else "error"
        )

    def record_bad(self, problem: DataError) -> None:
        if self.way == "error":
            raise problem
        self.count, self.first = self.count + 1, self.first or str(problem)

    @property
    def summary(self) -> str:
        """A sentence about skipped records, or ""."""
        bad = "1 bad record was" if self.count == 1 else f"{self.count:,} bad records were"
        return f"{bad} skipped (data.on_bad_record=skip), the first: {self.first}" if self.count else ""


class ReadableFile(Protocol):
    """A decompressed file that can be read more than once; `digest` is of its contents."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def open(self) -> AbstractContextManager[IO[bytes]]: ...
    def parts(self) -> Iterator[str]: ...


class RecordSource(Protocol):
    """A source of records; `digest` identifies what is read from it."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def settings_used(self) -> dict[str, Any]:
        """The settings of `data` that affect reading."""
        ...

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]: ...


def good_lines(file: ReadableFile, tally: BadRecordPolicy) -> Iterator[tuple[int, str]]:
    """The valid lines of a file with their numbers."""
    for number, line in iterate_lines(file):
        if isinstance(line, DataError):
            tally.record_bad(line)
        else:
            yield number, line


def iterate_lines(file: ReadableFile) -> Iterator[tuple[int, str | DataError]]:
    """Every line with its number, newline included; an unreadable line is replaced by its error."""
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
    """The error for a long line, after reading to its end."""
    while (raw := opened.readline(MAX_LINE_BYTES)) and not raw.endswith(b"\n"):
        pass
    return DataError(f"{where}: a line of more than {MAX_LINE_BYTES >> 20} MiB; break it into several records")


@dataclass(frozen=True)
class Document:
    """A whole text and its source."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path

    def parts(self) -> Iterator[str]:
        yield self.text


@dataclass(frozen=True)
class TextColumn:
    """The non-empty texts in one column."""

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
    """The text of a column; a list of words is joined."""
    found = record[column]
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return " ".join(found)
    if not isinstance(found, str):
        raise DataError(f"{record.where}: {column!r} is {found!r:.40} and no text; name one that is by "
                        "data.text_column or in task, or skip it by data.on_bad_record=skip")  # fmt: skip
    return found


def explain_binary(block: bytes, place: int) -> str:
    """The error message for a text with a zero byte."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"UTF-16, expected UTF-8; {suggest_conversion('UTF-16')}"
    return f"not a text: byte {place:,} is zero; name a text file in UTF-8"


def explain_encoding(problem: UnicodeDecodeError, start: int, lines: int) -> str:
    """The error message for invalid UTF-8: `start` is the offset of the block, `lines` the number of its first line."""
    sample = problem.object[problem.start : problem.start + 4096].decode("utf-8", "replace")
    if sample.count("\ufffd") > 0.3 * len(sample) and len(sample) > 64:
        return f"not a text: bytes from {start + problem.start:,} on are no characters; name a text file in UTF-8"
    line = lines + problem.object.count(b"\n", 0, problem.start)
    wrong = f"byte 0x{problem.object[problem.start]:02X} at {start + problem.start:,}"
    return f"not UTF-8: {wrong} (line {line:,}); if it is Latin-1, {suggest_conversion('LATIN1')}"


def suggest_conversion(encoding: str) -> str:
    return f"convert it with: iconv -f {encoding} -t UTF-8 OLD > NEW"
