"""What the image-text tasks share: examples of tensors and a text, and texts that are lists of phrases.

    Record ── the processor ─► tensors ─┐
           ── the tokenizer ─► ids ─────┴─►  one example, stored as tensors

A text that is too long is refused: half a caption would be another image's.

Of a list of phrases that say the same thing in other words, training reads another sample each time. So a text cannot
be learned by heart, and a single phrase is a text as good as any.

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

TEXT_KEY = "words"  # the ids of the text, among what the sense made


@dataclass(frozen=True, eq=False)
class ImageTextTask(Task):
    """Objectives on pairs: `sense` reads the one, a tokenizer the other; `comma` is the id between phrases."""

    sense: Processor = field(kw_only=True)
    comma: int | None = field(default=None, kw_only=True)
    around: ClassVar[int] = 0  # special tokens that `collate` puts beside those of the text

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
                            f"is room for {most}; make train.context larger, or pass it over by "
                            "data.on_bad_record=skip")  # fmt: skip
        seen = self.sense.example(record, self.c.image)  # type: ignore[arg-type]
        return seen | {TEXT_KEY: torch.tensor(ids)}

    def read(self, text: str) -> str:
        """A text as the tokenizer is given it."""
        return normalize_phrases(text) if reads_phrases(self.c) else text

    def words(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> list[list[int]]:
        """The ids of the texts; of lists some, to train on."""
        rows = [example[TEXT_KEY].tolist() for example in examples]
        if self.comma is None or chance is None:
            return rows
        return [sample_phrases(row, self.comma, chance) for row in rows]

    @property
    def room(self) -> int:
        """Tokens of a text that fit, with what stands around them."""
        return self.rows.length

    def length(self, example: TensorExample) -> int:
        """How many tokens an example will be, of both kinds."""
        return self.sense.length(example) + len(example[TEXT_KEY]) + self.around

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, chance)

    def collate_eval(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, None)

    def build_batch(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> TaskBatch:
        """A batch, to train on if there is `chance`."""
        raise NotImplementedError

    def token_counts(self, examples: Sequence[TensorExample]) -> dict[str, Tensor]:
        return {"tokens": torch.tensor([self.length(example) for example in examples])}


def reads_phrases(c: Any) -> bool:
    """Whether a task reads its texts as lists."""
    return getattr(c, "phrase_list", False) is True


def rename_tensors(tables: dict[str, Tensor], first: str, before: str) -> dict[str, Any]:
    """What a sense gives to its front end, under names that leave room for a text: "ids" is `first`."""
    return {first if name == "ids" else before + name: table for name, table in tables.items()}


def normalize_phrases(text: str) -> str:
    """A list with a space before every phrase, the first too: a word is the same token wherever it stands."""
    return ",".join(f" {phrase.strip()}" for phrase in text.split(",") if phrase.strip())


def separator_id(tokenizer: Tokenizer) -> int:
    """The id that stands between phrases."""
    try:
        marks = [id for id in tokenizer.encode(" a, a") if tokenizer.decode([id]) == ","]
    except DataError:  # it can say no comma at all
        marks = []
    if len(marks) != 1:
        raise ConfigError("task.phrase_list: this tokenizer has no token that is a comma and nothing else; choose "
                          "another in text, or leave phrases out")  # fmt: skip
    return marks[0]


def sample_phrases(ids: list[int], comma: int, chance: torch.Generator) -> list[int]:
    """Every second time all phrases of a list, else some, as many or as few as chance has it; in any order."""
    ends = [place for place, id in enumerate(ids) if id == comma]
    phrases = [ids[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(ids)], strict=True)]
    half, least = torch.rand(2, generator=chance).tolist()
    count = len(phrases) if half < 0.5 else 1 + int(least * len(phrases))
    first, *rest = [phrases[place] for place in torch.randperm(len(phrases), generator=chance)[:count].tolist()]
    return [*first, *(id for phrase in rest for id in (comma, *phrase))]
