"""Judging: a trained model is shown something new, and says which class it is, or which number it has.

    judge = Judge(regard.load("runs/digits"))
    [said] = judge(["three.png"], top=2)        {"of": "three.png", "classes": {"3": 0.98, "5": 0.01}}

A text is given as it is; everything else as files: pictures and sounds themselves, or records (.jsonl, .csv, ...), all
of which are asked.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import config, tasks
from regard.config import ConfigError, DataError
from regard.data import Record, Tally, chance, tables
from regard.data.packing import format_of
from regard.data.sources import RECORDS, TEXTS
from regard.generate.model import Transformer
from regard.generate.session import still
from regard.inputs.senses import sense
from regard.tasks import Task
from regard.tasks.losses import asked
from regard.tasks.sensed import answered
from regard.train.asking import built, classed, reads_text
from regard.train.evaluate import moved
from regard.train.sensing import seen_in

TOGETHER = 64  # rows


def named(thing: str) -> bool:
    """Whether a text is rather the name of a file, which is not there."""
    return " " not in thing.strip() and format_of(thing) in (*RECORDS, *TEXTS)


class Judge:
    """A model that tells classes, or gives numbers; `name` is what to call it."""

    def __init__(self, model: Transformer, name: str = "the model") -> None:
        self.model, self.name, self.textual = model, name, reads_text(model)
        task = model.task or config.Classify()
        if not isinstance(task, config.Classify | config.Regress) or model.c.head.kind != "pooled":
            kind = model.c.head.kind if model.task is None else model.task.kind
            raise ConfigError(f"{name}: was trained for {kind!r} and tells no classes; name a model that was trained "
                              "for classify or regress")  # fmt: skip
        if self.textual and model.tokenizer is None:
            raise DataError(f"{name}: no tokenizer.json to read a text with; put one beside the model")
        task = classed(task, model.c)
        self.task: Task = built(model, task if self.textual else seen_in(task, sense(model.c.embed)))

    @property
    def example(self) -> str:
        """What such a file may be called."""
        return "A.png" if isinstance(self.task, tasks.Sensed) and self.task.sense.column == "image" else "A.jsonl"

    def __call__(self, things: Sequence[str], top: int = 1) -> Iterator[dict[str, Any]]:
        """What the model says of each thing, in order."""
        rows = (row for thing in things for row in self.rows(thing))
        while some := list(islice(rows, TOGETHER)):
            yield from self.answers(some, top)

    def rows(self, thing: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What a text or a file holds to be asked, by name."""
        for record in self.records(thing):
            yield (thing if self.textual or record.where == thing else record.where), self.seen(record)

    def records(self, thing: str) -> Iterable[Record]:
        column = self.task.c.text
        if self.textual and not Path(thing).is_file() and not named(thing):
            return [Record({column: thing}, repr(thing[:40]))]
        found = tables((thing,), config.Data(column=column) if self.textual else None)
        return (record for table in found for record in table.records(Tally()))

    def seen(self, record: Record) -> dict[str, Any]:
        """An example without its label, which nobody knows."""
        if isinstance(self.task, tasks.Sensed):
            return self.task.seen(record)
        unknown = self.task.c.classes[0] if isinstance(self.task.c, config.Classify) else 0.0
        assert self.model.tokenizer is not None
        return self.task.example(Record(record | {self.task.c.label: unknown}, record.where), self.model.tokenizer)

    def answers(self, rows: Sequence[tuple[str, dict[str, Any]]], top: int) -> Iterator[dict[str, Any]]:
        device = next(self.model.parameters()).device
        batch = moved(self.task.plain([example for _, example in rows], chance(0)), device)
        with still(list(self.model.modules())):
            said = (asked if self.textual else answered)(self.model, batch).float().cpu()
        for (name, _), row in zip(rows, said, strict=True):
            yield {"of": name, **self.told(row, top)}

    def told(self, row: Tensor, top: int) -> dict[str, Any]:
        """The likeliest classes with their probabilities, or the number."""
        if isinstance(self.task.c, config.Regress):
            return {"number": float(row[0])}
        best = row.softmax(-1).topk(min(top, len(row)))
        names = self.task.c.classes
        return {"classes": {names[place]: share for share, place in zip(*(t.tolist() for t in best), strict=True)}}
