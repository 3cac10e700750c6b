"""An objective from a file to a number: a record becomes an example, examples a batch, and a batch sums and answers.

    Record  ── example ──►  Example  ── collate ──►  Batch  ── parts, sums ──►  the loss
    {"text": "A cat"}       {"ids": [5, 9]}          {"ids": (B, N), "labels": (B, N), "real": (B, N)}
                                                            ── answers, expected ──►  score

Each kind is a file that enters its class in TASKS. Whatever is random is drawn in `collate` from the generator that it
is given, so a batch is a pure function of its examples and a seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from regard import config
from regard.config import ConfigError
from regard.core.masks import mask
from regard.tasks.chunks import NOTHING
from regard.tasks.losses import asked, count, surprise
from regard.tasks.metrics import accuracy
from regard.tasks.objective import Part
from regard.tasks.records import Record
from regard.tasks.rows import Batch, Example, Rows
from regard.tasks.specials import Specials, equipped, with_template
from regard.text import Tokenizer

Answers = dict[str, list[Any]]  # by the name of a part
FRAMED = ("classify", "regress", "tag", "answer", "masked")  # read whole texts between special tokens


@dataclass(frozen=True, eq=False)
class Task:
    """What all objectives share. `chunk` tokens have their logits made at a time (none: all); `segments` says that the
    model tells first texts from second ones."""

    c: Any
    specials: Specials = Specials()
    rows: Rows = Rows()
    chunk: int | None = None
    segments: bool = False

    @property
    def added(self) -> int:
        """Tokens that `collate` puts around an example's own."""
        return 0

    encoder: ClassVar[bool] = False  # reads a source
    causal: ClassVar[bool] = False  # must not see what it should say
    heads: ClassVar[tuple[str, ...]] = ("vocabulary",)

    @classmethod
    def needs(cls, c: Any, specials: Specials) -> tuple[str, ...]:
        """The roles without which there is no asking."""
        return ()

    @classmethod
    def of(cls, c: Any, tokenizer: Any, **how: Any) -> Self:
        return cls(c, Specials.of(tokenizer), **how)

    def example(self, record: Record, tokenizer: Tokenizer) -> Example:
        """A record as numbers; "cut" is how many of its tokens did not fit."""
        raise NotImplementedError

    def examples(self, record: Record, tokenizer: Any) -> list[Example]:
        """All that a record has to learn from; a long text is several rows, one after the other."""
        return [self.example(record, tokenizer)]

    def length(self, example: Example) -> int:
        """How many tokens an example is: its longest list."""
        return max(len(ids) for ids in example.values() if isinstance(ids, list))

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        raise NotImplementedError

    def plain(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        """A batch to validate on: without what is done to examples only to learn more from them."""
        return self.collate(examples, chance)

    def parts(self, batch: Any) -> dict[str, Part]:
        return {"loss": Part(count(batch["labels"]))}

    def sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        raise NotImplementedError

    def answers(self, model: nn.Module, batch: Any) -> Answers:
        """What the model says, one entry each time it is asked."""
        raise NotImplementedError

    def expected(self, batch: Any) -> Answers:
        """What it should say."""
        return {"loss": told(batch["labels"], batch["labels"])}

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        return {"accuracy": accuracy(said["loss"], meant["loss"])}

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


def told(table: Tensor, labels: Tensor) -> list[int]:
    """The entries of a table where there are labels."""
    found: list[int] = table[labels != NOTHING].tolist()
    return found


def pieces(ids: Sequence[int], room: int) -> list[Sequence[int]]:
    """A text as stretches that fit, all about equally long."""
    count = -(-len(ids) // room)
    size = -(-len(ids) // max(1, count))
    return [ids[start : start + size] for start in range(0, len(ids), size)]


class Telling(Task):
    """Objectives whose answers are words: one part, `labels` beside every token."""

    @property
    def smoothing(self) -> float:
        return getattr(self.c, "smoothing", 0.0)

    def sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        said = asked(model, batch, held=self.chunk is not None)
        return {"loss": surprise(said, batch["labels"], self.smoothing, self.chunk or 1)}

    def answers(self, model: nn.Module, batch: Any) -> Answers:
        """The likeliest word wherever one is asked for, each told what really stood before it."""
        return {"loss": told(asked(model, batch).argmax(-1), batch["labels"])}


TASKS: dict[str, type[Task]] = {}
SENSED: dict[str, type[Task]] = {}  # kinds that are also asked of what is no text, by another class
T = TypeVar("T", bound=type[Task])


def enter(kind: str) -> Callable[[T], T]:
    """Enters a class in the table under the kind that a config says."""

    def put(task: T) -> T:
        TASKS[kind] = task
        return task

    return put


def sensed(kind: str) -> Callable[[T], T]:
    """Enters a class in the table for what is no text."""

    def put(task: T) -> T:
        SENSED[kind] = task
        return task

    return put


def equip(c: config.Task, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the special tokens that this objective needs, and a word of where they stand around a text;
    itself if it has them all."""
    marks = c.sentinels if isinstance(c, config.Spans) else 0
    made = equipped(tokenizer, TASKS[c.kind].needs(c, Specials.of(tokenizer)), marks)
    return with_template(made) if c.kind in FRAMED else made


def build(
    c: config.Task, tokenizer: Tokenizer, model: config.Model | None = None, *, rows: Rows | None = None,
    chunk: int | None = None, **more: Any,
) -> Task:  # fmt: skip
    """The objective that a setting describes, for texts in this tokenizer's words; checked against the model."""
    task = TASKS[c.kind]
    if missing := task.needs(c, Specials.of(tokenizer)):
        raise ConfigError(f"text: task {c.kind!r} needs a {missing[0]} token, and this tokenizer has none; "
                          "add it with regard.tasks.equip")  # fmt: skip
    segments = model is None or (isinstance(model.embed, config.Embed) and model.embed.segments > 1)
    made = task.of(c, tokenizer, rows=rows or Rows(), chunk=chunk, segments=segments, **more)
    if model is not None:
        made.check(model)  # type: ignore[arg-type]  # towers are asked one thing, whose check knows them
    return made


def build_sensed(c: config.Task, sense: Any, model: config.Model | None = None, **more: Any) -> Task:
    """The objective that a setting describes, for what a sense reads; checked against the model."""
    task: Any = SENSED.get(c.kind) or TASKS[c.kind]
    if "sense" not in task.__dataclass_fields__:
        raise ConfigError(f"task.kind: {c.kind!r} is asked of texts, and this front end reads none; set it to "
                          f"{' or '.join(SENSED)}, or model.embed.kind=text")  # fmt: skip
    made: Task = task(c, sense=sense, **more)
    if isinstance(model, config.Transformer):
        made.check(model)
    return made


def joined(answers: Sequence[Answers]) -> Answers:
    """The answers to several batches as those to one."""
    return {name: [each for some in answers for each in some[name]] for name in answers[0]} if answers else {}


def scored(task: Task, pairs: Sequence[tuple[Answers, Answers]]) -> Mapping[str, float]:
    """The score of (answers, expected) over many batches."""
    return task.score(joined([said for said, _ in pairs]), joined([meant for _, meant in pairs]))
