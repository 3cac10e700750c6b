"""Reading the columns of a record: what was expected, what stood there, and where."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.config import DataError
from regard.config.names import did_you_mean
from regard.text import Tokenizer

Record = Mapping[str, Any]  # column name -> str, number or list; `where` may say "file:line"


def place(record: Record) -> str:
    return str(getattr(record, "where", "") or "a record")


def column(record: Record, name: str) -> Any:
    if name not in record:
        there = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{place(record)}: no column {name!r}{did_you_mean(name, list(record))} "
                        f"the columns are {there}, so name one of them in task")  # fmt: skip
    return record[name]


def text(record: Record, name: str) -> str:
    """A text; numbers are texts to some readers of files."""
    found = column(record, name)
    said = str(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else ""
    if not said.strip():
        raise wrong(record, name, found, "a text")
    return said


def ids(record: Record, name: str, tokenizer: Tokenizer) -> list[int]:
    """A text in numbers, at least one."""
    return encoded(record, name, text(record, name), tokenizer)


def encoded(record: Record, name: str, said: str, tokenizer: Tokenizer) -> list[int]:
    try:
        found = tokenizer.encode(said)
    except DataError as problem:
        raise DataError(f"{place(record)}: column {name!r}: {problem}") from None
    if not found:
        raise wrong(record, name, said, "a text that this tokenizer can say")
    return found


def number(record: Record, name: str) -> float:
    found = column(record, name)
    try:
        value = float(found)
    except (TypeError, ValueError):
        raise wrong(record, name, found, "a number") from None
    if not math.isfinite(value):
        raise wrong(record, name, found, "a finite number")
    return value


def texts(record: Record, name: str, split: str | None = None) -> list[str]:
    """A list of texts, or one string of them: words between spaces, or lines (split = a line break)."""
    found = column(record, name)
    if isinstance(found, str):
        found = found.split(split)
    if not isinstance(found, list | tuple) or not all(isinstance(part, str | int | float) for part in found):
        raise wrong(record, name, found, "a list of texts, or one string")
    some = [part for part in map(str, found) if part.strip()]
    if not some:
        raise wrong(record, name, column(record, name), "at least one text")
    return some


def label(record: Record, name: str) -> str:
    """The name of a class; numbers and truths are names too, and nothing is none."""
    found = column(record, name)
    if not isinstance(found, str | int | float) or not str(found).strip():
        raise wrong(record, name, found, "a label: a word or a number")
    return str(found)


def chosen(record: Record, name: str, label: Any, classes: Sequence[str]) -> int:
    """The number of a label: by its name, or by the number itself where classes have other names."""
    if str(label) in classes:
        return classes.index(str(label))
    if not any(name.isdigit() for name in classes) and str(label).isdecimal() and len(str(label)) < 19 and int(
            label) < len(classes):
        return int(label)
    shown = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
    raise DataError(f"{place(record)}: label {label!r} in column {name!r} is none of the {len(classes)} classes "
                    f"({shown}); mend the label, or name it in task.classes, or pass it over by "
                    "data.bad=skip")  # fmt: skip


def wrong(record: Record, name: str, found: Any, expected: str) -> DataError:
    shown = repr(found) if len(repr(found)) < 60 else repr(found)[:57] + "..."
    return DataError(f"{place(record)}: column {name!r} holds {shown}; expected {expected}")
