"""Some tokens are hidden and told from both sides; and do two parts of text follow each other? (Devlin et al. 2019)

    the cat sat on the mat      chosen: 15 %
    the cat [MASK] on the mat   80 % of them are hidden, 10 % become any other token, 10 % stay: a model that meets no
    the cat sat on owl mat      [MASK] later must have learned to doubt every token
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.masks import mask
from regard.tasks import records
from regard.tasks.chunks import NOTHING
from regard.tasks.losses import asked, count, surprise
from regard.tasks.metrics import accuracy
from regard.tasks.objective import Part
from regard.tasks.pairs import pairs, separators
from regard.tasks.records import Record
from regard.tasks.rows import Batch, Example
from regard.tasks.specials import Specials
from regard.tasks.task import Answers, Task, enter, pieces, told
from regard.tasks.words import Joints
from regard.text import Tokenizer


@enter("masked")
@dataclass(frozen=True, eq=False)
class Masked(Task):
    """Each word or token is chosen with the same chance; loss on the chosen ones alone.

    With `next_sentence` an example is a document, and `pairs` makes of documents the examples that batches are made of.
    """

    c: config.Masked
    joints: Joints | None = None
    heads = ("vocabulary", "both")

    @classmethod
    def needs(cls, c: config.Masked, specials: Specials) -> tuple[str, ...]:
        return (*separators(specials, c.next_sentence), *(() if "mask" in specials.roles else ("mask",)))

    @classmethod
    def of(cls, c: config.Masked, tokenizer: Tokenizer, **how: Any) -> Self:
        return super().of(c, tokenizer, joints=Joints.of(tokenizer) if c.whole_words else None, **how)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        if not any(mask(text).ahead for text in model.trunk.masks):
            raise config.ConfigError(f"model.trunk.mask: under {model.trunk.masks[0]!r} nobody sees what stands behind "
                                     "a hidden token; set it to everything, or ask for the next one")  # fmt: skip
        if self.c.next_sentence and (not isinstance(model.head, config.Both) or model.head.pooled.out != 2):
            raise config.ConfigError("model.head.kind: next_sentence needs both, with model.head.pooled.out = 2")
        if not self.c.next_sentence and isinstance(model.head, config.Both):
            raise config.ConfigError("model.head.kind: 'both' is for task.next_sentence; set it to vocabulary")

    def example(self, record: Record, tokenizer: Tokenizer) -> Example:
        """A text in a row of its own; or, for pairs, a document: its ids, and how many are in each sentence."""
        if self.c.next_sentence:
            lines = records.texts(record, self.c.text, split="\n")
            sentences = [records.encoded(record, self.c.text, line, tokenizer) for line in lines]
            return {"ids": [id for ids in sentences for id in ids], "sentences": list(map(len, sentences)), "cut": 0}
        ids = records.ids(record, self.c.text, tokenizer)
        return self.around(ids[: self.room]) | {"cut": max(0, len(ids) - self.room)}

    def examples(self, record: Record, tokenizer: Tokenizer) -> list[Example]:
        if self.c.next_sentence:
            return [self.example(record, tokenizer)]
        ids = records.ids(record, self.c.text, tokenizer)
        return [self.around(piece) | {"cut": 0} for piece in pieces(ids, self.room)]

    def around(self, ids: Sequence[int]) -> Example:
        """A piece of text with the special tokens that stand around one."""
        return {"ids": self.specials.single(ids)}

    @property
    def room(self) -> int:
        """Tokens of a text that fit in a row."""
        return self.rows.length - len(self.specials.pair if self.c.next_sentence else self.specials.single)

    def pairs(self, documents: Sequence[Example], place: int, chance: torch.Generator) -> list[Example]:
        """The examples that begin in one document; half of them end in another."""
        made = pairs(documents, place, self.room, chance)
        around = self.specials.pair
        return [
            {"ids": around(a, b), "segment": around.segments(a, b), "next": follows, "cut": cut}
            for a, b, follows, cut in made
        ]

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        rows = [example["ids"] for example in examples]
        ids, real = self.rows.padded(rows, self.specials.fill), self.rows.real(rows)
        ids, labels = self.hidden(ids, real.get("real"), chance)
        batch = {"ids": ids, "labels": labels} | real
        if self.c.next_sentence:
            batch["next"] = torch.tensor([example["next"] for example in examples])
        if self.segments and "segment" in examples[0]:
            batch["segment"] = self.rows.padded([example["segment"] for example in examples], 0)
        return batch

    def hidden(self, ids: Tensor, real: Tensor | None, chance: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the model is shown, and the labels: the chosen tokens."""
        c, may = self.c, ~self.specials.special[ids]
        may = may if real is None else may & real
        luck = torch.rand(ids.shape, generator=chance)
        if self.joints is not None:
            luck = luck.gather(1, self.joints.words(ids))  # the pieces of a word share their luck
        chosen = may & (luck < c.rate)
        fate, ordinary = torch.rand(ids.shape, generator=chance), self.specials.ordinary
        other = ordinary[torch.randint(len(ordinary), ids.shape, generator=chance)]
        shown = ids.masked_fill(chosen & (fate < c.mask), self.specials["mask"])  #: S087
        shown = torch.where(chosen & (c.mask <= fate) & (fate < c.mask + c.random), other, shown)
        return shown, ids.where(chosen, NOTHING)

    def parts(self, batch: Batch) -> dict[str, Part]:
        if not self.c.next_sentence:
            return super().parts(batch)
        return {"masked": Part(count(batch["labels"])), "next": Part(count(batch["next"]))}  #: S088

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        said, rows = asked(model, batch, held=self.chunk is not None), self.chunk or 1
        if not self.c.next_sentence:
            return {"loss": surprise(said, batch["labels"], rows=rows)}
        words, follows = said
        follow = F.cross_entropy(follows.float(), batch["next"], reduction="sum")
        return {"masked": surprise(words, batch["labels"], rows=rows), "next": follow}

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        said = asked(model, batch)
        if not self.c.next_sentence:
            return {"loss": told(said.argmax(-1), batch["labels"])}
        return {"masked": told(said[0].argmax(-1), batch["labels"]), "next": said[1].argmax(-1).tolist()}

    def expected(self, batch: Batch) -> Answers:
        if not self.c.next_sentence:
            return super().expected(batch)
        return {"masked": told(batch["labels"], batch["labels"]), "next": batch["next"].tolist()}

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        if not self.c.next_sentence:
            return super().score(said, meant)
        return {f"{name} accuracy": accuracy(said[name], meant[name]) for name in ("masked", "next")}
