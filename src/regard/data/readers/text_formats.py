"""Formats: how the files of each name hold records.

    .jsonl .ndjson   an object a line                       .csv   a header, then rows; quotes as in RFC 4180
    .json            the same, or a list of objects         .tsv   a header, then rows; a quote is a character
    .txt .md ...     a line is a record of one column

A new format is a function that yields Records, entered here.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from regard import config
from regard.config import DataError
from regard.data import store
from regard.data.packing import format_of
from regard.data.records import LONGEST, File, Record, Tally, all_lines, lines

Reader = Callable[[File, config.Data, Tally], Iterator[Record]]


def json_lines(file: File, how: config.Data, tally: Tally) -> Iterator[Record]:
    for number, line in lines(file, tally):
        if line.strip():
            found = value_in(line, f"{file.name}:{number}")
            if isinstance(found, Record):
                yield found
            else:
                tally.bad(found)


def value_in(line: str, where: str) -> Record | DataError:
    try:
        found = json.loads(line)
    except RecursionError:
        return DataError(f"{where}: JSON nested too deeply; a record is an object of columns")
    except ValueError as problem:
        return DataError(f"{where}: not JSON ({problem}); expected an object a line, such as {{\"text\": \"...\"}}")
    if not isinstance(found, dict):
        return DataError(f"{where}: {type(found).__name__} {line.strip()[:40]!r}, expected a JSON object of columns")
    return Record(found, where)


def json_values(file: File, how: config.Data, tally: Tally) -> Iterator[Record]:
    """A list of objects, or an object a line: what the first character says."""
    first = next((part.lstrip()[:1] for part in file.parts() if part.strip()), "")
    return listed(file) if first == "[" else json_lines(file, how, tally)


def listed(file: File) -> Iterator[Record]:
    """The objects of a JSON list one at a time. After a wrong one nothing is certain, so none is passed over."""
    decoder, held, line, due = json.JSONDecoder(), "", 1, "["
    for part in file.parts():
        held, at = held + part, 0
        while (begin := held.find("{", at)) >= 0 and held[at:begin].strip() == due:
            try:
                found, end = decoder.raw_decode(held, begin)
            except (ValueError, RecursionError):
                break  # not whole yet, or wrong: which it is, the end of the file will tell
            line += held.count("\n", at, begin)
            yield Record(found, f"{file.name}:{line}")
            line, at, due = line + held.count("\n", begin, end), end, ","
        held = held[at:]
        if len(held) > LONGEST:
            break
    if "".join(held.split()) != ("[]" if due == "[" else "]"):
        rest = held.lstrip("[, \t\r\n")
        line += held.count("\n", 0, len(held) - len(rest))
        raise DataError(f"{file.name}:{line}: not JSON from {rest[:40]!r} on; expected a list of objects of columns")


def comma(file: File, how: config.Data, tally: Tally) -> Iterator[Record]:
    return named(file, separated(file, tally, ","), how.columns, tally)


def tab(file: File, how: config.Data, tally: Tally) -> Iterator[Record]:
    """Quotes are characters, unless somebody quoted every field of the first line, or doubled the quotes in one."""
    _, first = next(all_lines(file), (1, ""))
    fields = str(first).strip("\r\n").split("\t")
    everything = all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)
    plain = ((number, [unquoted(field) for field in line.rstrip("\r\n").split("\t")])
             for number, line in lines(file, tally) if line.strip("\r\n"))  # fmt: skip
    return named(file, separated(file, tally, "\t") if everything else plain, how.columns, tally)


def unquoted(field: str) -> str:
    """`"He said ""no""."` is how csv writers say `He said "no".`; hardly anybody else says that."""
    inner = field[1:-1]
    framed = len(field) > 4 and field[0] == field[-1] == '"' and '""' in inner
    return inner.replace('""', '"') if framed and '"' not in inner.replace('""', "") else field


def separated(file: File, tally: Tally, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Rows as csv writes them: a field in quotes may hold the mark, doubled quotes and line ends."""
    last = 0

    def fed() -> Iterator[str]:
        nonlocal last
        for number, line in lines(file, tally):
            last = number
            yield line

    csv.field_size_limit(LONGEST)  # of the whole process, and too low for long documents
    reader = csv.reader(fed(), delimiter=mark, strict=True)
    while True:
        before = reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            begun = last - (reader.line_num - before) + 1
            tally.bad(DataError(f"{file.name}:{begun}: {problem}; expected fields as csv has them, quotes closed"))
            continue
        if row:
            yield last - (reader.line_num - before) + 1, row


