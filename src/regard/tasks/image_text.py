"""What is seen and a text that goes with it: what the objectives on mixtures have in common.

    Record ── the sense ──► tensors ─┐
           ── the tokenizer ► words ─┴─►  one example, kept as tensors

A text that is too long is refused: half a caption would be another picture's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from regard.config import DataError
from regard.inputs.senses import Example, Sense
from regard.tasks import phrases, records
from regard.tasks.records import Record
from regard.tasks.rows import Batch
from regard.tasks.task import Task
from regard.text import Tokenizer

WORDS = "words"  # the ids of the text, among what the sense made


@dataclass(frozen=True, eq=False)
class Pictured(Task):
    """Objectives on pairs: `sense` reads the one, a tokenizer the other; `comma` is the id between phrases."""

    sense: Sense = field(kw_only=True)
    comma: int | None = field(default=None, kw_only=True)
    around: ClassVar[int] = 0  # special tokens that `collate` puts beside those of the text

    @classmethod
    def of(cls, c: Any, tokenizer: Tokenizer | None, **how: Any) -> Self:
        made = super().of(c, tokenizer, **how)
        lists = tokenizer is not None and phrased(c)
        return replace(made, comma=phrases.comma(tokenizer)) if lists else made  # type: ignore[arg-type]

    def example(self, record: Record, tokenizer: Tokenizer) -> Example:
        ids = records.encoded(record, self.c.text, self.read(records.text(record, self.c.text)), tokenizer)
        most = self.room - self.around
        if len(ids) > most:
            raise DataError(f"{records.place(record)}: column {self.c.text!r} has {len(ids)} tokens, and there is room "
                            f"for {most}; make train.context larger, or pass it over by data.bad=skip")  # fmt: skip
        seen = self.sense.example(record, self.c.image)  # type: ignore[arg-type]
        return seen | {WORDS: torch.tensor(ids)}

    def read(self, text: str) -> str:
        """A text as the tokenizer is given it."""
        return phrases.listed(text) if phrased(self.c) else text

    def words(self, examples: Sequence[Example], chance: torch.Generator | None) -> list[list[int]]:
        """The ids of the texts; of lists some, to train on."""
        rows = [example[WORDS].tolist() for example in examples]
        if self.comma is None or chance is None:
            return rows
        return [phrases.some(row, self.comma, chance) for row in rows]

    @property
    def room(self) -> int:
        """Tokens of a text that fit, with what stands around them."""
        return self.rows.length

    def length(self, example: Example) -> int:
        """How many tokens an example will be, of both kinds."""
        return self.sense.length(example) + len(example[WORDS]) + self.around

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        return self.made(examples, chance)

    def plain(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        return self.made(examples, None)

    def made(self, examples: Sequence[Example], chance: torch.Generator | None) -> Batch:
        """A batch, to train on if there is `chance`."""
        raise NotImplementedError

    def counted(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        return {"tokens": torch.tensor([self.length(example) for example in examples])}


def phrased(c: Any) -> bool:
    """Whether a task reads its texts as lists."""
    return getattr(c, "phrases", False) is True


def named(tables: dict[str, Tensor], first: str, before: str) -> dict[str, Any]:
    """What a sense gives to its front end, under names that leave room for a text: "ids" is `first`."""
    return {first if name == "ids" else before + name: table for name, table in tables.items()}
