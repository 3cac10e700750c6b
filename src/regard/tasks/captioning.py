"""The text that goes with a picture, word by word.

    an encoder        picture ── encoder ──► memory ◄── cross-attention ── <s> a red heart
    one sequence      ▒▒▒▒▒▒▒▒▒ <s> a red heart       the picture is a prefix: it sees itself, the text sees it and back
                                 a red heart </s>     what is told, in either case

Which of the two it is, the model says: by an encoder whose front end reads no text, or by a front end of kind mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config import ConfigError
from regard.core.masks import Prefix, mask
from regard.heads import Hidden, hidden
from regard.inputs.senses import Example
from regard.tasks.chunks import NOTHING
from regard.tasks.losses import surprise
from regard.tasks.pictured import Pictured
from regard.tasks.rows import Batch
from regard.tasks.specials import Specials
from regard.tasks.task import Answers, Telling, enter, told

STEADY = (config.Patches, config.Stages, config.Convolutions)  # front ends that make as many tokens of everything
ASIDE = ("ids", "labels", "tokens")  # what of a batch is not given to the model by name


@enter("caption")
@dataclass(frozen=True, eq=False)
class Caption(Pictured, Telling):
    """Teacher forcing after a picture."""

    c: config.Caption = config.Caption()
    cross: bool = False  # the picture is the source of an encoder
    causal = True
    around = 1  # the token before the first word, or after the last one

    @classmethod
    def needs(cls, c: Any, specials: Specials) -> tuple[str, ...]:
        return () if "end" in specials.roles else ("start", "end")

    def check(self, model: config.Model) -> None:
        if isinstance(model, config.Towers) or front_of(model) is None:
            raise ConfigError("model: task 'caption' is asked of one that sees and writes; give it model.encoder.embed "
                              "of kind patches, or model.embed.kind=mixed")  # fmt: skip
        if model.head.kind != "vocabulary":
            raise ConfigError(f"model.head.kind: {model.head.kind!r}, and task 'caption' needs vocabulary")
        if model.embed.vocab < self.specials.size:
            raise ConfigError(f"model.embed.vocab: {model.embed.vocab:,}, and the tokenizer has {self.specials.size:,} "
                              "tokens; leave it out, or make it larger")  # fmt: skip
        if ahead := [text for text in model.trunk.masks if mask(text).ahead]:
            raise ConfigError(f"model.trunk.mask: {ahead[0]!r} sees the word it should tell; write {suited(model)!r}")
        for leaf in (leaf for text in model.trunk.masks for leaf in mask(text).leaves):
            if isinstance(leaf, Prefix) and leaf.length > always(model):
                raise ConfigError(f"model.trunk.mask: {str(leaf)!r} shows words before they are told, as what is seen "
                                  f"has {always(model)} tokens for sure; write {suited(model)!r}")  # fmt: skip

    def made(self, examples: Sequence[Example], chance: torch.Generator | None) -> Batch:
        texts, end = self.words(examples, chance), self.specials["end"]
        batch = self.given(self.sense.batch(examples, chance)) | self.counted(examples)
        return batch | self.heard(texts) | {"labels": self.rows.padded([[*text, end] for text in texts], NOTHING)}

    def given(self, tables: Batch) -> Batch:
        """What the sense made, by the names under which the model takes it."""
        name = "source" if self.cross else "seen"
        return {name if each == "ids" else f"{name}_{each}": table for each, table in tables.items()}

    def heard(self, texts: Sequence[Sequence[int]]) -> Batch:
        """What the model reads while it tells these texts."""
        rows = [[self.specials.begin(), *text] for text in texts]
        return {"ids": self.rows.padded(rows, self.specials.fill)} | self.rows.real(rows)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        said = answered(model, batch, held=self.chunk is not None)
        return {"loss": surprise(said, batch["labels"], self.smoothing, self.chunk or 1)}

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        return {"loss": told(answered(model, batch).argmax(-1), batch["labels"])}


def answered(model: nn.Module, batch: Batch, held: bool = False) -> Any:
    """What the model says at the places of the text."""
    given, count = {name: batch[name] for name in batch if name not in ASIDE}, batch["ids"].shape[1]
    if not held:
        return model(batch["ids"], **given)[:, -count:]
    with hidden(model):
        made: Hidden = model(batch["ids"], **given)
    return made._replace(x=made.x[:, -count:])


def front_of(model: config.Transformer) -> Any:
    """The setting of the front end that sees; None where there is none."""
    if model.encoder is None:
        return model.embed.seen if isinstance(model.embed, config.Mixed) else None
    own = model.encoder.embed
    return own if isinstance(model.embed, config.Embed) and not isinstance(own, config.Embed | None) else None


def at_most(model: config.Transformer) -> int:
    """Tokens of what is seen that stand before the text."""
    return getattr(model.embed.seen, "count", 0) if isinstance(model.embed, config.Mixed) else 0


def always(model: config.Transformer) -> int:
    """Tokens that stand before every text: all of a picture, while a sound may be shorter."""
    steady = isinstance(model.embed, config.Mixed) and isinstance(model.embed.seen, STEADY)
    return at_most(model) if steady else 0


def suited(model: config.Transformer) -> str:
    return f"prefix({always(model)})" if always(model) else "causal"
