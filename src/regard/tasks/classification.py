"""Classification and regression of a whole input: a text, a pair of texts, an image, a recording, a graph.

    Record  ── the processor ──►  tensors  ── collate ──►  {"ids": ..., "label": (B,), "tokens": (B,)}

    [CLS] the film was a delight [SEP]                          positive
    [CLS] a man sleeps [SEP] a man is awake [SEP]               contradiction

Rows mixed in training (mixup: Zhang et al. 2018) have a loss for both of their classes:

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
from regard.config.errors import ConfigError
from regard.core.masks import mask
from regard.data.records import Record
from regard.inputs.processors import Processor, TensorExample
from regard.tasks import columns
from regard.tasks.collate import TaskBatch, TaskExample, TaskSpecialTokens, truncate_pair
from regard.tasks.columns import RecordLike
from regard.tasks.losses import model_outputs
from regard.tasks.masked_lm import missing_separators
from regard.tasks.metrics import accuracy, f1, macro_f1, matthews_correlation, pearson, spearman
from regard.tasks.task import LossPart, Task, TaskOutputs, register_input_task, register_task
from regard.text.tokenizer import Tokenizer

ASIDE = ("label", "other", "share", "tokens")  # entries of a batch that are not model inputs


def classify_batch(model: nn.Module, batch: TaskBatch) -> Any:
    """The model's output for a batch; all other tables go to its front end."""
    return model(batch["ids"], **{name: table for name, table in batch.items() if name not in ("ids", *ASIDE)})


