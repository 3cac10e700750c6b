"""Answers that are texts: found in a longer one, or translated; each marked as its field marks it."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from regard import data, tasks
from regard.generate.asked import searching
from regard.generate.score import Judged, Scoring, judged
from regard.generate.translate import Translator, batches
from regard.tasks import Batch
from regard.tasks.answer import Found
from regard.tasks.metrics import accuracy, ratio
from regard.train.evaluate import moved
from regard.train.marking import Marks, Row, Told


class Answered(Marks):
    """Questions about texts: a long one is read in windows, and the surest of their answers is the answer."""

    columns = ("question", "context")
    task: tasks.Answer

    def asked(self, batch: Batch) -> Iterable[tuple[Any, Any]]:
        return ()  # a batch has one window of each text

    def settled(self, portion: Sequence[Row], told: list[Any]) -> Iterable[tuple[Any, Any]]:
        assert self.model.tokenizer is not None
        windows = [(place, window) for place, row in enumerate(portion)
                   for window in self.task.windows(row.record, self.model.tokenizer)]  # fmt: skip
        found: list[list[Found]] = [[] for _ in portion]
        for group in batches([len(window["ids"]) for _, window in windows], 1):
            batch = self.task.collate([windows[each][1] for each in group], data.chance(0))
            said = self.task.answers(self.model, moved(batch, self.device))["loss"]
            for each, answer in zip(group, said, strict=True):
                found[windows[each][0]].append(answer)
        for row, some in zip(portion, found, strict=True):
            best = max(some, key=lambda each: each.score)
            yield row.record[self.task.c.context][best.start : best.stop], self.marked(row, some)

    def lost(self, row: Row) -> int:
        """Of the question; the windows hold all of the text."""
        assert self.model.tokenizer is not None
        room = (self.task.rows.length - len(self.task.specials.pair)) // 2
        return max(0, len(self.model.tokenizer.encode(str(row.record[self.task.c.question]))) - room)

    def marked(self, row: Row, found: list[Found]) -> tuple[list[str], dict[str, float]]:
        """What is right, and how right the answer is."""
        return self.task.right(row.record), self.task.squad([found], [row.record])

    def spoken(self, answers: Any) -> Any:
        return answers if isinstance(answers, str) else answers[0]

    @property
    def scores(self) -> dict[str, float]:
        """In percent, as SQuAD has them."""
        marks = [mark for _, mark in self.meant]
        return {name: ratio(sum(mark[name] for mark in marks), len(marks)) for name in ("exact", "f1")}


class Translated(Marks):
    """Translations by beam search, against those that people wrote. The loss is of theirs."""

    columns = ("source",)
    task: tasks.Translate

    def __init__(self, *asked: Any, how: Scoring | None = None, **more: Any) -> None:
        super().__init__(*asked, **more)
        self.how, self.translator = how or Scoring(), Translator(self.model)
        self.sources: list[str] = []

    def asked(self, batch: Batch) -> Iterable[tuple[Any, Any]]:
        return ()

    def settled(self, portion: Sequence[Row], told: list[Any]) -> Iterable[tuple[Any, Any]]:
        """A source that stands there several times is translated once."""
        sources = {str(row.record[self.task.c.source]): self.laid(row) for row in portion}
        texts, found, done = list(sources), dict[str, str](), 0
        c = searching(self.how.search)
        for group in batches([len(sources[text]) for text in texts], c.beams):
            some = [texts[each] for each in group]
            made = self.translator.batch(some, [sources[text] for text in some], c, None)
            found |= zip(some, (one.text for one in made), strict=True)
            done += len(group)
            self.progress(self.count + done * len(portion) // len(texts))
        for row in portion:
            source = str(row.record[self.task.c.source])
            self.sources.append(source)
            yield found[source], str(row.record[self.task.c.target])

    def laid(self, row: Row) -> list[int]:
        """A source in ids as training lays it out; what is too long is cut, and told at the end."""
        return [*self.task.opening, *row.example["source"], *self.task.closing]

    def spoken(self, answers: Any) -> Any:
        return answers

    @cached_property
    def judged(self) -> Judged:
        return judged(self.sources, self.said, self.meant, self.how)

    @property
    def scores(self) -> dict[str, float]:
        """In percent; `exact` are those that are right to the last letter."""
        return self.judged.scores | {"exact": 100 * accuracy(self.said, self.meant)}

    @property
    def more(self) -> Told:
        return {"signatures": self.judged.signatures}
