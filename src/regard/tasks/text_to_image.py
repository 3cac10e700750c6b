"""Text-to-image generation as one token sequence: text tokens, then colours, in one vocabulary.

    ids    <s> red heart </s> . . .  ■ ■ ▨ ▨ ▨ ■        the text is padded to one length, so that every pixel
    labels red heart </s>            ■ ■ ▨ ▨ ▨ ■ ■      has a fixed position (Ramesh et al. 2021)

Ids 0 ... V-1 are text and special tokens, V ... V+K-1 colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.data.packing import IGNORE_INDEX
from regard.inputs.processors import TensorExample
from regard.tasks.collate import TaskBatch, TaskSpecialTokens
from regard.tasks.image_text import ImageTextTask
from regard.tasks.losses import cross_entropy_sum, model_outputs
from regard.tasks.task import LossPart, TaskOutputs, TextTask, labelled_entries, register_task


@register_task("text_to_image")
@dataclass(frozen=True, eq=False)
class TextToImage(ImageTextTask, TextTask):
    """Next-token task over text and colours, with a separate loss part for each."""

    c: config.TextToImage = config.TextToImage()
    causal = True
    around = 2  # start and end token

    @classmethod
    def special_tokens_needed(cls, c: Any, specials: TaskSpecialTokens) -> tuple[str, ...]:
        return tuple(role for role in ("bos", "eos", "pad") if role not in specials.roles)

    @property
    def first(self) -> int:
        """The id of the first colour."""
        return self.specials.size

    @property
    def room(self) -> int:
        """Text tokens after padding."""
        return self.rows.length - self.c.pixels.count

    def length(self, example: TensorExample) -> int:
        return self.rows.length - 1

    def check(self, model: config.Model) -> None:
        if isinstance(model, config.DualEncoder) or not isinstance(model.embed, config.TextEmbedding):
            raise ConfigError("model.embed.kind: task 'text_to_image' takes words and colours as ids of one "
                              "vocabulary; set it to text")  # fmt: skip
        super().check(model)
        if self.room < self.around + 1:
            raise ConfigError(f"train.context: {self.rows.length} tokens, and an image has {self.c.pixels.count}; "
                              "make it larger by the longest text, or task.pixels.grid smaller")  # fmt: skip
        if model.embed.pad_id is not None:
            raise ConfigError("model.embed.pad_id: padding of a text is not masked, so that pixels keep their "
                              "positions; leave it out")  # fmt: skip

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return [("embed", model.embed.vocab, self.first + self.c.pixels.palette)]

    def build_batch(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> TaskBatch:
        pixels = self.sense.collate(examples, chance)["ids"].flatten(1) + self.first  # (B, K)
        heard = self.read_ids(self.words(examples, chance))
        told = torch.cat([heard[:, 1:], torch.full_like(heard[:, :1], self.specials["pad"])], 1)
        labels = told.where(told != self.specials["pad"], IGNORE_INDEX)
        ids = torch.cat([heard, pixels], 1)[:, :-1]  #: S063
        return {"ids": ids, "labels": torch.cat([labels[:, :-1], pixels], 1)} | self.token_counts(examples)

    def read_ids(self, texts: Sequence[Sequence[int]]) -> Tensor:  # (B, room)
        """Texts with special tokens, padded to one length."""
        start, end, pad = (self.specials[role] for role in ("bos", "eos", "pad"))
        whole = [[start, *text, end] for text in texts]
        return torch.tensor([[*row, *[pad] * (self.room - len(row))] for row in whole])

    def asked_of(self, labels: Tensor) -> dict[str, Tensor]:
        """The labels of colours and of text, separately; -100 elsewhere."""
        colours = labels >= self.first
        parts = {"image": labels.where(colours, IGNORE_INDEX)}
        return parts | ({"text": labels.masked_fill(colours, IGNORE_INDEX)} if self.c.text_loss_weight else {})

    def count_parts(self, batch: TaskBatch) -> dict[str, LossPart]:
        weights = {"image": 1 - self.c.text_loss_weight, "text": self.c.text_loss_weight}
        return {name: LossPart(int((labels != IGNORE_INDEX).sum()), weights[name])
                for name, labels in self.asked_of(batch["labels"]).items()}  # fmt: skip

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        said = model_outputs(model, batch, deferred=self.chunk is not None)
        return {name: cross_entropy_sum(said, labels, rows=self.chunk or 1)
                for name, labels in self.asked_of(batch["labels"]).items()}  # fmt: skip

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        """The most likely colour of each pixel, given those before it."""
        labels = self.asked_of(batch["labels"])["image"]
        return {"loss": labelled_entries(model_outputs(model, batch).argmax(-1), labels)}

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        labels = self.asked_of(batch["labels"])["image"]
        return {"loss": labelled_entries(labels, labels)}
