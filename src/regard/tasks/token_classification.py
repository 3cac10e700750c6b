"""Token classification: a class for every word, such as named entities or parts of speech.

words      Ada      Lovelace          wrote
tokens     Ada      Love     ##lace   wrote
labels     B-PER    I-PER    -        O          a word's first token has its label, the others none
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import DataError
from regard.data.packing import IGNORE_INDEX
from regard.tasks import columns
from regard.tasks.collate import TaskBatch, TaskExample
from regard.tasks.columns import RecordLike
from regard.tasks.losses import cross_entropy_sum, model_outputs
from regard.tasks.metrics import accuracy, entity_f1
from regard.tasks.task import Task, TaskOutputs, register_task
from regard.text.tokenizer import Tokenizer


@register_task("token_classification")
@dataclass(frozen=True, eq=False)
class TokenClassification(Task):
    c: config.TokenClassification = config.TokenClassification()
    heads = ("token",)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        assert isinstance(model.head, config.TokenHead)
        if model.head.out != len(self.c.classes):
            raise config.ConfigError(f"model.head.out: {model.head.out}, and there are {len(self.c.classes)} classes; "
                                     f"set it to {len(self.c.classes)}")  # fmt: skip

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        words, labels = columns.get_texts(record, self.c.words), columns.get_texts(record, self.c.labels)
        if len(words) != len(labels):
            raise DataError(f"{columns.record_place(record)}: {len(words)} in column {self.c.words!r} and "
                            f"{len(labels)} in "
                            f"{self.c.labels!r}; expected a label for each word")  # fmt: skip
        spelt = [self.encode_word(word, place, tokenizer) for place, word in enumerate(words)]
        first = [columns.label_index(record, self.c.labels, label, self.c.classes) for label in labels]
        ids = [id for pieces in spelt for id in pieces]
        marks = [
            mark for pieces, label in zip(spelt, first, strict=True) for mark in (label, *continuation_labels(pieces))
        ]
        around = self.specials.single
        room = self.rows.length - len(around)
        blank = ([IGNORE_INDEX] * len(around.before), [IGNORE_INDEX] * len(around.after))
        return {"ids": around(ids[:room]), "labels": [*blank[0], *marks[:room], *blank[1]],
                "cut": max(0, len(ids) - room)}  # fmt: skip

    def encode_word(self, word: str, place: int, tokenizer: Tokenizer) -> list[int]:
        """The tokens of a word as in running text, after a space; at least one, to carry the label."""
        pieces = tokenizer.encode(f" {word}" if place else word)
        return pieces or [self.specials["unk"]]

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        rows = [example["ids"] for example in examples]
        labels = self.rows.pad([example["labels"] for example in examples], IGNORE_INDEX)
        return {"ids": self.rows.pad(rows, self.specials.fill), "labels": labels} | self.rows.real(rows)

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        return {"loss": cross_entropy_sum(model_outputs(model, batch), batch["labels"])}

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        """The predicted tags of each text, one per word."""
        return {"loss": self.label_names(model_outputs(model, batch).argmax(-1), batch["labels"])}

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        return {"loss": self.label_names(batch["labels"], batch["labels"])}

    def label_names(self, table: Tensor, labels: Tensor) -> list[list[str]]:
        pairs = zip(table.tolist(), labels.tolist(), strict=True)
        classes = self.c.classes
        return [[classes[tag] for tag, label in zip(*pair, strict=True) if label != IGNORE_INDEX] for pair in pairs]

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        """Accuracy over words, and entity F1 where tags are B-, I- and O."""
        flat = [[tag for tags in some["loss"] for tag in tags] for some in (predictions, labels)]
        found = {"accuracy": accuracy(*flat)}
        named = any(name.startswith("B-") for name in self.c.classes)
        return found | ({"entity f1": entity_f1(predictions["loss"], labels["loss"])} if named else {})


def continuation_labels(pieces: Sequence[int]) -> list[int]:
    return [IGNORE_INDEX] * (len(pieces) - 1)
