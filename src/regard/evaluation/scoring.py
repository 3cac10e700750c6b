"""Marking: every row is asked, and what was said stands beside what was meant, in the order of the file.

    records ── examples ──►  rows  ── portions, rows of like length together ──►  batches  ──►  the loss
                                                                                     └── said, meant ──►  scores

A portion of the rows is in memory at a time; of the others there is only what scores are made of.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import NoneType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard import config, data, tasks
from regard.config import DataError
from regard.data import Example, Progress, Record, Table, Tally, asked
from regard.data.arrays import marked
from regard.data.examples import mark
from regard.generate.model import Transformer
from regard.generate.translate import batches
from regard.tasks import Batch, Task
from regard.tasks.chunks import NOTHING
from regard.tasks.metrics import confusion
from regard.tasks.pairs import FOLLOWS
from regard.tasks.task import Answers, Telling
from regard.train.evaluate import moved

PORTION = 4096  # rows that are sorted by length together


class Row(NamedTuple):
    """What is asked: as it stood in the file, and in numbers."""

    record: Record
    example: Example


Told = dict[str, Any]
Each = Callable[[Told], object]  # hears of every row: where it stood, what was asked, said and expected


# ---------------------------------------------------------------- rows


def rows(
    tables: Sequence[Table], make: Callable[[Record], list[Example]], tally: Tally, share: float | None = None
) -> Iterator[Row]:  # fmt: skip
    """What there is to ask; with a share, of the part that training kept back."""
    for record in (record for table in tables for record in table.records(tally)):
        try:
            made = make(record)
        except DataError as problem:
            tally.bad(problem)
        else:
            yield from (Row(record, each) for each in made if share is None or kept_back(each, share))


def kept_back(example: Example, share: float) -> bool:
    """Whether training keeps a row for validation: by a hash of what it asks, as `data.ask` parts rows."""
    first = next(one for one in example.values() if isinstance(one, list | Tensor))
    number = marked(example) if isinstance(first, Tensor) else mark(array("i", first))
    return bool(asked.kept_back(torch.tensor(number), share))


def evenly(all: Callable[[], Iterable[Row]], limit: int | None) -> Iterable[Row]:
    """At most so many rows, from everywhere alike: files are often sorted."""
    if limit is None:
        return all()
    count = sum(1 for _ in all())
    return (row for place, row in enumerate(all()) if (place + 1) * limit // count > place * limit // count)


def pairs(documents: Sequence[Row], task: tasks.Masked) -> Iterator[Row]:
    """Which parts follow each other? Rows of two parts, made of documents."""
    examples = [row.example for row in documents]
    for place, row in enumerate(documents):
        made = task.pairs(examples, place, data.chance(0, "pairs", place))
        yield from (Row(row.record, each) for each in made)


# ---------------------------------------------------------------- marks


class Marks:
    """Asks a model, row after row: to take the `batches`, which the loss is made of, is to ask.

    Kinds that are not answered a batch at a time say in `settled` how they are.
    """

    columns: ClassVar[tuple[str, ...]] = ("text", "pair", "words")  # the settings that name what is shown

    def __init__(
        self, model: Transformer, task: Task, rows: Iterable[Row], each: Each | None = None,
        progress: Progress = data.quiet,
    ) -> None:  # fmt: skip
        self.model, self.task, self.rows, self.each, self.progress = model, task, rows, each, progress
        self.device = next(model.parameters()).device
        self.count = self.cut = self.shortened = 0
        self.said: list[Any] = []
        self.meant: list[Any] = []

    def batches(self) -> Iterator[Batch]:
        left, number = iter(self.rows), 0
        while portion := list(islice(left, PORTION)):
            told: list[Any] = [None] * len(portion)
            for places in batches([self.task.length(row.example) for row in portion], 1):
                chance = data.chance(0, "in order", number)  # the same tokens are hidden each time
                batch = self.task.plain([portion[place].example for place in places], chance)
                for place, answers in zip(places, self.asked(batch), strict=False):
                    told[place] = answers
                yield batch
                number += 1
                self.progress(self.count + sum(each is not None for each in told))
            for row, (said, meant) in zip(portion, self.settled(portion, told), strict=True):
                self.note(row, said, meant)

    def asked(self, batch: Batch) -> Iterable[tuple[Any, Any]]:
        """(said, meant) of each row of a batch."""
        said, meant = self.task.answers(self.model, moved(batch, self.device)), self.task.expected(batch)
        return zip(by_row(self.task, said, batch), by_row(self.task, meant, batch), strict=True)

    def settled(self, portion: Sequence[Row], told: list[Any]) -> Iterable[tuple[Any, Any]]:
        """(said, meant) of each row of a portion."""
        return told

    def note(self, row: Row, said: Any, meant: Any) -> None:
        self.said.append(said)
        self.meant.append(meant)
        cut = self.lost(row)
        self.count, self.cut, self.shortened = self.count + 1, self.cut + cut, self.shortened + (cut > 0)
        if self.each is not None:
            self.each({"where": row.record.where, "asked": self.shown(row.record), "said": self.spoken(said),
                       "expected": self.spoken(meant)})  # fmt: skip

    def lost(self, row: Row) -> int:
        """Tokens of a row that did not fit."""
        return int(row.example.get("cut", 0))

    def shown(self, record: Record) -> Told:
        """The columns that were read."""
        names = (getattr(self.task.c, name, None) for name in self.columns)
        return {name: told(record[name]) for name in names if name is not None}

    def spoken(self, answers: Any) -> Any:
        """Answers as people read them."""
        named = {name: [self.word(name, each) for each in some] for name, some in answers.items()}
        bare = {name: some if flat(self.task, name) else some[0] for name, some in named.items()}
        return next(iter(bare.values())) if len(bare) == 1 else bare

    def word(self, name: str, answer: Any) -> Any:
        if isinstance(self.task.c, config.Classify):
            return self.task.c.classes[answer]
        if flat(self.task, name) and self.model.speaks is not None:
            return self.model.speaks.token(answer)
        return FOLLOWS[answer] if name == "next" else answer

    @property
    def scores(self) -> dict[str, float]:
        return self.task.score(tasks.joined(self.said), tasks.joined(self.meant))

    @property
    def more(self) -> Told:
        """What else there is to know: which classes were taken for which."""
        if not isinstance(self.task.c, config.Classify):
            return {}
        said, meant = (tasks.joined(some)["loss"] for some in (self.said, self.meant))
        return {"confusion": confusion(said, meant, self.task.c.classes)}


def told(found: Any) -> Any:
    """What stood in a column, as JSON can say it: of a file its path."""
    return found if isinstance(found, str | int | float | list | NoneType) else str(found)


def flat(task: Task, name: str) -> bool:
    """Whether a row has as many answers as labels, and not one."""
    return isinstance(task, Telling | tasks.Masked) and name != "next"


def by_row(task: Task, answers: Answers, batch: Batch) -> list[Answers]:
    """The answers to a batch, apart for each of its rows."""
    made: list[Answers] = [{} for _ in batch["ids"]]
    for name, some in answers.items():
        labels: Tensor | None = batch["labels"] if flat(task, name) else None
        counts = [1] * len(made) if labels is None else (labels != NOTHING).sum(-1).tolist()
        left = iter(some)
        for row, count in zip(made, counts, strict=True):
            row[name] = list(islice(left, count))
    return made