def named(
    file: File, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], tally: Tally
) -> Iterator[Record]:  # fmt: skip
    """Rows under the names of the first line, or under those given; a first line of these very names is no row."""
    names = list(columns)
    for place, (number, row) in enumerate(rows):
        if place == 0 and row == (names or row):
            names = row
            if len(set(names)) < len(names):
                raise DataError(f"{file.name}:{number}: two columns have the same name in {', '.join(names)}; name "
                                "them apart, or by data.columns")  # fmt: skip
        elif len(row) != len(names):
            tally.bad(DataError(f"{file.name}:{number}: {len(row)} fields, expected {len(names)} ({', '.join(names)})"))
        else:
            yield Record(dict(zip(names, row, strict=True)), f"{file.name}:{number}")


def text_lines(file: File, how: config.Data, tally: Tally) -> Iterator[Record]:
    """A line is a record; with data.documents, lines up to an empty one are, as a list."""
    held: list[str] = []
    begun = 0
    for number, line in lines(file, tally):
        line = line.rstrip("\r\n")
        if line.strip() and not how.documents:
            yield Record({how.column: line}, f"{file.name}:{number}")
        elif line.strip():
            begun = begun if held else number
            held.append(line)
        elif held:
            yield Record({how.column: held}, f"{file.name}:{begun}")
            held = []
    if held:
        yield Record({how.column: held}, f"{file.name}:{begun}")


FORMATS: dict[str, tuple[Reader, tuple[str, ...]]] = {  # how to read it, and the settings it heeds
    ".jsonl": (json_lines, ()), ".ndjson": (json_lines, ()), ".json": (json_values, ()),
    ".csv": (comma, ("columns",)), ".tsv": (tab, ("columns",)),
}  # fmt: skip
LINES: tuple[Reader, tuple[str, ...]] = (text_lines, ("column", "documents"))  # any other name


@dataclass(frozen=True)
class Filed:
    """The records of a file, in the format of its name."""

    file: File
    how: config.Data

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def heeds(self) -> dict[str, Any]:
        return {name: getattr(self.how, name) for name in FORMATS.get(format_of(self.name), LINES)[1]}

    @cached_property
    def digest(self) -> str:
        return store.key([format_of(self.name), self.file.digest, self.heeds])

    def records(self, tally: Tally) -> Iterator[Record]:
        return FORMATS.get(format_of(self.name), LINES)[0](self.file, self.how, tally)


@dataclass(frozen=True)
class Parallel:
    """Files whose lines belong together, the first with the first."""

    files: Sequence[File]
    columns: Sequence[str]

    @property
    def name(self) -> str:
        return " + ".join(file.name for file in self.files)

    @property
    def heeds(self) -> dict[str, Any]:
        return {"columns": self.columns}

    @cached_property
    def digest(self) -> str:
        return store.key(["parallel", [file.digest for file in self.files], list(self.columns)])

    def records(self, tally: Tally) -> Iterator[Record]:
        for number, row in enumerate(zip_longest(*map(all_lines, self.files)), 1):
            if None in row:
                raise DataError(f"{self.name}: {self.counted()} lines, and each line belongs to one of the other file; "
                                "give files of the same length")  # fmt: skip
            bad = [line for _, line in row if isinstance(line, DataError)]
            if bad:
                tally.bad(bad[0])
            else:
                said = (str(line).rstrip("\r\n") for _, line in row)
                yield Record(dict(zip(self.columns, said, strict=True)), f"{self.files[0].name}:{number}")

    def counted(self) -> str:
        return " and ".join(f"{sum(1 for _ in all_lines(file)):,}" for file in self.files)
