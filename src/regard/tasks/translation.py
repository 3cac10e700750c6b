"""Sequence-to-sequence tasks with teacher forcing: the encoder reads the source, the decoder predicts the target.

    source   The cat sat </s>
    ids      <s>  Le    chat   s'est  assis          the target behind a start token
    labels   Le   chat  s'est  assis  </s>           the same target, and its end

As many inputs as labels: at each place the decoder has read what stood before and predicts what stands there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from regard import config
from regard.data.packing import IGNORE_INDEX
from regard.tasks import columns
from regard.tasks.collate import TaskBatch, TaskExample, TaskSpecialTokens
from regard.tasks.columns import RecordLike
from regard.tasks.task import TextTask, register_task
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Seq2SeqTask(TextTask):
    """Objectives of encoder-decoders: a source to read and a target to tell, both without special tokens till here."""

    spoken: TaskSpecialTokens | None = None  # the target's special tokens, if its words are others than the source's
    encoder = True
    causal = True

    @classmethod
    def special_tokens_needed(cls, c: Any, specials: TaskSpecialTokens) -> tuple[str, ...]:
        return () if "eos" in specials.roles else ("bos", "eos")

    @property
    def target(self) -> TaskSpecialTokens:
        return self.spoken or self.specials

    @property
    def closing(self) -> tuple[int, ...]:
        """What ends a source: as the tokenizer ends its texts, or its end token."""
        return self.specials.single.after or (self.specials["eos"],)

    @property
    def opening(self) -> tuple[int, ...]:
        """What begins a source: only where a published tokenizer says so, never the start of a target."""
        return self.specials.single.before if self.specials.said else ()

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        own = None if model.encoder is None else model.encoder.embed
        where, read = ("embed", model.embed.vocab) if own is None else ("encoder.embed", own.vocab)
        return [(where, read, self.specials.size), ("embed", model.embed.vocab, self.target.size)]

    def batch(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> TaskBatch:
        begin, end = self.target.begin(self.c.decoder_start), self.target["eos"]
        read = [[*self.opening, *source, *self.closing] for source in sources]
        heard, said = [[begin, *target] for target in targets], [[*target, end] for target in targets]  #: S085
        batch = {"source": self.rows.pad(read, self.specials.fill), "ids": self.rows.pad(heard, self.target.fill)}
        batch["labels"] = self.rows.pad(said, IGNORE_INDEX)
        seen = {f"source_{name}": table for name, table in self.rows.real(read).items()}
        return batch | seen | self.rows.real(heard)

    @property
    def extra_tokens(self) -> int:
        return max(1, len(self.opening) + len(self.closing))

    @property
    def room(self) -> int:
        """Tokens of a source that fit in a row."""
        return self.rows.length - len(self.opening) - len(self.closing)


@register_task("translation")
@dataclass(frozen=True, eq=False)
class Translation(Seq2SeqTask):
    """Teacher forcing with smoothed labels."""

    c: config.Translation = config.Translation()

    @classmethod
    def build(
        cls, c: config.Translation, tokenizer: Tokenizer, target: Tokenizer | None = None, **options: Any
    ) -> Self:
        """`target` is the tokenizer of the target, if it has one of its own."""
        return super().build(c, tokenizer, spoken=None if target is None else TaskSpecialTokens.of(target), **options)

    def example(self, record: RecordLike, tokenizer: Tokenizer, target: Tokenizer | None = None) -> TaskExample:
        source = columns.get_ids(record, self.c.source, tokenizer)
        told = columns.get_ids(record, self.c.target, target or tokenizer)
        most = self.rows.length - 1
        cut = max(0, len(source) - self.room) + max(0, len(told) - most)
        return {"source": source[: self.room], "target": told[:most], "cut": cut}

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        return self.batch([each["source"] for each in examples], [each["target"] for each in examples])
