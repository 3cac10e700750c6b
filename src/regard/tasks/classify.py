"""What is this text, or this pair of texts? One answer for the whole, from one vector: a class, or a number.

    [CLS] the film was a delight [SEP]                          positive
    [CLS] a man sleeps [SEP] somebody is awake [SEP]            contradiction
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.masks import mask
from regard.tasks import records
from regard.tasks.losses import asked
from regard.tasks.metrics import accuracy, f1, macro_f1, matthews, pearson, spearman
from regard.tasks.objective import Part
from regard.tasks.pairs import separators
from regard.tasks.records import Record
from regard.tasks.rows import Batch, Example, trimmed
from regard.tasks.specials import Specials
from regard.tasks.task import Answers, Task, enter
from regard.text import Tokenizer


@dataclass(frozen=True, eq=False)
class Judged(Task):
    """A text or a pair, and one label."""

    heads = ("pooled",)

    @classmethod
    def needs(cls, c: Any, specials: Specials) -> tuple[str, ...]:
        return separators(specials, c.pair is not None)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        head = model.head
        assert isinstance(head, config.Pooled)
        if head.out != self.out:
            raise config.ConfigError(f"model.head.out: {head.out}, and there {'is' if self.out == 1 else 'are'} "
                                     f"{self.out} to answer; set it to {self.out}")  # fmt: skip
        if head.place == "cls" and not self.specials.single.before:
            raise config.ConfigError("model.head.place: 'cls' reads a first token that stands for the whole, and this "
                                     "tokenizer puts none before a text; set it to mean or last")  # fmt: skip
        if head.place == "cls" and not any(mask(text).ahead for text in model.trunk.masks):
            raise config.ConfigError(f"model.head.place: 'cls' is the first token, and under the mask "
                                     f"{model.trunk.masks[0]!r} it sees itself alone; set it to last")  # fmt: skip

    @property
    def out(self) -> int:
        """The width of the answer."""
        return 1

    def example(self, record: Record, tokenizer: Tokenizer) -> Example:
        first = records.ids(record, self.c.text, tokenizer)
        second = None if self.c.pair is None else records.ids(record, self.c.pair, tokenizer)
        return self.row(first, second) | {"label": self.label(record)}

    def row(self, first: list[int], second: list[int] | None) -> Example:
        around = self.specials.single if second is None else self.specials.pair
        a, b = trimmed(first, second or [], self.rows.length - len(around))
        cut = len(first) + len(second or []) - len(a) - len(b)
        pair = (a, None) if second is None else (a, b)
        return {"ids": around(*pair), "segment": around.segments(*pair), "cut": cut}

    def label(self, record: Record) -> Any:
        raise NotImplementedError

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        rows = [example["ids"] for example in examples]
        batch = {"ids": self.rows.padded(rows, self.specials.fill)} | self.rows.real(rows)
        if self.segments:
            batch["segment"] = self.rows.padded([example["segment"] for example in examples], 0)
        return batch | {"label": torch.tensor([example["label"] for example in examples])}

    def parts(self, batch: Batch) -> dict[str, Part]:
        return {"loss": Part(len(batch["label"]))}

    def expected(self, batch: Batch) -> Answers:
        return {"loss": batch["label"].tolist()}


@enter("classify")
@dataclass(frozen=True, eq=False)
class Classify(Judged):
    """The likeliest class."""

    c: config.Classify = config.Classify()

    @property
    def out(self) -> int:
        return len(self.c.classes)

    def label(self, record: Record) -> int:
        return records.chosen(record, self.c.label, records.column(record, self.c.label), self.c.classes)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(asked(model, batch).float(), batch["label"], reduction="sum")}

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        return {"loss": asked(model, batch).argmax(-1).tolist()}

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        return class_scores(said["loss"], meant["loss"], self.out)


@enter("regress")
@dataclass(frozen=True, eq=False)
class Regress(Judged):
    """A number; its error counts squared."""

    c: config.Regress = config.Regress()

    def label(self, record: Record) -> float:
        return records.number(record, self.c.label)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.mse_loss(asked(model, batch)[:, 0].float(), batch["label"], reduction="sum")}

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        return {"loss": asked(model, batch)[:, 0].tolist()}

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        return number_scores(said["loss"], meant["loss"])


def class_scores(said: Sequence[int], meant: Sequence[int], classes: int) -> dict[str, float]:
    """Accuracy and Matthews; F1 of the second class where there are two, else the mean over classes."""
    found = f1(said, meant) if classes == 2 else macro_f1(said, meant)
    return {"accuracy": accuracy(said, meant), "f1": found, "matthews": matthews(said, meant)}


def number_scores(said: Sequence[float], meant: Sequence[float]) -> dict[str, float]:
    return {"pearson": pearson(said, meant), "spearman": spearman(said, meant)}
