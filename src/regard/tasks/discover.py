"""The classes of a task, where nobody named them: those that the training data has."""

from collections.abc import Iterable
from dataclasses import replace

from regard import config
from regard.config import DataError
from regard.tasks import records
from regard.tasks.records import Record


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
