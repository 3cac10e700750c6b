"""Parquet reader: a batch of rows in memory at a time, after the sizes in the headers are checked.

    "PAR1"   pages: a header (count of values, unpacked bytes), then the bytes   ...   footer   "PAR1"

A small file may expand to millions of values (dictionaries, run lengths, prefixes), so headers are read first: the
unpacked size of pages, the possible size of lists and values. Headers use Thrift's compact protocol (Apache Parquet
format, 2013).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any

from regard.config.errors import ConfigError, DataError
from regard.data.records import BadRecordPolicy, Record
from regard.files import content_cache
from regard.files.compression import readable_errors, require_package
from regard.files.size_limits import check_bytes, max_bytes

AT_ONCE = 1024  # rows in memory
SHARE = 8  # a batch's values may take one part in so many of the memory: each exists in several copies
VALUE, LISTED, OBJECT = 8, 32, 48  # bytes: of a decoded value, of one in a list with its levels, of an object
HEADER, FOOTER = 1 << 16, 64 << 20  # most bytes of a page header, and of the footer
MOST_NODES, DEEPEST = 10_000, 50  # limits of the column tree
PREFIXES = 7  # the delta encodings, from this number on
BYTES, FIXED = 6, 7  # column types of strings
STRUCT, LISTS = 12, (9, 10)


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file, read in batches of rows."""

    name: str
    path: Path

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        with readable_errors(self.name), self.path.open("rb") as file:
            return content_cache.content_key(["parquet", hashlib.file_digest(file, "sha256").hexdigest()])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        arrow = require_package("pyarrow.parquet", f"{self.name}: a Parquet file", "or save it as .jsonl")
        try:
            with readable_errors(self.name), self.path.open("rb") as raw:
                facts = read_footer(raw, self.path.stat().st_size)
                size, texts = check_parquet_sizes(facts, raw, self.path, self.name)
            with arrow.ParquetFile(self.path, read_dictionary=texts) as file:
                batches = file.iter_batches(size)
                for number, row in enumerate(
                    chain.from_iterable(batch_rows(b, self.path, self.name) for b in batches), 1
                ):
                    yield Record(row, f"{self.name}:{number}")
        except (DataError, ConfigError):
            raise
        except Exception as problem:  # pyarrow raises many types of errors, also unrelated ones
            reason = (str(problem).partition("\n")[0] or type(problem).__name__).rstrip(".")
            raise DataError(f"{self.name}: not a whole Parquet file ({reason:.300}); write it again") from None


# ---------------------------------------------------------------- sizes


