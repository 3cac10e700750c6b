"""Record columns read and checked by a task, and its classes found in the training data where none are configured.

An error names the expected column, the columns found, and the place of the record.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from regard import config
from regard.config.errors import ConfigError, DataError, did_you_mean
from regard.inputs.processors import Processor
from regard.text.tokenizer import Tokenizer

RecordLike = Mapping[str, Any]  # column name -> str, number or list; `where` may be "file:line"


def record_place(record: RecordLike) -> str:
    return str(getattr(record, "where", "") or "a record")


def get_column(record: RecordLike, name: str) -> Any:
    if name not in record:
        there = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{record_place(record)}: no column {name!r}{did_you_mean(name, list(record))} "
                        f"the columns are {there}, so name one of them in task")  # fmt: skip
    return record[name]


def get_text(record: RecordLike, name: str) -> str:
    """A text; some file readers return numbers for it."""
    found = get_column(record, name)
    said = str(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else ""
    if not said.strip():
        raise column_error(record, name, found, "a text")
    return said


def get_ids(record: RecordLike, name: str, tokenizer: Tokenizer) -> list[int]:
    """The token ids of a text, at least one."""
    return encode_column(record, name, get_text(record, name), tokenizer)


def encode_column(record: RecordLike, name: str, text: str, tokenizer: Tokenizer) -> list[int]:
    try:
        found = tokenizer.encode(text)
    except DataError as problem:
        raise DataError(f"{record_place(record)}: column {name!r}: {problem}") from None
    if not found:
        raise column_error(record, name, text, "a text that this tokenizer can encode")
    return found


def get_number(record: RecordLike, name: str) -> float:
    found = get_column(record, name)
    try:
        value = float(found)
    except (TypeError, ValueError):
        raise column_error(record, name, found, "a number") from None
    if not math.isfinite(value):
        raise column_error(record, name, found, "a finite number")
    return value


def get_texts(record: RecordLike, name: str, split: str | None = None) -> list[str]:
    """A list of texts, or one string: words separated by spaces, or by `split` (a line break)."""
    found = get_column(record, name)
    if isinstance(found, str):
        found = found.split(split)
    if not isinstance(found, list | tuple) or not all(isinstance(part, str | int | float) for part in found):
        raise column_error(record, name, found, "a list of texts, or one string")
    some = [part for part in map(str, found) if part.strip()]
    if not some:
        raise column_error(record, name, get_column(record, name), "at least one text")
    return some


def get_label(record: RecordLike, name: str) -> str:
    """The name of a class; numbers and booleans become names, and None is no class."""
    found = get_column(record, name)
    if not isinstance(found, str | int | float) or not str(found).strip():
        raise column_error(record, name, found, "a label: a word or a number")
    return str(found)


def label_index(record: RecordLike, name: str, label: Any, classes: Sequence[str]) -> int:
    """The index of a label: by its name, or by the number itself if classes have other names."""
    if str(label) in classes:
        return classes.index(str(label))
    if (
        not any(name.isdigit() for name in classes)
        and str(label).isdecimal()
        and len(str(label)) < 19
        and int(label) < len(classes)
    ):
        return int(label)
    shown = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
    raise DataError(f"{record_place(record)}: label {label!r} in column {name!r} is none of the {len(classes)} classes "
                    f"({shown}); correct the label, or name it in task.classes, or skip it by "
                    "data.on_bad_record=skip")  # fmt: skip


def column_error(record: RecordLike, name: str, found: Any, expected: str) -> DataError:
    shown = repr(found) if len(repr(found)) < 60 else repr(found)[:57] + "..."
    return DataError(f"{record_place(record)}: column {name!r} holds {shown}; expected {expected}")


TEXT_COLUMNS = {  # the settings that name text columns, by kind of task
    "translation": ("source", "target"), "classification": ("input", "input_pair"),
    "regression": ("input", "input_pair"), "token_classification": ("words",),
    "question_answering": ("question", "context"),
}  # fmt: skip


def text_columns(c: config.Task) -> tuple[str, ...]:
    """The columns on which a tokenizer must be trained."""
    usual = ("input",) if hasattr(c, "input") else ("text",)
    said = (getattr(c, name) for name in TEXT_COLUMNS.get(c.kind, usual))
    return tuple(column for column in said if column is not None)


def raise_problem(problem: DataError) -> NoReturn:
    raise problem


def fill_classes(
    c: config.Task, training: Iterable[RecordLike], bad: Callable[[DataError], object] = raise_problem
) -> config.Task:  # fmt: skip
    """The task with its classes filled in: numbers in order, names alphabetically; unchanged if none are needed.

    `bad` is the policy for records without a label: raise at the first, or skip them.
    """
    if not isinstance(c, config.Classification | config.TokenClassification) or c.classes:
        return c
    name = c.labels if isinstance(c, config.TokenClassification) else c.label
    found = {label: record_place(record) for record in training for label in labels_in_record(c, record, bad)}
    if len(found) < 2:
        upto = "".join(f"{label!r} up to {place}, " for label, place in found.items())
        raise DataError(f"column {name!r} names {len(found)} class{'es' * (not found)}; {upto}expected two or more, so "
                        "name another column in task, or the classes in task.classes")  # fmt: skip
    numbers = all(label.isdecimal() for label in found)
    return replace(c, classes=tuple(sorted(found, key=int) if numbers else sorted(found)))


def labels_in_record(
    c: config.Classification | config.TokenClassification, record: RecordLike, bad: Callable[[DataError], object]
) -> Iterator[str]:  # fmt: skip
    try:
        yield from (
            get_texts(record, c.labels) if isinstance(c, config.TokenClassification) else [get_label(record, c.label)]
        )
    except DataError as problem:
        bad(problem)


def with_input_column(task: config.Task, reader: Processor) -> config.Task:
    """The task with the processor's own column, where the recipe names none."""
    if getattr(task, "input_pair", None) is not None:
        raise ConfigError("task.input_pair: there is no second text; leave it out")
    unsaid = getattr(task, "input", None) == "text"
    return replace(task, input=reader.column) if unsaid else task  # type: ignore[arg-type]
