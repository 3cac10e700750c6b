"""The next token, at every place at once: p(x) = p(x_1) p(x_2 | x_1) ... (teacher forcing)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.tasks import records
from regard.tasks.chunks import NOTHING
from regard.tasks.losses import count
from regard.tasks.objective import Part
from regard.tasks.records import Record
from regard.tasks.rows import Batch, Example
from regard.tasks.task import Answers, Telling, enter, pieces
from regard.text import Tokenizer


@enter("next")
@dataclass(frozen=True, eq=False)
class NextToken(Telling):
    """A batch is ids (B, N + 1): the first N are read, the last N are predicted. Or rows of several lengths."""

    c: config.NextToken = config.NextToken()
    causal = True

    def example(self, record: Record, tokenizer: Tokenizer) -> Example:
        ids, room = records.ids(record, self.c.text, tokenizer), self.room
        return self.around(ids[:room]) | {"cut": max(0, len(ids) - room)}

    def examples(self, record: Record, tokenizer: Tokenizer) -> list[Example]:
        ids = records.ids(record, self.c.text, tokenizer)
        return [self.around(piece) | {"cut": 0} for piece in pieces(ids, self.room)]

    def around(self, ids: Sequence[int]) -> Example:
        """A text with the special tokens that begin and end one; none of them twice, if the text has them."""
        before, after, ids = self.specials.single.before, self.after, tuple(ids)
        first = () if ids[: len(before)] == before else before
        return {"ids": [*first, *ids, *(() if after and ids[-len(after) :] == after else after)]}

    @property
    def after(self) -> tuple[int, ...]:
        end = self.specials.roles.get("end")
        return self.specials.single.after or (() if end is None else (end,))

    @property
    def room(self) -> int:
        """Tokens of a text that fit in a row: the last of a row is told and not read."""
        return self.rows.length + 1 - len(self.specials.single.before) - len(self.after)

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        rows = [example["ids"] for example in examples]
        read, said = [row[:-1] for row in rows], [row[1:] for row in rows]
        ids, labels = self.rows.padded(read, self.specials.fill), self.rows.padded(said, NOTHING)
        return {"ids": ids, "labels": labels} | self.rows.real(read)

    def parts(self, batch: Tensor | Batch) -> dict[str, Part]:
        if isinstance(batch, Tensor):  # known without a look at the device
            return {"loss": Part(batch.shape[0] * (batch.shape[1] - 1))}
        return {"loss": Part(count(shifted(batch)["labels"]))}

    def sums(self, model: nn.Module, batch: Tensor | Batch) -> dict[str, Tensor]:
        return super().sums(model, shifted(batch))  #: S085

    def answers(self, model: nn.Module, batch: Tensor | Batch) -> Answers:
        return super().answers(model, shifted(batch))

    def expected(self, batch: Any) -> Answers:
        return super().expected(shifted(batch))


def shifted(batch: Tensor | Batch) -> Batch:
    """All but the last token to read, all but the first to tell; never the first of a document, nor padding."""
    if not isinstance(batch, Tensor) and "labels" in batch:
        return batch
    tables = {"ids": batch} if isinstance(batch, Tensor) else batch
    labels = tables["ids"][:, 1:]
    if "document" in tables:
        labels = labels.where(tables["document"][:, 1:] == tables["document"][:, :-1], NOTHING)
    if "real" in tables:
        labels = labels.where(tables["real"][:, 1:], NOTHING)
    return {name: table[:, :-1] for name, table in tables.items()} | {"labels": labels}
