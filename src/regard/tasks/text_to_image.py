"""The picture that goes with a text: words, then colours, in one sequence and in one vocabulary.

    read   <s> red heart </s> . . .  ■ ■ ▨ ▨ ▨ ■        the text is filled up to one length, so that every pixel
    told   red heart </s>            ■ ■ ▨ ▨ ▨ ■ ■      has a place of its own (Ramesh et al. 2021)

    ids    0 ... V-1 words and special tokens, V ... V+K-1 colours
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config import ConfigError
from regard.inputs.senses import Example
from regard.tasks.chunks import NOTHING
from regard.tasks.losses import asked, surprise
from regard.tasks.objective import Part
from regard.tasks.pictured import Pictured
from regard.tasks.rows import Batch
from regard.tasks.specials import Specials
from regard.tasks.task import Answers, Telling, enter, told


@enter("draw")
@dataclass(frozen=True, eq=False)
class Draw(Pictured, Telling):
    """The next token of both; what is asked of colours and of words is counted apart."""

    c: config.Draw = config.Draw()
    causal = True
    around = 2  # before the first word, and after the last

    @classmethod
    def needs(cls, c: Any, specials: Specials) -> tuple[str, ...]:
        return tuple(role for role in ("start", "end", "pad") if role not in specials.roles)

    @property
    def first(self) -> int:
        """The id of the first colour."""
        return self.specials.size

    @property
    def room(self) -> int:
        """Tokens that every text is filled up to."""
        return self.rows.length - self.c.pixels.count

    def length(self, example: Example) -> int:
        return self.rows.length - 1

    def check(self, model: config.Model) -> None:
        if isinstance(model, config.Towers) or not isinstance(model.embed, config.Embed):
            raise ConfigError("model.embed.kind: task 'draw' reads words and colours as ids of one vocabulary; set it "
                              "to text")  # fmt: skip
        super().check(model)
        if self.room < self.around + 1:
            raise ConfigError(f"train.context: {self.rows.length} tokens, and a picture has {self.c.pixels.count}; "
                              "make it larger by the longest text, or task.pixels.grid smaller")  # fmt: skip
        if model.embed.pad is not None:
            raise ConfigError("model.embed.pad: what fills up a text is read like words, so that pixels keep their "
                              "places; leave it out")  # fmt: skip

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return [("embed", model.embed.vocab, self.first + self.c.pixels.palette)]

    def made(self, examples: Sequence[Example], chance: torch.Generator | None) -> Batch:
        pixels = self.sense.batch(examples, chance)["ids"].flatten(1) + self.first  # (B, K)
        heard = self.heard(self.words(examples, chance))
        told = torch.cat([heard[:, 1:], torch.full_like(heard[:, :1], self.specials["pad"])], 1)
        labels = told.where(told != self.specials["pad"], NOTHING)
        ids = torch.cat([heard, pixels], 1)[:, :-1]  #: S063
        return {"ids": ids, "labels": torch.cat([labels[:, :-1], pixels], 1)} | self.counted(examples)

    def heard(self, texts: Sequence[Sequence[int]]) -> Tensor:  # (B, room)
        """Texts with what stands around them, filled up to one length."""
        start, end, pad = (self.specials[role] for role in ("start", "end", "pad"))
        whole = [[start, *text, end] for text in texts]
        return torch.tensor([[*row, *[pad] * (self.room - len(row))] for row in whole])

    def asked_of(self, labels: Tensor) -> dict[str, Tensor]:
        """The labels of colours and of words, apart; nothing is asked elsewhere."""
        colours = labels >= self.first
        parts = {"image": labels.where(colours, NOTHING)}
        return parts | ({"text": labels.masked_fill(colours, NOTHING)} if self.c.words else {})

    def parts(self, batch: Batch) -> dict[str, Part]:
        weights = {"image": 1 - self.c.words, "text": self.c.words}
        return {name: Part(int((labels != NOTHING).sum()), weights[name])
                for name, labels in self.asked_of(batch["labels"]).items()}  # fmt: skip

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        said = asked(model, batch, held=self.chunk is not None)
        return {name: surprise(said, labels, rows=self.chunk or 1)
                for name, labels in self.asked_of(batch["labels"]).items()}  # fmt: skip

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        """The likeliest colour of each pixel, told those before it."""
        labels = self.asked_of(batch["labels"])["image"]
        return {"loss": told(asked(model, batch).argmax(-1), labels)}

    def expected(self, batch: Batch) -> Answers:
        labels = self.asked_of(batch["labels"])["image"]
        return {"loss": told(labels, labels)}
