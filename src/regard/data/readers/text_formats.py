"""Text formats: how JSONL, JSON, CSV, TSV and plain text files hold records.

    .jsonl .ndjson   an object a line                       .csv   a header, then rows; quotes as in RFC 4180
    .json            the same, or a list of objects         .tsv   a header, then rows; a quote is a character
    .txt .md ...     a line is a record of one column

A new format is a function that yields Records, registered here.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from regard import config
from regard.config.errors import DataError
from regard.data.records import MAX_LINE_BYTES, BadRecordPolicy, ReadableFile, Record, good_lines, iterate_lines
from regard.files import content_cache
from regard.files.compression import file_format

Reader = Callable[[ReadableFile, config.Data, BadRecordPolicy], Iterator[Record]]


def read_json_lines(file: ReadableFile, settings: config.Data, tally: BadRecordPolicy) -> Iterator[Record]:
    for number, line in good_lines(file, tally):
        if line.strip():
            found = parse_json_record(line, f"{file.name}:{number}")
            if isinstance(found, Record):
                yield found
            else:
                tally.record_bad(found)


def parse_json_record(line: str, where: str) -> Record | DataError:
    try:
        found = json.loads(line)
    except RecursionError:
        return DataError(f"{where}: JSON nested too deeply; a record is an object of columns")
    except ValueError as problem:
        return DataError(f'{where}: not JSON ({problem}); expected an object a line, such as {{"text": "..."}}')
    if not isinstance(found, dict):
        return DataError(f"{where}: {type(found).__name__} {line.strip()[:40]!r}, expected a JSON object of columns")
    return Record(found, where)


def read_json(file: ReadableFile, settings: config.Data, tally: BadRecordPolicy) -> Iterator[Record]:
    """JSON or JSONL, depending on the first character: a list of objects, or an object on each line."""
    first = next((part.lstrip()[:1] for part in file.parts() if part.strip()), "")
    return iterate_json_list(file) if first == "[" else read_json_lines(file, settings, tally)


def iterate_json_list(file: ReadableFile) -> Iterator[Record]:
    """Iterate over a JSON list. After a syntax error the rest cannot be parsed, so no bad record is skipped."""
    decoder, held, line, due = json.JSONDecoder(), "", 1, "["
    for part in file.parts():
        held, at = held + part, 0
        while (begin := held.find("{", at)) >= 0 and held[at:begin].strip() == due:
            try:
                found, end = decoder.raw_decode(held, begin)
            except (ValueError, RecursionError):
                break  # incomplete or invalid: decided at the end of the file
            line += held.count("\n", at, begin)
            yield Record(found, f"{file.name}:{line}")
            line, at, due = line + held.count("\n", begin, end), end, ","
        held = held[at:]
        if len(held) > MAX_LINE_BYTES:
            break
    if "".join(held.split()) != ("[]" if due == "[" else "]"):
        rest = held.lstrip("[, \t\r\n")
        line += held.count("\n", 0, len(held) - len(rest))
        raise DataError(f"{file.name}:{line}: not JSON from {rest[:40]!r} on; expected a list of objects of columns")


def read_csv(file: ReadableFile, settings: config.Data, tally: BadRecordPolicy) -> Iterator[Record]:
    return name_columns(file, split_fields(file, tally, ","), settings.column_names, tally)


def read_tsv(file: ReadableFile, settings: config.Data, tally: BadRecordPolicy) -> Iterator[Record]:
    """TSV: quotes are characters, unless every field of the first line is quoted or one has doubled quotes."""
    _, first = next(iterate_lines(file), (1, ""))
    fields = str(first).strip("\r\n").split("\t")
    everything = all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)
    plain = ((number, [unquote_field(field) for field in line.rstrip("\r\n").split("\t")])
             for number, line in good_lines(file, tally) if line.strip("\r\n"))  # fmt: skip
    return name_columns(file, split_fields(file, tally, "\t") if everything else plain, settings.column_names, tally)


def unquote_field(field: str) -> str:
    """Unquote a field: csv writers write `He said "no".` as `"He said ""no""."`, which hardly any other text
    contains."""
    inner = field[1:-1]
    framed = len(field) > 4 and field[0] == field[-1] == '"' and '""' in inner
    return inner.replace('""', '"') if framed and '"' not in inner.replace('""', "") else field


def split_fields(file: ReadableFile, tally: BadRecordPolicy, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Split CSV rows: a quoted field may contain the delimiter, doubled quotes and newlines."""
    last = 0

    def numbered_lines() -> Iterator[str]:
        nonlocal last
        for number, line in good_lines(file, tally):
            last = number
            yield line

    csv.field_size_limit(MAX_LINE_BYTES)  # process-wide, and too low for long documents by default
    reader = csv.reader(numbered_lines(), delimiter=mark, strict=True)
    while True:
        before = reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            begun = last - (reader.line_num - before) + 1
            tally.record_bad(
                DataError(f"{file.name}:{begun}: {problem}; expected fields as csv has them, quotes closed")
            )
            continue
        if row:
            yield last - (reader.line_num - before) + 1, row


