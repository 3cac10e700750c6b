"""Task and Objective: from a record to an example, a batch, a loss and a score; and the table of tasks.

    Record  ── example ──►  Example  ── collate ──►  Batch  ── parts, sums ──►  the loss
    {"text": "A cat"}       {"ids": [5, 9]}          {"ids": (B, N), "labels": (B, N), "real": (B, N)}
                                                            ── answers, expected ──►  score

An objective has named loss parts, each a sum over things that are counted before anything is computed. A step's loss
is the weighted sum over parts of sum/count, with the counts of the whole step: of all micro-batches and of all ranks.
So accumulating k micro-batches of b rows gives the gradients of one batch of k·b rows, ragged or not.

Each kind is a file that registers its class in TASKS. All randomness is drawn in `collate` from the generator that it
is given, so a batch is a pure function of its examples and a seed.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.masks import mask
from regard.data.packing import IGNORE_INDEX
from regard.tasks.collate import (
    RowPadding,
    TaskBatch,
    TaskExample,
    TaskSpecialTokens,
    with_special_template,
    with_special_tokens,
)
from regard.tasks.columns import RecordLike
from regard.tasks.losses import count_labels, cross_entropy_sum, model_outputs
from regard.tasks.metrics import accuracy
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LossPart:
    """One thing that is asked: how many times, and how much it weighs."""

    count: int
    weight: float = 1.0


class Objective(Protocol):
    def count_parts(self, batch: Any) -> dict[str, LossPart]:
        """How often each part is asked of this batch; known from the labels alone."""

    def loss_sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """The losses of each part, summed; in fp32. An objective that compares the rows of a batch with each other has
        a third argument, `ranks: int = 1`: how many processes ask now, each for its own rows of one batch."""


def rank_arguments(objective: Objective, ranks: int) -> dict[str, int]:
    """What `loss_sums` of this objective is given besides model and batch, where so many ranks ask at the same time.

    The signature is read since a custom objective may have two parameters, on any number of ranks; to pass `ranks` and
    catch the TypeError would hide one of its own.
    """
    return {"ranks": ranks} if ranks > 1 and "ranks" in inspect.signature(objective.loss_sums).parameters else {}


def total_counts(batches: Sequence[Mapping[str, LossPart]]) -> dict[str, LossPart]:
    """The parts of several micro-batches as those of one."""
    names = list(batches[0])
    return {name: LossPart(sum(parts[name].count for parts in batches), batches[0][name].weight) for name in names}


def combine_losses(sums: Mapping[str, Tensor], parts: Mapping[str, LossPart]) -> Tensor:
    """This batch's share of the step's loss."""
    shares = [sums[name] * (part.weight / max(1, part.count)) for name, part in parts.items()]
    loss = shares[0]
    for share in shares[1:]:
        loss = loss + share
    return loss


TaskOutputs = dict[str, list[Any]]  # by the name of a part
FRAMED = (
    "classification",
    "regression",
    "token_classification",
    "question_answering",
    "masked_lm",
)  # read whole texts between special tokens


@dataclass(frozen=True, eq=False)
class Task:
    """What all objectives share. `chunk` tokens have their logits made at a time (none: all); `segments` says that the
    model tells first texts from second ones."""

    c: Any
    specials: TaskSpecialTokens = TaskSpecialTokens()
    rows: RowPadding = RowPadding()
    chunk: int | None = None
    segments: bool = False

    @property
    def extra_tokens(self) -> int:
        """Tokens that `collate` puts around an example's own."""
        return 0

    encoder: ClassVar[bool] = False  # reads a source
    causal: ClassVar[bool] = False  # must not see what it should say
    heads: ClassVar[tuple[str, ...]] = ("lm",)

    @classmethod
    def special_tokens_needed(cls, c: Any, specials: TaskSpecialTokens) -> tuple[str, ...]:
        """The roles without which there is no asking."""
        return ()

    @classmethod
    def build(cls, c: Any, tokenizer: Any, **options: Any) -> Self:
        return cls(c, TaskSpecialTokens.of(tokenizer), **options)

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        """A record as numbers; "cut" is how many of its tokens did not fit."""
        raise NotImplementedError

    def examples(self, record: RecordLike, tokenizer: Any) -> list[TaskExample]:
        """All that a record has to learn from; a long text is several rows, one after the other."""
        return [self.example(record, tokenizer)]

    def length(self, example: TaskExample) -> int:
        """How many tokens an example is: its longest list."""
        return max(len(ids) for ids in example.values() if isinstance(ids, list))

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        raise NotImplementedError

    def collate_eval(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        """A batch to validate on: without what is done to examples only to learn more from them."""
        return self.collate(examples, chance)

    def count_parts(self, batch: Any) -> dict[str, LossPart]:
        return {"loss": LossPart(count_labels(batch["labels"]))}

    def loss_sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        raise NotImplementedError

    def answers(self, model: nn.Module, batch: Any) -> TaskOutputs:
        """What the model says, one entry each time it is asked."""
        raise NotImplementedError

    def expected_answers(self, batch: Any) -> TaskOutputs:
        """What it should say."""
        return {"loss": labelled_entries(batch["labels"], batch["labels"])}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return {"accuracy": accuracy(predictions["loss"], labels["loss"])}

    def check(self, model: config.Transformer) -> None:
        """Refuses a model that cannot be asked this, by the path of the setting."""
        task, head = f"task {self.c.kind!r}", model.head.kind
        if (model.encoder is not None) != self.encoder:
            how = "two trunks; add model.encoder" if self.encoder else "one trunk alone; leave out model.encoder"
            raise ConfigError(f"model.encoder: {task} is asked of {how}")
        if head not in self.heads:
            raise ConfigError(f"model.head.kind: {head!r}, and {task} needs {' or '.join(self.heads)}; "
                              f"set model.head.kind={self.heads[0]}")  # fmt: skip
        for where, vocab, size in self.vocabularies(model):
            if vocab < size:
                raise ConfigError(f"model.{where}.vocab: {vocab:,}, and the tokenizer has {size:,} tokens; "
                                  "leave it out, or make it larger")  # fmt: skip
        if self.causal and (ahead := [text for text in model.trunk.masks if mask(text).ahead]):
            raise ConfigError(f"model.trunk.mask: {ahead[0]!r} sees the token it should predict; "
                              f"write 'causal & {ahead[0]}' or 'causal'")  # fmt: skip

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        """Each table of words by its path, with its size and that of the tokenizer it is for."""
        return [("embed", model.embed.vocab, self.specials.size)]


def labelled_entries(table: Tensor, labels: Tensor) -> list[int]:
    """The entries of a table where there are labels."""
    found: list[int] = table[labels != IGNORE_INDEX].tolist()
    return found


def split_evenly(ids: Sequence[int], room: int) -> list[Sequence[int]]:
    """A text as stretches that fit, all about equally long."""
    count = -(-len(ids) // room)
    size = -(-len(ids) // max(1, count))
    return [ids[start : start + size] for start in range(0, len(ids), size)]


class TextTask(Task):
    """Objectives whose answers are words: one part, `labels` beside every token."""

    @property
    def smoothing(self) -> float:
        return getattr(self.c, "label_smoothing", 0.0)

    def loss_sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        said = model_outputs(model, batch, deferred=self.chunk is not None)
        return {"loss": cross_entropy_sum(said, batch["labels"], self.smoothing, self.chunk or 1)}

    def answers(self, model: nn.Module, batch: Any) -> TaskOutputs:
        """The likeliest word wherever one is asked for, each told what really stood before it."""
        return {"loss": labelled_entries(model_outputs(model, batch).argmax(-1), batch["labels"])}


TASKS: dict[str, type[Task]] = {}
INPUT_TASKS: dict[str, type[Task]] = {}  # kinds that are also asked of what is no text, by another class
T = TypeVar("T", bound=type[Task])


def register_task(kind: str) -> Callable[[T], T]:
    """Enters a class in the table under the kind that a config says."""

    def put(task: T) -> T:
        TASKS[kind] = task
        return task

    return put


def register_input_task(kind: str) -> Callable[[T], T]:
    """Enters a class in the table for what is no text."""

    def put(task: T) -> T:
        INPUT_TASKS[kind] = task
        return task

    return put


def add_task_tokens(c: config.Task, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the special tokens that this objective needs, and a word of where they stand around a text;
    itself if it has them all."""
    marks = c.sentinels if isinstance(c, config.SpanCorruption) else 0
    made = with_special_tokens(
        tokenizer, TASKS[c.kind].special_tokens_needed(c, TaskSpecialTokens.of(tokenizer)), marks
    )
    return with_special_template(made) if c.kind in FRAMED else made


def build_task(
    c: config.Task, tokenizer: Tokenizer, model: config.Model | None = None, *, rows: RowPadding | None = None,
    chunk: int | None = None, **more: Any,
) -> Task:  # fmt: skip
    """The objective that a setting describes, for texts in this tokenizer's words; checked against the model."""
    task = TASKS[c.kind]
    if missing := task.special_tokens_needed(c, TaskSpecialTokens.of(tokenizer)):
        raise ConfigError(f"tokenizer: task {c.kind!r} needs a {missing[0]} token, and this one has none; "
                          "add it with regard.tasks.add_task_tokens")  # fmt: skip
    segments = model is None or (isinstance(model.embed, config.TextEmbedding) and model.embed.segments > 1)
    made = task.build(c, tokenizer, rows=rows or RowPadding(), chunk=chunk, segments=segments, **more)
    if model is not None:
        made.check(model)  # type: ignore[arg-type]  # towers are asked one thing, whose check knows them
    return made


def build_input_task(c: config.Task, sense: Any, model: config.Model | None = None, **more: Any) -> Task:
    """The objective that a setting describes, for what a sense reads; checked against the model."""
    task: Any = INPUT_TASKS.get(c.kind) or TASKS[c.kind]
    if "sense" not in task.__dataclass_fields__:
        raise ConfigError(f"task.kind: {c.kind!r} is asked of texts, and this front end reads none; set it to "
                          f"{' or '.join(INPUT_TASKS)}, or model.embed.kind=text")  # fmt: skip
    made: Task = task(c, sense=sense, **more)
    if isinstance(model, config.Transformer):
        made.check(model)
    return made


def join_outputs(answers: Sequence[TaskOutputs]) -> TaskOutputs:
    """The answers to several batches as those to one."""
    return {name: [each for some in answers for each in some[name]] for name in answers[0]} if answers else {}


def score_outputs(task: Task, pairs: Sequence[tuple[TaskOutputs, TaskOutputs]]) -> Mapping[str, float]:
    """The score of (answers, expected) over many batches."""
    return task.score(join_outputs([said for said, _ in pairs]), join_outputs([meant for _, meant in pairs]))
