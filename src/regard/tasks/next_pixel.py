"""Next-pixel prediction at every position in parallel: p(image) = p(x_1) p(x_2 | x_1) ..., row by row.

The metric is bits per dimension: -log2 p(image) / the number of values of an image. With levels, a value is one
channel, so that images with 256 levels compare with published results; with colours it is a whole pixel, an index into
the palette, and compares only with models of the same palette.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.data.records import Record
from regard.inputs.processors import Processor, TensorExample
from regard.tasks.collate import TaskBatch
from regard.tasks.losses import cross_entropy_sum
from regard.tasks.metrics import safe_ratio
from regard.tasks.task import LossPart, Task, TaskOutputs, register_task
from regard.text.tokenizer import Tokenizer

BITS, RIGHT = "bits per dimension", "accuracy"


@register_task("next_pixel")
@dataclass(frozen=True, eq=False)
class NextPixel(Task):
    """Next-pixel task; a batch is ids (B, rows, columns): the front end shifts them, and all are labels."""

    c: config.NextPixel = config.NextPixel()
    sense: Processor = field(kw_only=True)
    causal = True

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        if not isinstance(model.embed, config.PixelEmbedding):
            raise ConfigError(f"model.embed.kind: {model.embed.kind!r} has no sequence of pixel values; set it to "
                              "pixels")  # fmt: skip
        position, wanted = model.trunk.position, [model.embed.grid[0], model.embed.grid[1] * model.embed.numbers]
        if isinstance(position, config.ConvLikePosition) and list(position.grid) != wanted:
            raise ConfigError(f"model.trunk.position.grid: {list(position.grid)}, and model.embed has {wanted[0]} "
                              f"rows of {wanted[1]} values; set it to {wanted}")  # fmt: skip
        head = model.head
        if isinstance(head, config.LMHead) and not head.tied and head.vocab not in (None, model.embed.palette):
            raise ConfigError(f"model.head.vocab: {head.vocab}, and the palette has {model.embed.palette}; set it to "
                              f"{model.embed.palette}")  # fmt: skip

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return []

    def example(self, record: Record, tokenizer: Tokenizer | None = None) -> TensorExample:  # type: ignore[override]
        return self.sense.example(record, self.c.input)

    def length(self, example: TensorExample) -> int:
        return self.sense.length(example)

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, chance)

    def collate_eval(self, examples: Sequence[TensorExample], chance: torch.Generator) -> TaskBatch:
        return self.build_batch(examples, None)

    def build_batch(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> TaskBatch:
        batch = self.sense.collate(examples, chance)
        return batch | {"tokens": torch.tensor([self.length(example) for example in examples])}

    def count_parts(self, batch: Any) -> dict[str, LossPart]:
        return {"loss": LossPart(batch["ids"].numel())}

    def loss_sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": cross_entropy_sum(model(batch["ids"]), batch["ids"].flatten(1))}

    def answers(self, model: nn.Module, batch: Any) -> TaskOutputs:
        """For each image, bits per value and the fraction of values predicted right."""
        logits, labels = model(batch["ids"]).float(), batch["ids"].flatten(1)
        nats = F.cross_entropy(logits.mT, labels, reduction="none").mean(-1)
        right = (logits.argmax(-1) == labels).float().mean(-1)
        return {BITS: (nats / math.log(2)).tolist(), RIGHT: right.tolist()}

    def expected_answers(self, batch: Any) -> TaskOutputs:
        """The outputs of a perfect model: zero bits, all values right."""
        return {BITS: [0.0] * len(batch["ids"]), RIGHT: [1.0] * len(batch["ids"])}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return {name: safe_ratio(math.fsum(predictions[name]), len(predictions[name])) for name in (BITS, RIGHT)}