def check_parquet_sizes(facts: dict[int, Any], file: IO[bytes], path: Path, name: str) -> tuple[int, list[str]]:
    """Check memory limits; returns the number of rows to read at once, and the columns to read as dictionary indices.

    Numbers are field ids of the format: a file has row groups (4), those have columns (1) and rows (3), a column has
    metadata (3): type (1), encodings (2), path (3), number of values (5), ...
    """
    groups = [group for group in list_or_empty(facts.get(4)) if isinstance(group, dict)]
    check_bytes(VALUE * sum(header_count(group, 3) for group in groups), name, path)
    longest, texts = 1, set[str]()
    for group in groups:
        held = 0
        for column in (each.get(3) for each in list_or_empty(group.get(1)) if isinstance(each, dict)):
            if not isinstance(column, dict):
                raise ValueError("a column without a header")
            steps = [step for step in list_or_empty(column.get(3)) if isinstance(step, bytes)]
            values, page, dictionary = page_sizes(file, column)
            held += page + dictionary + (LISTED * values if len(steps) > 1 else 0)
            check_bytes(held, name, path)
            if header_count(column, 1) in (BYTES, FIXED):
                texts |= {b".".join(steps).decode()} if header_count(column, 1) == BYTES else set()
                longest = max(longest, dictionary)
            if PREFIXES in list_or_empty(column.get(2)):
                longest = max(longest, page)
                check_bytes(page * values if len(steps) > 1 else 0, name, path)
    return min(AT_ONCE, max(1, max_bytes(path) // SHARE // longest)), sorted(texts)


def list_or_empty(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def page_sizes(file: IO[bytes], column: dict[int, Any]) -> tuple[int, int, int]:
    """The number of values in a column's pages, and the bytes of its largest page and of its dictionary."""
    starts = [header_count(column, place) for place in (9, 11) if column.get(place)]
    at, end = min(starts, default=0), min(starts, default=0) + header_count(column, 7)
    values, many, page, dictionary = 0, header_count(column, 5), 0, 0
    while at < end and values < many:
        file.seek(at)
        raw = file.read(HEADER)
        head, length = parse_thrift_struct(raw, 0)
        unpacked, packed = header_count(head, 2), header_count(head, 3)
        for place in (5, 8):
            values += header_count(head[place], 1) if isinstance(head.get(place), dict) else 0
        if isinstance(head.get(7), dict):
            dictionary = max(dictionary, unpacked, VALUE * header_count(head[7], 1))
        page = max(page, unpacked)
        at += length + packed
    return max(values, many), page, dictionary


def read_footer(file: IO[bytes], size: int) -> dict[int, Any]:
    """Parse the footer, the file's metadata, and check it: pyarrow would abort the process on some invalid ones."""
    file.seek(max(0, size - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if len(tail) < 8 or tail[4:] != b"PAR1" or length > size - 8:
        raise ValueError("its end is not that of one")
    if length > FOOTER:
        raise ValueError(f"a footer of {length:,} bytes")
    file.seek(size - 8 - length)
    facts, _ = parse_thrift_struct(file.read(length), 0)
    check_parquet_schema(list_or_empty(facts.get(2)))
    return facts


def check_parquet_schema(nodes: list[Any]) -> None:
    """Refuse a column tree that is too deep: pyarrow would overflow the stack."""
    left: list[int] = []  # remaining children of each open node
    for node in nodes:
        while left and not left[-1]:
            left.pop()
        if left:
            left[-1] -= 1
        left.append(header_count(node, 5) if isinstance(node, dict) and 5 in node else 0)
        if len(left) > DEEPEST:
            raise ValueError(f"columns nested more than {DEEPEST} deep")


# ---------------------------------------------------------------- rows


def batch_rows(batch: Any, path: Path, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a batch as Python objects: all at once if small, else one at a time after a size check."""
    if expanded_bytes(batch) <= max_bytes(path) // SHARE:
        yield from batch.to_pylist()
        return
    for place in range(batch.num_rows):
        one = batch.slice(place, 1)
        check_bytes(expanded_bytes(one), name, path)
        yield from one.to_pylist()


def expanded_bytes(batch: Any) -> int:
    return sum(array_bytes(column) for column in batch.columns)


def array_bytes(array: Any) -> int:
    """The bytes of an array as Python objects; dictionary values count at each use."""
    pa, pc = import_module("pyarrow"), import_module("pyarrow.compute")
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0) + OBJECT * len(array)
    if pa.types.is_struct(kind):
        return OBJECT * len(array) + sum(array_bytes(each) for each in array.flatten())
    if pa.types.is_nested(kind) and hasattr(array, "flatten"):
        return OBJECT * len(array) + array_bytes(array.flatten())
    return max(int(array.nbytes), OBJECT * len(array))


# ---------------------------------------------------------------- Thrift, compact


def parse_thrift_struct(raw: bytes, at: int, deep: int = 0) -> tuple[dict[int, Any], int]:
    """Parse a Thrift struct: fields by id, and the end offset."""
    found: dict[int, Any] = {}
    last = 0
    while kind := raw[at : at + 1]:
        at += 1
        if kind == b"\0":
            return found, at
        step, what = kind[0] >> 4, kind[0] & 15
        if step:
            last += step
        else:
            last, at = parse_signed(raw, at)
        if what in (1, 2):
            found[last] = what == 1
        else:
            found[last], at = parse_thrift_value(raw, at, what, deep)
    raise ValueError("a header ends before its end")


def parse_thrift_value(raw: bytes, at: int, kind: int, deep: int) -> tuple[Any, int]:
    if deep > 8:
        raise ValueError("headers nested too deeply")
    if kind in (1, 2, 3):
        return None, at + 1
    if kind in (4, 5, 6):
        return parse_signed(raw, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = parse_varint(raw, at)
        if length > len(raw) - at:
            raise ValueError("a header ends within a text")
        return raw[at : at + length], at + length
    if kind in LISTS and at < len(raw):
        size, inner = raw[at] >> 4, raw[at] & 15
        size, at = parse_varint(raw, at + 1) if size == 15 else (size, at + 1)
        if size > MOST_NODES:
            raise ValueError(f"a list of {size:,} in a header")
        made = []
        for _ in range(size):
            each, at = parse_thrift_value(raw, at, inner, deep + 1)
            made.append(each)
        return made, at
    if kind == STRUCT:
        return parse_thrift_struct(raw, at, deep + 1)
    raise ValueError(f"a field of kind {kind} in a header")


def parse_varint(raw: bytes, at: int) -> tuple[int, int]:
    found = 0
    for place in range(10):
        if at + place >= len(raw):
            break
        found |= (raw[at + place] & 127) << 7 * place
        if raw[at + place] < 128:
            return found, at + place + 1
    raise ValueError("a header ends within a number")


def parse_signed(raw: bytes, at: int) -> tuple[int, int]:
    found, at = parse_varint(raw, at)
    return (found >> 1) ^ -(found & 1), at


def header_count(head: dict[int, Any], place: int) -> int:
    """A non-negative count in a header."""
    found = head.get(place, 0)
    if type(found) is not int or found < 0:
        raise ValueError(f"{found!r:.40} in a header, where a count should be")
    return found
