"""Common parts of image-text tasks: examples of tensors and a text, and texts that are lists of phrases.

    Record  ── the processor ─► tensors ─┐
           ── the tokenizer ─► ids ─────┴─►  one example, stored as tensors

A text that is too long is refused: half a caption might describe another image.

Of a list of synonymous phrases, training reads another random sample each time. A model therefore cannot memorise the
text, and a single phrase is as valid as any.

    "grinning face, cheerful, happy"   ──►   " happy, grinning face"     " cheerful"     " grinning face, happy"
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.inputs.processors import Processor, TensorExample
from regard.tasks import columns
from regard.tasks.collate import TaskBatch
from regard.tasks.columns import RecordLike
from regard.tasks.task import Task
from regard.text.tokenizer import Tokenizer

TEXT_KEY = "words"  # key of the text ids in an example


@dataclass(frozen=True, eq=False)
class ImageTextTask(Task):
    """Tasks on image-text pairs: `sense` is the processor; `comma` is the token id between phrases."""

    sense: Processor = field(kw_only=True)
    comma: int | None = field(default=None, kw_only=True)
    around: ClassVar[int] = 0  # special tokens that `collate` adds

    @classmethod
    def build(cls, c: Any, tokenizer: Tokenizer | None, **options: Any) -> Self:
        made = super().build(c, tokenizer, **options)
        lists = tokenizer is not None and reads_phrases(c)
        return replace(made, comma=separator_id(tokenizer)) if lists else made  # type: ignore[arg-type]

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TensorExample:
        ids = columns.encode_column(record, self.c.text, self.read(columns.get_text(record, self.c.text)), tokenizer)
        most = self.room - self.around
        if len(ids) > most:
            raise DataError(f"{columns.record_place(record)}: column {self.c.text!r} has {len(ids)} tokens, and there "
                            f"is room for {most}; make train.context larger, or skip it by "
                            "data.on_bad_record=skip")  # fmt: skip
        seen = self.sense.example(record, self.c.image)  # type: ignore[arg-type]
        return seen | {TEXT_KEY: torch.tensor(ids)}

    def read(self, text: str) -> str:
        """Normalise a text before tokenization."""
        return normalize_phrases(text) if reads_phrases(self.c) else text

    def words(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> list[list[int]]:
        """The ids of the texts; in training a sample of the phrases of each list."""
        rows = [example[TEXT_KEY].tolist() for example in examples]
        if self.comma is None or chance is None:
            return rows
        return [sample_phrases(row, self.comma, chance) for row in rows]

    @property
    def room(self) -> int:
        """Text tokens that fit beside the special tokens."""
        return self.rows.length

    def length(self, example: TensorExample) -> int:
        """The number of tokens of an example, image and text."""
        return self.sense.length(example) + len(example[TEXT_KEY]) + self.around

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, chance)

    def collate_eval(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, None)

    def build_batch(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> TaskBatch:
        """A batch; with `chance` for training."""
        raise NotImplementedError

    def token_counts(self, examples: Sequence[TensorExample]) -> dict[str, Tensor]:
        return {"tokens": torch.tensor([self.length(example) for example in examples])}


def reads_phrases(c: Any) -> bool:
    """Whether a task reads its texts as lists of phrases."""
    return getattr(c, "phrase_list", False) is True


def rename_tensors(tables: dict[str, Tensor], first: str, before: str) -> dict[str, Any]:
    """Rename a processor's tensors to leave room for a text: "ids" becomes `first`, others get the prefix `before`."""
    return {first if name == "ids" else before + name: table for name, table in tables.items()}


def normalize_phrases(text: str) -> str:
    """A list with a space before every phrase, so that a word has the same token at every position."""
    return ",".join(f" {phrase.strip()}" for phrase in text.split(",") if phrase.strip())


def separator_id(tokenizer: Tokenizer) -> int:
    """The id of the separator between phrases."""
    try:
        marks = [id for id in tokenizer.encode(" a, a") if tokenizer.decode([id]) == ","]
    except DataError:  # its vocabulary has no comma
        marks = []
    if len(marks) != 1:
        raise ConfigError("task.phrase_list: this tokenizer has no token that is a comma and nothing else; choose "
                          "another in text, or leave phrases out")  # fmt: skip
    return marks[0]


def sample_phrases(ids: list[int], comma: int, chance: torch.Generator) -> list[int]:
    """All phrases with probability 1/2, else a random number of them; in random order."""
    ends = [place for place, id in enumerate(ids) if id == comma]
    phrases = [ids[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(ids)], strict=True)]
    half, least = torch.rand(2, generator=chance).tolist()
    count = len(phrases) if half < 0.5 else 1 + int(least * len(phrases))
    first, *rest = [phrases[place] for place in torch.randperm(len(phrases), generator=chance)[:count].tolist()]
    return [*first, *(id for phrase in rest for id in (comma, *phrase))]
