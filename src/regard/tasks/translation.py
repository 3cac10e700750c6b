"""Sequence-to-sequence tasks with teacher forcing: the encoder reads the source, the decoder predicts the target.

    source   The cat sat </s>
    ids      <s>  Le    chat   s'est  assis          the target after a start token
    labels   Le   chat  s'est  assis  </s>           the target and an end token

Inputs and labels have equal length: at each position the decoder has read the tokens before and predicts the next one.
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
    """Base of encoder-decoder tasks: a source and a target, stored without special tokens."""

    spoken: TaskSpecialTokens | None = None  # the target's special tokens, if it has another tokenizer
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
        """Special tokens after a source: those of the tokenizer's post-processor, or its end token."""
        return self.specials.single.after or (self.specials["eos"],)

    @property
    def opening(self) -> tuple[int, ...]:
        """Special tokens before a source: only if a published tokenizer has them, never the start of a target."""
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
        """Source tokens that fit in a row."""
        return self.rows.length - len(self.opening) - len(self.closing)


@register_task("translation")
@dataclass(frozen=True, eq=False)
class Translation(Seq2SeqTask):
    """Translation with teacher forcing and label smoothing."""

    c: config.Translation = config.Translation()

    @classmethod
    def build(
        cls, c: config.Translation, tokenizer: Tokenizer, target: Tokenizer | None = None, **options: Any
    ) -> Self:
        """Build the task; `target` is the tokenizer of the target, if it has one of its own."""
        return super().build(c, tokenizer, spoken=None if target is None else TaskSpecialTokens.of(target), **options)

    def example(self, record: RecordLike, tokenizer: Tokenizer, target: Tokenizer | None = None) -> TaskExample:
        source = columns.get_ids(record, self.c.source, tokenizer)
        told = columns.get_ids(record, self.c.target, target or tokenizer)
        most = self.rows.length - 1
        cut = max(0, len(source) - self.room) + max(0, len(told) - most)
        return {"source": source[: self.room], "target": told[:most], "cut": cut}

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        return self.batch([each["source"] for each in examples], [each["target"] for each in examples])
