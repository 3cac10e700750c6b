"""Row scoring: the prediction and the label of every row, in the order of the file.

    records ── examples ──►  rows  ── portions, rows of similar length ───────►  batches  ──►  the loss
                                                                                     └── prediction, label ──►  scores

One portion of the rows is in memory at a time; of all others only predictions and labels are kept.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import NoneType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard import config, data, tasks
from regard.config.errors import DataError
from regard.data.batching import batch_to_device
from regard.data.example_store import Example, hash_ids
from regard.data.packing import IGNORE_INDEX
from regard.data.prepare import validation_rows as is_kept_back
from regard.data.records import BadRecordPolicy, Record, RecordSource
from regard.data.tensor_store import hash_row
from regard.data.token_shards import Progress
from regard.inference.batching import in_chunks, length_batches
from regard.inference.model import Model
from regard.tasks.collate import TaskBatch
from regard.tasks.masked_lm import NEXT_SENTENCE_LABELS
from regard.tasks.metrics import confusion_matrix
from regard.tasks.task import Task, TaskOutputs, TextTask

PORTION = 4096  # rows that are sorted by length at a time


class ScoredRow(NamedTuple):
    """A row of an evaluation: its record, and the encoded example."""

    record: Record
    example: Example


RowOutput = dict[str, Any]
RowCallback = Callable[[RowOutput], object]  # called with every row: source, input, prediction and label


# ---------------------------------------------------------------- rows


def evaluation_rows(
    tables: Sequence[RecordSource],
    make: Callable[[Record], list[Example]],
    tally: BadRecordPolicy,
    share: float | None = None,
) -> Iterator[ScoredRow]:
    """The rows to evaluate; with a share, those that training held out."""
    for record in (record for table in tables for record in table.records(tally)):
        try:
            made = make(record)
        except DataError as problem:
            tally.record_bad(problem)
        else:
            yield from (ScoredRow(record, each) for each in made if share is None or is_validation_row(each, share))


def is_validation_row(example: Example, share: float) -> bool:
    """Whether training holds out a row for validation: by a hash of its input, as `data.prepare` splits rows."""
    first = next(one for one in example.values() if isinstance(one, list | Tensor))
    number = hash_row(example) if isinstance(first, Tensor) else hash_ids(array("i", first))
    return bool(is_kept_back(torch.tensor(number), share))


def sample_evenly(all: Callable[[], Iterable[ScoredRow]], limit: int | None) -> Iterable[ScoredRow]:
    """Sample at most `limit` rows, evenly spaced, since files are often sorted."""
    if limit is None:
        return all()
    count = sum(1 for _ in all())
    # the rows where the whole part of place·limit/count rises: `limit` of them, evenly spaced, or all
    return (row for place, row in enumerate(all()) if (place + 1) * limit // count > place * limit // count)


def next_sentence_rows(documents: Sequence[ScoredRow], task: tasks.MaskedLM) -> Iterator[ScoredRow]:
    """Rows of sentence pairs for next sentence prediction, made of documents."""
    examples = [row.example for row in documents]
    for place, row in enumerate(documents):
        made = task.pairs(examples, place, data.seeded_generator(0, "pairs", place))
        yield from (ScoredRow(row.record, each) for each in made)


# ---------------------------------------------------------------- scores


class RowScorer:
    """Predictions and labels of rows, computed while `batches` is iterated.

    Tasks whose predictions do not come batch by batch override `finalize`.
    """

    columns: ClassVar[tuple[str, ...]] = ("input", "input_pair", "text", "words")  # settings of displayed columns

    def __init__(
        self, model: Model, task: Task, rows: Iterable[ScoredRow], each: RowCallback | None = None,
        progress: Progress = data.no_progress,
    ) -> None:  # fmt: skip
        self.model, self.task, self.rows, self.each, self.progress = model, task, rows, each, progress
        self.device = next(model.parameters()).device
        self.count = self.cut = self.shortened = 0
        self.said: list[Any] = []
        self.meant: list[Any] = []

    def batches(self) -> Iterator[TaskBatch]:
        number = 0
        for portion in in_chunks(self.rows, PORTION):
            told: list[Any] = [None] * len(portion)
            for places in length_batches([self.task.length(row.example) for row in portion]):
                chance = data.seeded_generator(0, "in order", number)  # the same tokens are masked each time
                batch = self.task.collate_eval([portion[place].example for place in places], chance)
                for place, answers in zip(places, self.predict(batch), strict=False):
                    told[place] = answers
                yield batch
                number += 1
                self.progress(self.count + sum(each is not None for each in told))
            for row, (said, meant) in zip(portion, self.finalize(portion, told), strict=True):
                self.note(row, said, meant)

    def predict(self, batch: TaskBatch) -> Iterable[tuple[Any, Any]]:
        """(prediction, label) of each row of a batch."""
        said, meant = (
            self.task.answers(self.model, batch_to_device(batch, self.device)),
            self.task.expected_answers(batch),
        )
        return zip(outputs_by_row(self.task, said, batch), outputs_by_row(self.task, meant, batch), strict=True)

    def finalize(self, portion: Sequence[ScoredRow], answers: list[Any]) -> Iterable[tuple[Any, Any]]:
        """(prediction, label) of each row of a portion."""
        return answers

    def note(self, row: ScoredRow, prediction: Any, label: Any) -> None:
        self.said.append(prediction)
        self.meant.append(label)
        cut = self.loss(row)
        self.count, self.cut, self.shortened = self.count + 1, self.cut + cut, self.shortened + (cut > 0)
        if self.each is not None:
            self.each({"where": row.record.where, "asked": self.displayed_columns(row.record),
                       "said": self.decode(prediction), "expected": self.decode(label)})  # fmt: skip

    def loss(self, row: ScoredRow) -> int:
        """The number of truncated tokens of a row."""
        return int(row.example.get("cut", 0))

    def displayed_columns(self, record: Record) -> RowOutput:
        """The input columns of a record."""
        names = (getattr(self.task.c, name, None) for name in self.columns)
        return {name: to_json_value(record[name]) for name in names if name is not None}

    def decode(self, answers: Any) -> Any:
        """Predictions or labels in readable form."""
        named = {name: [self.token_text(name, each) for each in some] for name, some in answers.items()}
        bare = {name: some if is_per_token(self.task, name) else some[0] for name, some in named.items()}
        return next(iter(bare.values())) if len(bare) == 1 else bare

    def token_text(self, name: str, answer: Any) -> Any:
        if isinstance(self.task.c, config.Classification):
            return self.task.c.classes[answer]
        if is_per_token(self.task, name) and self.model.output_tokenizer is not None:
            return self.model.output_tokenizer.token(answer)
        return NEXT_SENTENCE_LABELS[answer] if name == "next" else answer

    @property
    def scores(self) -> dict[str, float]:
        return self.task.score(tasks.join_outputs(self.said), tasks.join_outputs(self.meant))

    @property
    def extras(self) -> RowOutput:
        """Further results: the confusion matrix."""
        if not isinstance(self.task.c, config.Classification):
            return {}
        said, meant = (tasks.join_outputs(some)["loss"] for some in (self.said, self.meant))
        return {"confusion": confusion_matrix(said, meant, self.task.c.classes)}


def to_json_value(found: Any) -> Any:
    """A value of a column in JSON; a file by its path."""
    return found if isinstance(found, str | int | float | list | NoneType) else str(found)


def is_per_token(task: Task, name: str) -> bool:
    """Whether a row has one prediction for each label, not one in all."""
    return isinstance(task, TextTask | tasks.MaskedLM) and name != "next"


def outputs_by_row(task: Task, answers: TaskOutputs, batch: TaskBatch) -> list[TaskOutputs]:
    """The outputs of a batch, split by row."""
    made: list[TaskOutputs] = [{} for _ in batch["ids"]]
    for name, some in answers.items():
        labels: Tensor | None = batch["labels"] if is_per_token(task, name) else None
        counts = [1] * len(made) if labels is None else (labels != IGNORE_INDEX).sum(-1).tolist()
        left = iter(some)
        for row, count in zip(made, counts, strict=True):
            row[name] = list(islice(left, count))
    return made
