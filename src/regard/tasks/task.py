"""Task and Objective: from a record to an example, a batch, a loss and a score; and the table of tasks.

    Record  ── example ──►  Example  ── collate ──►  Batch  ── parts, sums ──►  the loss
    {"text": "A cat"}       {"ids": [5, 9]}          {"ids": (B, N), "labels": (B, N), "real": (B, N)}
                                                            ── answers, expected ──►  score

An objective has named loss parts, each a sum over labels that are counted before anything is computed. A step's loss
is the weighted sum over parts of sum/count, with the counts of the whole step: of all micro-batches and of all ranks.
Accumulating k micro-batches of b rows therefore gives the gradients of one batch of k·b rows, ragged or not.

Each kind is a file that registers its class in TASKS. All randomness is in `collate`, from the generator that it is
given, so a batch is a pure function of its examples and a seed.
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
    """One part of a loss: its number of labels and its weight."""

    count: int
    weight: float = 1.0


class Objective(Protocol):
    def count_parts(self, batch: Any) -> dict[str, LossPart]:
        """The label count of each part in this batch; known from the labels alone."""

    def loss_sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """The summed losses of each part, in fp32. An objective that compares the rows of a batch with each other has a
        third argument, `ranks: int = 1`: the number of ranks that compute one batch together, each with its own
        rows.
        """


def rank_arguments(objective: Objective, ranks: int) -> dict[str, int]:
    """Extra arguments of this objective's `loss_sums` for so many ranks.

    The signature is inspected, since a custom objective may have only two parameters; passing `ranks` and catching the
    TypeError would hide errors inside it.
    """
    return {"ranks": ranks} if ranks > 1 and "ranks" in inspect.signature(objective.loss_sums).parameters else {}


def total_counts(batches: Sequence[Mapping[str, LossPart]]) -> dict[str, LossPart]:
    """The summed parts of several micro-batches."""
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
)  # tasks that read whole texts between special tokens


@dataclass(frozen=True, eq=False)
class Task:
    """Base class of tasks. `chunk` is the number of tokens whose logits are computed at a time (None: all); `segments`:
    the model has segment embeddings."""

    c: Any
    specials: TaskSpecialTokens = TaskSpecialTokens()
    rows: RowPadding = RowPadding()
    chunk: int | None = None
    segments: bool = False

    @property
    def extra_tokens(self) -> int:
        """The number of tokens that `collate` adds to an example."""
        return 0

    encoder: ClassVar[bool] = False  # requires an encoder
    causal: ClassVar[bool] = False  # requires a causal mask: labels would be visible
    heads: ClassVar[tuple[str, ...]] = ("lm",)

    @classmethod
    def special_tokens_needed(cls, c: Any, specials: TaskSpecialTokens) -> tuple[str, ...]:
        """The roles of special tokens that the task requires."""
        return ()

    @classmethod
    def build(cls, c: Any, tokenizer: Any, **options: Any) -> Self:
        return cls(c, TaskSpecialTokens.of(tokenizer), **options)

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        """Encode a record; "cut" is the number of truncated tokens."""
        raise NotImplementedError

    def examples(self, record: RecordLike, tokenizer: Any) -> list[TaskExample]:
        """All examples of a record; a long text becomes several consecutive rows."""
        return [self.example(record, tokenizer)]

    def length(self, example: TaskExample) -> int:
        """The number of tokens of an example: its longest list."""
        return max(len(ids) for ids in example.values() if isinstance(ids, list))

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        raise NotImplementedError

    def collate_eval(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        """A batch for validation: without data augmentation."""
        return self.collate(examples, chance)

    def count_parts(self, batch: Any) -> dict[str, LossPart]:
        return {"loss": LossPart(count_labels(batch["labels"]))}

    def loss_sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        raise NotImplementedError

    def answers(self, model: nn.Module, batch: Any) -> TaskOutputs:
        """The model's predictions, one entry for each label."""
        raise NotImplementedError

    def expected_answers(self, batch: Any) -> TaskOutputs:
        """The labels, one entry for each."""
        return {"loss": labelled_entries(batch["labels"], batch["labels"])}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return {"accuracy": accuracy(predictions["loss"], labels["loss"])}

    def check(self, model: config.Transformer) -> None:
        """Check that a model fits the task; errors name the setting by its path."""
        task, head = f"task {self.c.kind!r}", model.head.kind
        if (model.encoder is not None) != self.encoder:
            how = "an encoder-decoder; add model.encoder" if self.encoder else "one trunk; leave out model.encoder"
            raise ConfigError(f"model.encoder: {task} needs {how}")
        if head not in self.heads:
            raise ConfigError(f"model.head.kind: {head!r}, and {task} needs {' or '.join(self.heads)}; "
                              f"set model.head.kind={self.heads[0]}")  # fmt: skip
        for where, vocab, size in self.vocabularies(model):
            if vocab < size:
                raise ConfigError(f"model.{where}.vocab: {vocab:,}, and the tokenizer has {size:,} tokens; "
                                  "leave it out, or make it larger")  # fmt: skip
        if self.causal and (ahead := [text for text in model.trunk.masks if mask(text).ahead]):
            raise ConfigError(f"model.trunk.mask: {ahead[0]!r} attends to the label; "
                              f"write 'causal & {ahead[0]}' or 'causal'")  # fmt: skip

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        """Each embedding table by its path, with its size and that of its tokenizer."""
        return [("embed", model.embed.vocab, self.specials.size)]


