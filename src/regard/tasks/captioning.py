"""Image captioning: generate the text of an image, token by token.

    an encoder        image ── encoder ──► memory ◄── cross-attention ── <s> a red heart
    one sequence      ▒▒▒▒▒▒▒▒▒ <s> a red heart       the image is a prefix: bidirectional itself, attended to by text
                                 a red heart </s>     the labels, in either case

The model decides which of the two it is: an encoder whose front end is not text, or a front end of kind mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.masks import Prefix, mask
from regard.data.packing import IGNORE_INDEX
from regard.inputs.processors import TensorExample
from regard.models.heads import DeferredLogits, defer_logits
from regard.tasks.collate import TaskBatch, TaskSpecialTokens
from regard.tasks.image_text import ImageTextTask
from regard.tasks.losses import cross_entropy_sum
from regard.tasks.task import TaskOutputs, TextTask, labelled_entries, register_task

STEADY = (
    config.PatchEmbedding,
    config.StageEmbedding,
    config.ConvEmbedding,
)  # front ends with a fixed number of tokens
ASIDE = ("ids", "labels", "tokens")  # entries of a batch that are not model inputs


@register_task("captioning")
@dataclass(frozen=True, eq=False)
class Captioning(ImageTextTask, TextTask):
    """Captioning with teacher forcing."""

    c: config.Captioning = config.Captioning()
    cross: bool = False  # the image is read by an encoder
    causal = True
    around = 1  # one start or end token per sequence

    @classmethod
    def special_tokens_needed(cls, c: Any, specials: TaskSpecialTokens) -> tuple[str, ...]:
        return () if "eos" in specials.roles else ("bos", "eos")

    def check(self, model: config.Model) -> None:
        if isinstance(model, config.DualEncoder) or vision_front_end(model) is None:
            raise ConfigError("model: task 'captioning' needs an image encoder and a decoder; give it "
                              "model.encoder.embed of kind patches, or model.embed.kind=multimodal")  # fmt: skip
        if model.head.kind != "lm":
            raise ConfigError(f"model.head.kind: {model.head.kind!r}, and task 'captioning' needs lm")
        if model.embed.vocab < self.specials.size:
            raise ConfigError(f"model.embed.vocab: {model.embed.vocab:,}, and the tokenizer has {self.specials.size:,} "
                              "tokens; leave it out, or make it larger")  # fmt: skip
        if ahead := [text for text in model.trunk.masks if mask(text).ahead]:
            raise ConfigError(
                f"model.trunk.mask: {ahead[0]!r} sees the token it should predict; write {check_caption_model(model)!r}"
            )
        for leaf in (leaf for text in model.trunk.masks for leaf in mask(text).leaves):
            if isinstance(leaf, Prefix) and leaf.length > fixed_image_tokens(model):
                raise ConfigError(f"model.trunk.mask: {str(leaf)!r} shows labels before prediction, as an image "
                                  f"has {fixed_image_tokens(model)} tokens at least; write "
                                  f"{check_caption_model(model)!r}")  # fmt: skip

    def build_batch(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> TaskBatch:
        texts, end = self.words(examples, chance), self.specials["eos"]
        batch = self.model_inputs(self.sense.collate(examples, chance)) | self.token_counts(examples)
        return batch | self.read_ids(texts) | {"labels": self.rows.pad([[*text, end] for text in texts], IGNORE_INDEX)}

    def model_inputs(self, tables: TaskBatch) -> TaskBatch:
        """The image tensors, under the names of the model's arguments."""
        name = "source" if self.cross else "seen"
        return {name if each == "ids" else f"{name}_{each}": table for each, table in tables.items()}

    def read_ids(self, texts: Sequence[Sequence[int]]) -> TaskBatch:
        """The model's text input for these captions."""
        rows = [[self.specials.begin(), *text] for text in texts]
        return {"ids": self.rows.pad(rows, self.specials.fill)} | self.rows.real(rows)

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        said = caption_logits(model, batch, deferred=self.chunk is not None)
        return {"loss": cross_entropy_sum(said, batch["labels"], self.smoothing, self.chunk or 1)}

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        return {"loss": labelled_entries(caption_logits(model, batch).argmax(-1), batch["labels"])}


def caption_logits(model: nn.Module, batch: TaskBatch, deferred: bool = False) -> Any:
    """Logits at the positions of the text."""
    given, count = {name: batch[name] for name in batch if name not in ASIDE}, batch["ids"].shape[1]
    if not deferred:
        return model(batch["ids"], **given)[:, -count:]
    made: DeferredLogits = defer_logits(model, batch["ids"], **given)
    return made._replace(x=made.x[:, -count:])


def vision_front_end(model: config.Transformer) -> Any:
    """The config of the vision front end; None without one."""
    if model.encoder is None:
        return model.embed.prefix if isinstance(model.embed, config.MultimodalEmbedding) else None
    own = model.encoder.embed
    return (
        own
        if isinstance(model.embed, config.TextEmbedding) and not isinstance(own, config.TextEmbedding | None)
        else None
    )


def max_image_tokens(model: config.Transformer) -> int:
    """The maximum number of image tokens before the text."""
    return getattr(model.embed.prefix, "count", 0) if isinstance(model.embed, config.MultimodalEmbedding) else 0


def fixed_image_tokens(model: config.Transformer) -> int:
    """Tokens before every text if their number is fixed, as for images; 0 for audio, which varies."""
    steady = isinstance(model.embed, config.MultimodalEmbedding) and isinstance(model.embed.prefix, STEADY)
    return max_image_tokens(model) if steady else 0


def check_caption_model(model: config.Transformer) -> str:
    return f"prefix({fixed_image_tokens(model)})" if fixed_image_tokens(model) else "causal"
