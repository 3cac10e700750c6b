"""Next-token prediction at every position in parallel: p(x) = p(x_1) p(x_2 | x_1) ... (teacher forcing)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.data.packing import IGNORE_INDEX
from regard.tasks import columns
from regard.tasks.collate import TaskBatch, TaskExample
from regard.tasks.columns import RecordLike
from regard.tasks.losses import count_labels
from regard.tasks.task import LossPart, TaskOutputs, TextTask, register_task, split_evenly
from regard.text.tokenizer import Tokenizer


@register_task("next_token")
@dataclass(frozen=True, eq=False)
class NextToken(TextTask):
    """Next-token task; a batch is ids (B, N + 1), of which the first N are inputs, the last N labels; or padded
    rows."""

    c: config.NextToken = config.NextToken()
    causal = True

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        ids, room = columns.get_ids(record, self.c.input, tokenizer), self.room
        return self.around(ids[:room]) | {"cut": max(0, len(ids) - room)}

    def examples(self, record: RecordLike, tokenizer: Tokenizer) -> list[TaskExample]:
        ids = columns.get_ids(record, self.c.input, tokenizer)
        return [self.around(piece) | {"cut": 0} for piece in split_evenly(ids, self.room)]

    def around(self, ids: Sequence[int]) -> TaskExample:
        """A text with its start and end tokens, which are not repeated if the text has them."""
        before, after, ids = self.specials.single.before, self.after, tuple(ids)
        first = () if ids[: len(before)] == before else before
        return {"ids": [*first, *ids, *(() if after and ids[-len(after) :] == after else after)]}

    @property
    def after(self) -> tuple[int, ...]:
        end = self.specials.roles.get("eos")
        return self.specials.single.after or (() if end is None else (end,))

    @property
    def room(self) -> int:
        """Text tokens that fit in a row: the last token is only a label."""
        return self.rows.length + 1 - len(self.specials.single.before) - len(self.after)

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        rows = [example["ids"] for example in examples]
        read, said = [row[:-1] for row in rows], [row[1:] for row in rows]
        ids, labels = self.rows.pad(read, self.specials.fill), self.rows.pad(said, IGNORE_INDEX)
        return {"ids": ids, "labels": labels} | self.rows.real(read)

    def count_parts(self, batch: Tensor | TaskBatch) -> dict[str, LossPart]:
        if isinstance(batch, Tensor):  # known without reading from the device
            return {"loss": LossPart(batch.shape[0] * (batch.shape[1] - 1))}
        return {"loss": LossPart(count_labels(shift_labels(batch)["labels"]))}

    def loss_sums(self, model: nn.Module, batch: Tensor | TaskBatch) -> dict[str, Tensor]:
        return super().loss_sums(model, shift_labels(batch))  #: S085

    def answers(self, model: nn.Module, batch: Tensor | TaskBatch) -> TaskOutputs:
        return super().answers(model, shift_labels(batch))

    def expected_answers(self, batch: Any) -> TaskOutputs:
        return super().expected_answers(shift_labels(batch))


def shift_labels(batch: Tensor | TaskBatch) -> TaskBatch:
    """Inputs are all but the last token, labels all but the first; no labels at document starts and padding."""
    if not isinstance(batch, Tensor) and "labels" in batch:
        return batch
    tables = {"ids": batch} if isinstance(batch, Tensor) else batch
    labels = tables["ids"][:, 1:]
    if "document" in tables:
        labels = labels.where(tables["document"][:, 1:] == tables["document"][:, :-1], IGNORE_INDEX)
    if "real" in tables:
        labels = labels.where(tables["real"][:, 1:], IGNORE_INDEX)
    return {name: table[:, :-1] for name, table in tables.items()} | {"labels": labels}