@dataclass(frozen=True, eq=False)
class InputTask(Task):
    """Tasks on inputs that a processor reads (image, audio, graph, ...), with one label for each."""

    sense: Processor = field(kw_only=True)
    heads = ("pooling",)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        head = model.head
        if not isinstance(head, config.PoolingHead):
            return
        if head.out != self.out:
            raise ConfigError(f"model.head.out: {head.out}, and the task has {self.out} "
                              f"output{'s' * (self.out != 1)}; set it to {self.out}")  # fmt: skip
        front = getattr(model.embed, "cls_tokens", None)
        if head.pooling == "cls" and front is False:
            raise ConfigError("model.head.pooling: 'cls' needs a class token in front, and this "
                              "front end adds none; set model.embed.cls_tokens=true, or "
                              "model.head.pooling=mean")  # fmt: skip
        if head.pooling == "cls" and not any(mask(text).ahead for text in model.trunk.masks):
            raise ConfigError(f"model.head.pooling: 'cls' is the first token, and under the mask "
                              f"{model.trunk.masks[0]!r} it attends only to itself; set it to last")  # fmt: skip

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return []

    @property
    def out(self) -> int:
        """The width of the output."""
        return 1

    def example(self, record: Record, tokenizer: Tokenizer | None = None) -> TensorExample:  # type: ignore[override]
        return self.encode_input(record) | {"label": self.label(record)}

    def encode_input(self, record: Record) -> TensorExample:
        """The tensors of a record's input; a record that is a single file is its own input, whatever its column is
        called."""
        alone = self.c.input not in record and isinstance(record.get(self.sense.column), Path)
        return self.sense.example(record, self.sense.column if alone else self.c.input)

    def label(self, record: Record) -> Tensor:
        raise NotImplementedError

    def length(self, example: TensorExample) -> int:
        return self.sense.length(example)

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, chance)

    def collate_eval(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, None)

    def build_batch(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> TaskBatch:
        batch = self.sense.collate(examples, chance)
        batch["tokens"] = torch.tensor([self.sense.length(example) for example in examples])
        if "label" in examples[0]:
            batch["label"] = torch.stack([example["label"] for example in examples])
        if (partner := batch.pop("partner", None)) is not None:  # ranks share rows: each brings its partner
            batch["other"] = batch["label"][partner]
        return batch

    def count_parts(self, batch: TaskBatch) -> dict[str, LossPart]:
        return {"loss": LossPart(len(batch["label"]))}

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        said = classify_batch(model, batch).float()
        each = self.loss(said, batch["label"])
        if "other" in batch:
            share = batch["share"].to(each)
            each = share * each + (1 - share) * self.loss(said, batch["other"])
        return {"loss": each.sum()}

    def loss(self, out: Tensor, label: Tensor) -> Tensor:  # (B, out), (B,) -> (B,)
        raise NotImplementedError

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        return {"loss": batch["label"].tolist()}


@register_input_task("classification")
@dataclass(frozen=True, eq=False)
class InputClassification(InputTask):
    """Classification of an input other than text: the most likely class."""

    c: config.Classification = config.Classification()

    @property
    def out(self) -> int:
        return len(self.c.classes)

    def label(self, record: Record) -> Tensor:
        return torch.tensor(
            columns.label_index(record, self.c.label, columns.get_column(record, self.c.label), self.c.classes)
        )

    def loss(self, out: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(out, label, reduction="none")

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        return {"loss": classify_batch(model, batch).argmax(-1).tolist()}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return classification_scores(predictions["loss"], labels["loss"], self.out)


@register_input_task("regression")
@dataclass(frozen=True, eq=False)
class InputRegression(InputTask):
    """Regression on an input other than text, with squared error."""

    c: config.Regression = config.Regression()

    def label(self, record: Record) -> Tensor:
        return torch.tensor(columns.get_number(record, self.c.label), dtype=torch.float32)

    def loss(self, out: Tensor, label: Tensor) -> Tensor:
        return F.mse_loss(out[:, 0], label, reduction="none")

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        return {"loss": classify_batch(model, batch)[:, 0].tolist()}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return regression_scores(predictions["loss"], labels["loss"])


@dataclass(frozen=True, eq=False)
class TextClassificationBase(Task):
    """Base of tasks with a text or a pair of texts, and one label."""

    heads = ("pooling",)

    @classmethod
    def special_tokens_needed(cls, c: Any, specials: TaskSpecialTokens) -> tuple[str, ...]:
        return missing_separators(specials, c.input_pair is not None)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        head = model.head
        assert isinstance(head, config.PoolingHead)
        if head.out != self.out:
            raise config.ConfigError(f"model.head.out: {head.out}, and the task has "
                                     f"{self.out} output{'s' * (self.out != 1)}; set it to {self.out}")  # fmt: skip
        if head.pooling == "cls" and not self.specials.single.before:
            raise config.ConfigError("model.head.pooling: 'cls' needs a class token in front, and "
                                     "this tokenizer adds none to a text; set it to mean or last")  # fmt: skip
        if head.pooling == "cls" and not any(mask(text).ahead for text in model.trunk.masks):
            raise config.ConfigError(f"model.head.pooling: 'cls' is the first token, and under the mask "
                                     f"{model.trunk.masks[0]!r} it attends only to itself; set it to last")  # fmt: skip

    @property
    def out(self) -> int:
        """The width of the output."""
        return 1

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        first = columns.get_ids(record, self.c.input, tokenizer)
        second = None if self.c.input_pair is None else columns.get_ids(record, self.c.input_pair, tokenizer)
        return self.row(first, second) | {"label": self.label(record)}

    def row(self, first: list[int], second: list[int] | None) -> TaskExample:
        around = self.specials.single if second is None else self.specials.pair
        a, b = truncate_pair(first, second or [], self.rows.length - len(around))
        cut = len(first) + len(second or []) - len(a) - len(b)
        pair = (a, None) if second is None else (a, b)
        return {"ids": around(*pair), "segment": around.segments(*pair), "cut": cut}

    def label(self, record: RecordLike) -> Any:
        raise NotImplementedError

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        rows = [example["ids"] for example in examples]
        batch = {"ids": self.rows.pad(rows, self.specials.fill)} | self.rows.real(rows)
        if self.segments:
            batch["segment"] = self.rows.pad([example["segment"] for example in examples], 0)
        return batch | {"label": torch.tensor([example["label"] for example in examples])}

    def count_parts(self, batch: TaskBatch) -> dict[str, LossPart]:
        return {"loss": LossPart(len(batch["label"]))}

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        return {"loss": batch["label"].tolist()}


@register_task("classification")
@dataclass(frozen=True, eq=False)
class Classification(TextClassificationBase):
    """Text classification: the most likely class."""

    c: config.Classification = config.Classification()

    @property
    def out(self) -> int:
        return len(self.c.classes)

    def label(self, record: RecordLike) -> int:
        return columns.label_index(record, self.c.label, columns.get_column(record, self.c.label), self.c.classes)

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(model_outputs(model, batch).float(), batch["label"], reduction="sum")}

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        return {"loss": model_outputs(model, batch).argmax(-1).tolist()}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return classification_scores(predictions["loss"], labels["loss"], self.out)


@register_task("regression")
@dataclass(frozen=True, eq=False)
class Regression(TextClassificationBase):
    """Text regression, with squared error."""

    c: config.Regression = config.Regression()

    def label(self, record: RecordLike) -> float:
        return columns.get_number(record, self.c.label)

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        return {"loss": F.mse_loss(model_outputs(model, batch)[:, 0].float(), batch["label"], reduction="sum")}

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        return {"loss": model_outputs(model, batch)[:, 0].tolist()}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return regression_scores(predictions["loss"], labels["loss"])


def classification_scores(predictions: Sequence[int], labels: Sequence[int], classes: int) -> dict[str, float]:
    """Accuracy and Matthews correlation; F1 of the second of two classes, else macro F1."""
    found = f1(predictions, labels) if classes == 2 else macro_f1(predictions, labels)
    return {
        "accuracy": accuracy(predictions, labels),
        "f1": found,
        "matthews": matthews_correlation(predictions, labels),
    }


def regression_scores(predictions: Sequence[float], labels: Sequence[float]) -> dict[str, float]:
    return {"pearson": pearson(predictions, labels), "spearman": spearman(predictions, labels)}
