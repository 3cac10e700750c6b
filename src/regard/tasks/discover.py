"""What the training data tell about a task: its classes, where nobody named them, and the columns with words."""

from collections.abc import Iterable
from dataclasses import replace

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


def discovered(c: config.Task, training: Iterable[Record]) -> config.Task:
    """The setting with its classes filled in: numbers by size, names by letter; itself if it needs none."""
    if not isinstance(c, config.Classify | config.Tag) or c.classes:
        return c
    name = c.labels if isinstance(c, config.Tag) else c.label
    found = {label for record in training for label in labels(c, record)}
    if len(found) < 2:
        raise DataError(f"column {name!r} names {len(found)} class{'es' * (not found)}; expected two or more")
    numbers = all(label.isdecimal() for label in found)
    return replace(c, classes=tuple(sorted(found, key=int) if numbers else sorted(found)))


def labels(c: config.Classify | config.Tag, record: Record) -> list[str]:
    if isinstance(c, config.Tag):
        return records.texts(record, c.labels)
    return [str(records.column(record, c.label))]
