"""What verbs are asked about: texts on the command line, or those of a file; and how far they are."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import faint, in_specials, spoken, text_in

File = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Texts from a file, a line each, or the column text of its records (.jsonl, "
                 ".csv, ...); - is standard input."),
]  # fmt: skip
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="One text or more; - reads standard input.")]
Lines = Annotated[bool, typer.Option("--json", help="A JSON object a line, for scripts.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A run, a checkpoint, a Hugging Face folder or id.")]


def texts(words: Sequence[str] | None, file: str | None, name: str = "TEXT") -> list[Any]:
    """A record for each text: what is said of it in the column "text", and what to call it in `where`."""
    from regard.data import Record

    if bool(words) == (file is not None):
        what = f"there is --file {file} as well" if words else "there is none"
        raise config.ConfigError(f"{name}: {what}; give {name} or --file FILE, one of the two")
    if file is not None or words == ["-"]:
        return filed(file or "-")
    many = len(words or []) > 1
    return [checked(Record({"text": spoken(text, name)}, f"{name} {place}" if many else name))
            for place, text in enumerate(words or [], 1)]  # fmt: skip


def filed(place: str, column: str = "text") -> list[Any]:
    """The lines of a text, none of which may be empty, or the records of what holds records."""
    from regard.data import Record, Tally, tables
    from regard.data.packing import format_of
    from regard.data.sources import RECORDS

    if format_of(place) in RECORDS:
        found = [record for table in tables((place,)) for record in table.records(Tally())]
    else:
        name = "standard input" if place == "-" else place
        lines = text_in(place).removesuffix("\n").split("\n")
        found = [Record({column: line.rstrip("\r")}, f"{name}: line {number}") for number, line in enumerate(lines, 1)]
    if not found:
        raise config.DataError(f"{place}: holds no texts; name another file")
    return [checked(record, column) for record in found]


def checked(record: Any, column: str = "text") -> Any:
    text = record[column]
    if not isinstance(text, str) or not text.strip():
        what = "is empty" if isinstance(text, str) else "is no text"
        raise config.DataError(f"{record.where}: {text!r} {what}; give it some words, or leave it out")
    return record


@contextmanager
def loaded(path: str, weights: str = "auto", specials: str = "parse") -> Iterator[Any]:
    """The model of a folder; what cannot be asked of it is told with its name."""
    from regard.generate.opening import load

    model = load(path, weights=weights, specials=in_specials(specials))
    try:
        yield model
    except config.ConfigError as problem:
        raise config.ConfigError(f"{path}: {problem}") from None
    except config.DataError as problem:
        of_model = str(problem).startswith(("this model", "the tokenizer"))
        raise config.DataError(f"{path}: {problem}" if of_model else str(problem)) from None


@contextmanager
def watched(total: int) -> Iterator[Callable[[int], None]]:
    """How much is done, in a line of stderr that moves; only where that is a terminal, and there is some waiting."""
    last, shown = time.monotonic(), 0

    def told(done: int) -> None:
        nonlocal last, shown
        if sys.stderr.isatty() and time.monotonic() - last >= 0.25:
            last, line = time.monotonic(), f"{done:,} of {total:,}"
            print(f"\r{faint(line)}", end="", file=sys.stderr, flush=True)
            shown = len(line)

    try:
        yield told
    finally:
        if shown:
            print("\r" + " " * shown + "\r", end="", file=sys.stderr, flush=True)


def brief(text: str, size: int = 48) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size else f"{line[: size - 1]}…"