def labelled_entries(table: Tensor, labels: Tensor) -> list[int]:
    """The entries of a table where there are labels."""
    found: list[int] = table[labels != IGNORE_INDEX].tolist()
    return found


def split_evenly(ids: Sequence[int], room: int) -> list[Sequence[int]]:
    """Split a text into parts of at most `room` tokens, of about equal length."""
    count = -(-len(ids) // room)
    size = -(-len(ids) // max(1, count))
    return [ids[start : start + size] for start in range(0, len(ids), size)]


class TextTask(Task):
    """Tasks whose predictions are tokens: one loss part, `labels` for every token."""

    @property
    def smoothing(self) -> float:
        return getattr(self.c, "label_smoothing", 0.0)

    def loss_sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        said = model_outputs(model, batch, deferred=self.chunk is not None)
        return {"loss": cross_entropy_sum(said, batch["labels"], self.smoothing, self.chunk or 1)}

    def answers(self, model: nn.Module, batch: Any) -> TaskOutputs:
        """The most likely token at each label, with teacher forcing."""
        return {"loss": labelled_entries(model_outputs(model, batch).argmax(-1), batch["labels"])}


TASKS: dict[str, type[Task]] = {}
INPUT_TASKS: dict[str, type[Task]] = {}  # kinds with another class for inputs other than text
T = TypeVar("T", bound=type[Task])


def register_task(kind: str) -> Callable[[T], T]:
    """Register a task class under its kind in configs."""

    def put(task: T) -> T:
        TASKS[kind] = task
        return task

    return put


def register_input_task(kind: str) -> Callable[[T], T]:
    """Register a task class for inputs other than text."""

    def put(task: T) -> T:
        INPUT_TASKS[kind] = task
        return task

    return put


def add_task_tokens(c: config.Task, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the special tokens of this task, and a post-processor that adds them around a text; unchanged
    if it has them all."""
    marks = c.sentinels if isinstance(c, config.SpanCorruption) else 0
    made = with_special_tokens(
        tokenizer, TASKS[c.kind].special_tokens_needed(c, TaskSpecialTokens.of(tokenizer)), marks
    )
    return with_special_template(made) if c.kind in FRAMED else made


def build_task(
    c: config.Task, tokenizer: Tokenizer, model: config.Model | None = None, *, rows: RowPadding | None = None,
    chunk: int | None = None, **more: Any,
) -> Task:  # fmt: skip
    """Build the task of a config for texts in this tokenizer's vocabulary; checked against the model."""
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
    """Build the task of a config for inputs of a processor; checked against the model."""
    task: Any = INPUT_TASKS.get(c.kind) or TASKS[c.kind]
    if "sense" not in task.__dataclass_fields__:
        raise ConfigError(f"task.kind: {c.kind!r} needs text, and this front end takes none; set it to "
                          f"{' or '.join(INPUT_TASKS)}, or model.embed.kind=text")  # fmt: skip
    made: Task = task(c, sense=sense, **more)
    if isinstance(model, config.Transformer):
        made.check(model)
    return made


def join_outputs(answers: Sequence[TaskOutputs]) -> TaskOutputs:
    """Concatenate the outputs of several batches."""
    return {name: [each for some in answers for each in some[name]] for name in answers[0]} if answers else {}


def score_outputs(task: Task, pairs: Sequence[tuple[TaskOutputs, TaskOutputs]]) -> Mapping[str, float]:
    """The score of (answers, expected) over many batches."""
    return task.score(join_outputs([said for said, _ in pairs]), join_outputs([meant for _, meant in pairs]))