def name_columns(
    file: ReadableFile, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], tally: BadRecordPolicy
) -> Iterator[Record]:  # fmt: skip
    """Name the columns by the first line, or as configured; a first line of exactly these names is a header."""
    names = list(columns)
    for place, (number, row) in enumerate(rows):
        if place == 0 and row == (names or row):
            names = row
            if len(set(names)) < len(names):
                raise DataError(f"{file.name}:{number}: two columns have the same name in {', '.join(names)}; name "
                                "them apart, or by data.column_names")  # fmt: skip
        elif len(row) != len(names):
            tally.record_bad(
                DataError(f"{file.name}:{number}: {len(row)} fields, expected {len(names)} ({', '.join(names)})")
            )
        else:
            yield Record(dict(zip(names, row, strict=True)), f"{file.name}:{number}")


def read_text_lines(file: ReadableFile, settings: config.Data, tally: BadRecordPolicy) -> Iterator[Record]:
    """A record for each line; with data.blank_line_ends_document, for each group of lines up to an empty one, as a
    list."""
    held: list[str] = []
    begun = 0
    for number, line in good_lines(file, tally):
        line = line.rstrip("\r\n")
        if line.strip() and not settings.blank_line_ends_document:
            yield Record({settings.text_column: line}, f"{file.name}:{number}")
        elif line.strip():
            begun = begun if held else number
            held.append(line)
        elif held:
            yield Record({settings.text_column: held}, f"{file.name}:{begun}")
            held = []
    if held:
        yield Record({settings.text_column: held}, f"{file.name}:{begun}")


FORMATS: dict[str, tuple[Reader, tuple[str, ...]]] = {  # reader, and the settings that it uses
    ".jsonl": (read_json_lines, ()), ".ndjson": (read_json_lines, ()), ".json": (read_json, ()),
    ".csv": (read_csv, ("column_names",)), ".tsv": (read_tsv, ("column_names",)),
}  # fmt: skip
LINES: tuple[Reader, tuple[str, ...]] = (read_text_lines, ("text_column", "blank_line_ends_document"))  # others


@dataclass(frozen=True)
class RecordFile:
    """A file of records in the format of its suffix."""

    file: ReadableFile
    how: config.Data

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def settings_used(self) -> dict[str, Any]:
        return {name: getattr(self.how, name) for name in FORMATS.get(file_format(self.name), LINES)[1]}

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key([file_format(self.name), self.file.digest, self.settings_used])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        return FORMATS.get(file_format(self.name), LINES)[0](self.file, self.how, tally)


@dataclass(frozen=True)
class ParallelFiles:
    """Parallel files, joined line by line."""

    files: Sequence[ReadableFile]
    columns: Sequence[str]

    @property
    def name(self) -> str:
        return " + ".join(file.name for file in self.files)

    @property
    def settings_used(self) -> dict[str, Any]:
        return {"column_names": self.columns}

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key(["parallel", [file.digest for file in self.files], list(self.columns)])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        for number, row in enumerate(zip_longest(*map(iterate_lines, self.files)), 1):
            if None in row:
                raise DataError(f"{self.name}: {self.line_counts()} lines, and each line belongs to one of the other "
                                "file; give files of the same length")  # fmt: skip
            bad = [line for _, line in row if isinstance(line, DataError)]
            if bad:
                tally.record_bad(bad[0])
            else:
                said = (str(line).rstrip("\r\n") for _, line in row)
                yield Record(dict(zip(self.columns, said, strict=True)), f"{self.files[0].name}:{number}")

    def line_counts(self) -> str:
        return " and ".join(f"{sum(1 for _ in iterate_lines(file)):,}" for file in self.files)
