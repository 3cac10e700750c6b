"""Text arguments of the verbs: from the command line, a file or stdin; opening a model; and progress."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import typer

from regard import config
from regard.cli.bad_lines import BadLines, line_number
from regard.cli.output import check_specials_option, check_surrogates, dim, read_input_bytes

FileOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Texts from a file, a line each, or the column text of its records (.jsonl, "
                 ".csv, ...); - is standard input."),
]  # fmt: skip
TextArguments = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="One text or more; - reads standard input.")
]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="A JSON object a line, for scripts.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run, a checkpoint, a Hugging Face folder or id.")
]


def text_records(words: Sequence[str] | None, file: str | None, name: str = "TEXT") -> list[Any]:
    """A record for each text, in the column "text", with its name in `where`."""
    from regard.data.records import Record

    if bool(words) == (file is not None):
        what = f"there is --file {file} as well" if words else "there is none"
        raise config.ConfigError(f"{name}: {what}; give {name} or --file FILE, one of the two")
    if file is not None or words == ["-"]:
        return records_of_file(file or "-")
    many = len(words or []) > 1
    return [check_text(Record({"text": check_surrogates(text, name)}, f"{name} {place}" if many else name))
            for place, text in enumerate(words or [], 1)]  # fmt: skip


class TextBatch(NamedTuple):
    """Records with their line numbers, and the lines already known to be bad."""

    records: list[Any]
    lines: list[int]
    bad: BadLines

    @property
    def names(self) -> list[str]:
        return [record.where for record in self.records]

    @property
    def total(self) -> int:
        return len(set(self.lines) | self.bad.why.keys())

    @property
    def from_file(self) -> bool:
        return not self.bad.strict

    def line(self, line: int) -> dict[str, int]:
        """The JSON fields for a result's line number; none for texts on the command line."""
        return {"line": line} if self.from_file else {}


def read_text_batch(
    words: Sequence[str] | None, file: str | None, name: str = "TEXT", *, skip: bool = False
) -> TextBatch:
    """The texts on the command line, of which the first bad one raises, or those of a file, whose bad lines are
    recorded."""
    if not words and file is not None or words == ["-"] and file is None:
        return read_file_batch(file or "-", skip=skip)
    bad = BadLines(strict=True, skip=skip)
    found = text_records(words, file, name)
    return TextBatch(found, list(range(1, len(found) + 1)), bad)


def read_file_batch(place: str, *columns: str, skip: bool = False) -> TextBatch:
    """The lines of a text file, or the records of another format, with non-empty `columns`."""
    bad = BadLines(strict=False, skip=skip)
    found = list(readable_records(place, bad))
    if not found and not bad.why:
        raise config.DataError(f"{place}: holds no texts; name another file")
    good, lines = list[Any](), list[int]()
    for ordinal, record in enumerate(found, 1):
        line = line_number(record.where) or ordinal
        try:
            for column in columns or ("text",):
                check_text(record, column)
        except config.DataError as problem:
            bad.add(problem, line)
        else:
            good.append(record)
            lines.append(line)
    if not good:
        first, *others = (bad.why[line] for line in sorted(bad.why))
        raise config.DataError(f"{first}; none of the other {len(others):,} lines is better" if others else first)
    return TextBatch(good, lines, bad)


def readable_records(place: str, bad: BadLines) -> Iterator[Any]:
    """The readable records of a file; the others go to `bad`."""
    from regard.data.records import BadRecordPolicy, Record
    from regard.data.sources import RECORD_SUFFIXES, find_records
    from regard.files.compression import file_format

    class ListedBadRecords(BadRecordPolicy):
        def record_bad(self, problem: config.DataError) -> None:
            bad.add(problem)

    if file_format(place) in RECORD_SUFFIXES:
        for table in find_records((place,)):
            yield from table.records(ListedBadRecords())
        return
    name = "standard input" if place == "-" else place
    for number, raw in enumerate(read_input_bytes(place).removesuffix(b"\n").split(b"\n"), 1):
        try:
            yield Record({"text": raw.decode("utf8").rstrip("\r")}, f"{name}: line {number}")
        except UnicodeDecodeError:
            remedy = "convert it, as with iconv -f latin1 -t utf8"
            bad.add(config.DataError(f"{name}: line {number} is not UTF-8; {remedy}"), number)


def records_of_file(place: str, column: str = "text") -> list[Any]:
    """The lines of a text file, none of which may be empty, or the records of another format."""
    found = read_file_batch(place, column)
    if found.bad.why:
        raise config.DataError(found.bad.why[min(found.bad.why)])
    return found.records


def check_text(record: Any, column: str = "text") -> Any:
    text = record[column]
    if not isinstance(text, str) or not text.strip():
        what = "is empty" if isinstance(text, str) else "is no text"
        raise config.DataError(f"{record.where}: {text!r} {what}; give it some words, or leave it out")
    return record


@contextmanager
def open_model(
    path: str, weights: str = "auto", dtype: str = "fp32", specials: str = "parse"
) -> Iterator[Any]:  # fmt: skip
    """Load the model in a folder; errors name it."""
    from regard.inference.load import load_for_inference

    model = load_for_inference(path, dtype=dtype, weights=weights, specials=check_specials_option(specials))
    try:
        yield model
    except config.ConfigError as problem:
        raise config.ConfigError(f"{path}: {problem}") from None
    except config.DataError as problem:
        of_model = str(problem).startswith(("this model", "the tokenizer"))
        raise config.DataError(f"{path}: {problem}" if of_model else str(problem)) from None


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[int], None]]:
    """Progress in a moving line on stderr, if that is a terminal and the work takes a while."""
    with show_moving_line() as show:
        yield lambda done: show(f"{done:,} of {total:,}")


@contextmanager
def show_rate(unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Progress with a rate per second; work before the first call is not counted."""
    first: tuple[int, float] | None = None

    def on_progress(done: int, total: int | None) -> None:
        nonlocal first
        first = first or (done, time.monotonic())
        passed = time.monotonic() - first[1]
        rate = f", {(done - first[0]) / passed:,.0f} a second" if passed > 0 else ""
        show(f"{done:,} {unit}{rate}" if total is None else f"{done:,} of {total:,} {unit}{rate}")

    with show_moving_line() as show:
        yield on_progress


@contextmanager
def show_moving_line() -> Iterator[Callable[[str], None]]:
    """A line on stderr that is rewritten at most four times a second, and erased at the end."""
    last, longest = time.monotonic(), 0

    def show(line: str) -> None:
        nonlocal last, longest
        if sys.stderr.isatty() and time.monotonic() - last >= 0.25:
            last, longest = time.monotonic(), max(longest, len(line))
            print(f"\r{dim(line.ljust(longest))}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if longest:
            print("\r" + " " * longest + "\r", end="", file=sys.stderr, flush=True)


def shorten(text: str, size: int = 48) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size else f"{line[: size - 1]}…"
