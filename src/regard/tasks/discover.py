"""What the training data tell about a task: its classes, where nobody named them, and the columns with words."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NoReturn

from regard import config
from regard.config import DataError
from regard.tasks import records
from regard.tasks.records import Record

WORDS = {"translate": ("source", "target"), "classify": ("text", "pair"), "regress": ("text", "pair"),
         "tag": ("words",), "answer": ("question", "context")}  # fmt: skip


def spoken(c: config.Task) -> tuple[str, ...]:
    """The columns whose words a tokenizer must know."""
    said = (getattr(c, name) for name in WORDS.get(c.kind, ("text",)))
    return tuple(column for column in said if column is not None)


def stop(problem: DataError) -> NoReturn:
    raise problem


def discovered(
    c: config.Task, training: Iterable[Record], bad: Callable[[DataError], object] = stop
) -> config.Task:  # fmt: skip
    """The setting with its classes filled in: numbers by size, names by letter; itself if it needs none.

    `bad` hears of records without a label: the first one stops, or they are passed over.
    """
    if not isinstance(c, config.Classify | config.Tag) or c.classes:
        return c
    name = c.labels if isinstance(c, config.Tag) else c.label
    found = {label: records.place(record) for record in training for label in labels(c, record, bad)}
    if len(found) < 2:
        upto = "".join(f"{label!r} up to {place}, " for label, place in found.items())
        raise DataError(f"column {name!r} names {len(found)} class{'es' * (not found)}; {upto}expected two or more, so "
                        "name another column in task, or the classes in task.classes")  # fmt: skip
    numbers = all(label.isdecimal() for label in found)
    return replace(c, classes=tuple(sorted(found, key=int) if numbers else sorted(found)))


def labels(
    c: config.Classify | config.Tag, record: Record, bad: Callable[[DataError], object]
) -> Iterator[str]:  # fmt: skip
    try:
        yield from records.texts(record, c.labels) if isinstance(c, config.Tag) else [records.label(record, c.label)]
    except DataError as problem:
        bad(problem)
