"""Judging: a trained model is shown something new, and says which class it is, or which number it has.

    judge = Judge(regard.load("runs/digits"))
    [said] = judge(["three.png"], top=2)        {"of": "three.png", "classes": {"3": 0.98, "5": 0.01}}

A text is given as it is, two that belong together with a tab between; everything else as files: pictures and sounds
themselves, or records (.jsonl, .csv, ...), all of which are asked.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from regard import config, tasks
from regard.config import ConfigError, DataError
from regard.data import Record, Tally, chance, tables
from regard.data.packing import format_of
from regard.data.sources import RECORDS, TEXTS
from regard.generate import classes
from regard.generate.frames import attempts
from regard.generate.model import Transformer
from regard.generate.session import still
from regard.inputs.senses import sense
from regard.tasks import records
from regard.tasks.sensed import answered
from regard.train.asking import built, classed, reads_text
from regard.train.evaluate import moved
from regard.train.sensing import seen_in

TOGETHER, AT_ONCE = 64, 4096  # rows of what is seen, and texts, of which those of like length go together
LIKELY = 0.5  # of several classes that may all be right, those from here on are told
PAIR = "pair"  # the column of a second text, where a published model does not say


def named(thing: str) -> bool:
    """Whether a text is rather the name of a file, which is not there."""
    return " " not in thing.strip() and format_of(thing) in (*RECORDS, *TEXTS)


class Heard(Tally):
    """Passes over records that cannot be read, and tells of each."""

    def __init__(self, refuse: Callable[[DataError], object]) -> None:
        super().__init__("skip")
        self.refuse = refuse

    def bad(self, problem: DataError) -> None:
        self.refuse(problem)


def worded(record: Record, columns: Sequence[str]) -> list[str]:
    return [records.text(record, column) for column in columns]


class Judge:
    """A model that tells classes, or gives numbers; `name` is what to call it."""

    def __init__(
        self, model: Transformer, name: str = "the model", refuse: Callable[[DataError], object] | None = None
    ) -> None:
        self.model, self.name, self.textual = model, name, reads_text(model)
        self.refuse = refuse  # is told of each text without an answer; unless there is one, the first raises
        try:
            classes.check(model)
        except ConfigError as problem:
            raise ConfigError(f"{name}: {problem}") from None
        if self.textual and model.tokenizer is None:
            raise DataError(f"{name}: no tokenizer.json to read a text with; put one beside the model")
        self.c = model.task or config.Classify(pair=PAIR if self.textual else None)
        self.task = None if self.textual else built(model, seen_in(classed(self.c, model.c), sense(model.c.embed)))

    @property
    def kind(self) -> str:
        return "regress" if classes.numbered(self.model) else "classify"

    @property
    def example(self) -> str:
        """What such a file may be called."""
        return "A.png" if isinstance(self.task, tasks.Sensed) and self.task.sense.column == "image" else "A.jsonl"

    def __call__(self, things: Sequence[str], top: int | None = None) -> Iterator[dict[str, Any]]:
        """What the model says of each thing, in order; `top` classes, or else the likeliest."""
        rows = (row for thing in things for row in self.rows(thing))
        while some := list(islice(rows, AT_ONCE if self.textual else TOGETHER)):
            said = self.read(some) if self.textual else self.seen(some)
            for (name, record), answer in zip(some, said, strict=True):
                if answer is not None:
                    yield {"of": name, **self.told(answer, top), **({"where": record.where} if self.refuse else {})}

    def rows(self, thing: str) -> Iterator[tuple[str, Record]]:
        """What a text or a file holds to be asked, by name."""
        for record in self.records(thing):
            yield (thing if self.textual or record.where == thing else record.where), record

    def records(self, thing: str) -> Iterable[Record]:
        column: str = (self.c if self.task is None else self.task.c).text  # type: ignore[union-attr]
        if self.textual and not os.path.isfile(thing) and not named(thing):
            return [self.spoken(thing, column)]
        found = tables((thing,), config.Data(column=column) if self.textual else None)
        return (record for table in found for record in table.records(Heard(self.refuse) if self.refuse else Tally()))

    def spoken(self, text: str, column: str) -> Record:
        """A text, or two with a tab between for a model that reads pairs."""
        first, tab, second = text.partition("\t")
        if not self.pair or (not tab and self.model.task is None):
            return Record({column: text}, repr(text[:40]))
        if not tab:
            raise DataError(f"{text[:40]!r}: {self.name} was trained on pairs of texts; give both, with a tab between "
                            "or the second by --pair")  # fmt: skip
        return Record({column: first, self.pair: second}, repr(text[:40]))

    @property
    def pair(self) -> str | None:
        return getattr(self.c, "pair", None)

    def read(self, rows: Sequence[tuple[str, Record]]) -> list[Any]:
        """Answers to texts: those with a second text, and those without."""
        told: dict[int, Any] = {}
        for paired in (True, False):
            places = [place for place, (_, record) in enumerate(rows) if self.has_pair(record) == paired]
            columns = (self.c.text, self.pair or PAIR) if paired else (self.c.text,)  # type: ignore[union-attr]
            refuse = None if self.refuse is None else self.pass_over
            said = attempts(((rows[place][1], columns) for place in places), worded, refuse)
            known = [(place, texts) for place, texts in zip(places, said, strict=True) if texts is not None]
            texts, others = [each[0] for _, each in known], [each[-1] for _, each in known] if paired else None
            names = [rows[place][1].where for place, _ in known]
            found = classes.judgements(self.model, texts, others, names=names, refuse=refuse)
            told |= zip([place for place, _ in known], found, strict=True)
        return [told.get(place) for place in range(len(rows))]

    def pass_over(self, place: int, problem: DataError) -> None:
        assert self.refuse is not None
        self.refuse(problem)

    def has_pair(self, record: Record) -> bool:
        return self.pair is not None and (self.model.task is not None or self.pair in record)

    def seen(self, rows: Sequence[tuple[str, Record]]) -> Iterator[Any]:
        """Answers to what is no text."""
        assert isinstance(self.task, tasks.Sensed)
        examples = [self.task.seen(record) for _, record in rows]
        batch = moved(self.task.plain(examples, chance(0)), next(self.model.parameters()).device)
        with still(list(self.model.modules())):
            said = answered(self.model, batch).float().cpu()
        return (classes.answer(self.model, row) for row in said)

    def told(self, answer: Any, top: int | None) -> dict[str, Any]:
        """The likeliest classes with their probabilities, or the number."""
        if isinstance(answer, float):
            return {"number": answer}
        likely = sum(share >= LIKELY for share in answer.values()) if classes.several(self.model) else 1
        return {"classes": dict(islice(answer.items(), max(1, likely) if top is None else top))}
