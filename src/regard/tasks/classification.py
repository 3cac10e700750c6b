"""What is this picture, this sound, this graph? One answer for the whole, whatever sense reads it.

    Record  ── the sense ──►  tensors  ── collate ──►  {"ids": ..., "label": (B,), "tokens": (B,)}

Rows that training mixed (mixup: Zhang et al. 2018) are asked for both of their classes:

    share · CE(label) + (1 - share) · CE(other)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config import ConfigError
from regard.core.masks import mask
from regard.data import Record
from regard.inputs.senses import Example, Sense
from regard.tasks import records
from regard.tasks.classify import class_scores, number_scores
from regard.tasks.objective import Part
from regard.tasks.rows import Batch
from regard.tasks.task import Answers, Task, sensed
from regard.text import Tokenizer

ASIDE = ("label", "other", "share", "tokens")  # what of a batch is not for the model's forward


def answered(model: nn.Module, batch: Batch) -> Any:
    """What the model answers to a batch: all that the sense made is given to its front end."""
    return model(batch["ids"], **{name: table for name, table in batch.items() if name not in ("ids", *ASIDE)})


@dataclass(frozen=True, eq=False)
class Sensed(Task):
    """Objectives on what a sense reads; those with a label for the whole say what it is."""

    sense: Sense = field(kw_only=True)
    heads = ("pooled",)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        head = model.head
        if not isinstance(head, config.Pooled):
            return
        if head.out != self.out:
            raise ConfigError(f"model.head.out: {head.out}, and there {'is' if self.out == 1 else 'are'} {self.out} to "
                              f"answer; set it to {self.out}")  # fmt: skip
        front = getattr(model.embed, "cls", None)
        if head.place == "cls" and front is False:
            raise ConfigError("model.head.place: 'cls' reads a first token that stands for the whole, and this front "
                              "end puts none there; set model.embed.cls=true, or model.head.place=mean")  # fmt: skip
        if head.place == "cls" and not any(mask(text).ahead for text in model.trunk.masks):
            raise ConfigError(f"model.head.place: 'cls' is the first token, and under the mask "
                              f"{model.trunk.masks[0]!r} it sees itself alone; set it to last")  # fmt: skip

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return []

    @property
    def out(self) -> int:
        """The width of the answer."""
        return 1

    def example(self, record: Record, tokenizer: Tokenizer | None = None) -> Example:  # type: ignore[override]
        return self.seen(record) | {"label": self.label(record)}

    def seen(self, record: Record) -> Example:
        """What the sense makes of it; a file by itself is what is meant, whatever its column is called."""
        alone = self.c.text not in record and isinstance(record.get(self.sense.column), Path)
        return self.sense.example(record, self.sense.column if alone else self.c.text)

    def label(self, record: Record) -> Tensor:
        raise NotImplementedError

    def length(self, example: Example) -> int:
        return self.sense.length(example)

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        return self.made(examples, chance)

    def plain(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        return self.made(examples, None)

    def made(self, examples: Sequence[Example], chance: torch.Generator | None) -> Batch:
        batch = self.sense.batch(examples, chance)
        batch["tokens"] = torch.tensor([self.sense.length(example) for example in examples])
        if "label" in examples[0]:
            batch["label"] = torch.stack([example["label"] for example in examples])
        if (partner := batch.pop("partner", None)) is not None:  # ranks share rows, so each brings what it is asked
            batch["other"] = batch["label"][partner]
        return batch

    def parts(self, batch: Batch) -> dict[str, Part]:
        return {"loss": Part(len(batch["label"]))}

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        said = answered(model, batch).float()
        each = self.loss(said, batch["label"])
        if "other" in batch:
            share = batch["share"].to(each)
            each = share * each + (1 - share) * self.loss(said, batch["other"])
        return {"loss": each.sum()}

    def loss(self, said: Tensor, label: Tensor) -> Tensor:  # (B, out), (B,) -> (B,)
        raise NotImplementedError

    def expected(self, batch: Batch) -> Answers:
        return {"loss": batch["label"].tolist()}


@sensed("classify")
@dataclass(frozen=True, eq=False)
class ClassifySensed(Sensed):
    """The likeliest class."""

    c: config.Classify = config.Classify()

    @property
    def out(self) -> int:
        return len(self.c.classes)

    def label(self, record: Record) -> Tensor:
        return torch.tensor(records.chosen(record, self.c.label, records.column(record, self.c.label), self.c.classes))

    def loss(self, said: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(said, label, reduction="none")

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        return {"loss": answered(model, batch).argmax(-1).tolist()}

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        return class_scores(said["loss"], meant["loss"], self.out)


@sensed("regress")
@dataclass(frozen=True, eq=False)
class RegressSensed(Sensed):
    """A number; its error counts squared."""

    c: config.Regress = config.Regress()

    def label(self, record: Record) -> Tensor:
        return torch.tensor(records.number(record, self.c.label), dtype=torch.float32)

    def loss(self, said: Tensor, label: Tensor) -> Tensor:
        return F.mse_loss(said[:, 0], label, reduction="none")

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        return {"loss": answered(model, batch)[:, 0].tolist()}

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        return number_scores(said["loss"], meant["loss"])
