"""One text from another: the encoder reads the source, the decoder is told the target word by word.

    source   The cat sat </s>
    ids      <s>  Le    chat   s'est  assis          read: the target behind a start token
    labels   Le   chat  s'est  assis  </s>           told: the same target, and that it ends

As many inputs as labels: at each place the decoder has read what stood before and says what stands there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from regard import config
from regard.tasks import records
from regard.tasks.chunks import NOTHING
from regard.tasks.records import Record
from regard.tasks.rows import Batch, Example
from regard.tasks.specials import Specials
from regard.tasks.task import Telling, enter
from regard.text import Tokenizer


@dataclass(frozen=True, eq=False)
class Paired(Telling):
    """Objectives of encoder-decoders: a source to read and a target to tell, both without special tokens till here."""

    spoken: Specials | None = None  # the target's special tokens, if its words are others than the source's
    encoder = True
    causal = True

    @classmethod
    def needs(cls, c: Any, specials: Specials) -> tuple[str, ...]:
        return () if "end" in specials.roles else ("start", "end")

    @property
    def target(self) -> Specials:
        return self.spoken or self.specials

    @property
    def closing(self) -> tuple[int, ...]:
        """What ends a source: as the tokenizer ends its texts, or its end token."""
        return self.specials.single.after or (self.specials["end"],)

    @property
    def opening(self) -> tuple[int, ...]:
        """What begins a source: only where a published tokenizer says so, never the start of a target."""
        return self.specials.single.before if self.specials.said else ()

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        own = None if model.encoder is None else model.encoder.embed
        where, read = ("embed", model.embed.vocab) if own is None else ("encoder.embed", own.vocab)
        return [(where, read, self.specials.size), ("embed", model.embed.vocab, self.target.size)]

    def batch(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
        begin, end = self.target.begin(self.c.begin), self.target["end"]
        read = [[*self.opening, *source, *self.closing] for source in sources]
        heard, said = [[begin, *target] for target in targets], [[*target, end] for target in targets]  #: S085
        batch = {"source": self.rows.padded(read, self.specials.fill), "ids": self.rows.padded(heard, self.target.fill)}
        batch["labels"] = self.rows.padded(said, NOTHING)
        seen = {f"source_{name}": table for name, table in self.rows.real(read).items()}
        return batch | seen | self.rows.real(heard)

    @property
    def added(self) -> int:
        return max(1, len(self.opening) + len(self.closing))

    @property
    def room(self) -> int:
        """Tokens of a source that fit in a row."""
        return self.rows.length - len(self.opening) - len(self.closing)


@enter("translate")
@dataclass(frozen=True, eq=False)
class Translate(Paired):
    """Teacher forcing with smoothed labels."""

    c: config.Translate = config.Translate()

    @classmethod
    def of(cls, c: config.Translate, tokenizer: Tokenizer, target: Tokenizer | None = None, **how: Any) -> Self:
        """`target` is the tokenizer of the target, if it has one of its own."""
        return super().of(c, tokenizer, spoken=None if target is None else Specials.of(target), **how)

    def example(self, record: Record, tokenizer: Tokenizer, target: Tokenizer | None = None) -> Example:
        source = records.ids(record, self.c.source, tokenizer)
        told = records.ids(record, self.c.target, target or tokenizer)
        most = self.rows.length - 1
        cut = max(0, len(source) - self.room) + max(0, len(told) - most)
        return {"source": source[: self.room], "target": told[:most], "cut": cut}

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        return self.batch([each["source"] for each in examples], [each["target"] for each in examples])
