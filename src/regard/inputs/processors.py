"""Processor: converts the records of one modality to the inputs of their front end; the registry.

    Record  ── example ──►  tensors of one record, stored         ── batch ──►  forward's arguments, by name
    {"image": "cat.png"}    {"image": uint8 (3, 32, 32)}                        {"ids": float32 (B, 3, 32, 32)}

A Processor is registered in PROCESSORS under the kind of its front end. Slow deterministic work (decoding, resizing) is
done once, in `example`; random work (augmentation) in `collate`, from the given generator.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.data.records import Record

TensorExample = dict[str, Tensor]  # uint8, float32, int64 or bool, of any shape; the first one is the input


class Processor(Protocol):
    """Converts the records of one modality to the inputs of their front end."""

    @property
    def column(self) -> str:
        """The usual column: image, sound, graph, series."""
        ...

    def example(self, record: Record, name: str) -> TensorExample:
        """One record, checked and in its final size; `name` is the column to read. DataError for a bad one."""
        ...

    def length(self, example: TensorExample) -> int:
        """The number of tokens of an example."""
        ...

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> dict[str, Tensor]:
        """Model inputs by name, batched; "ids" is the first of them.

        With `chance` for training, possibly augmented. Mixed rows have their partners ("partner", (B,) rows of this
        batch) and the remaining share of each ("share", (B,)).
        """
        ...


PROCESSORS: dict[
    str, Callable[..., Processor]
] = {}  # kind of front end -> a Processor, from its config and train.augment


def build_processor(front: Any, augment: Any = None) -> Processor:
    """Build the Processor of a front end config."""
    if front.kind not in PROCESSORS:
        raise ConfigError(f"model.embed.kind: no processor for {front.kind!r}; there are "
                          f"{', '.join(sorted(PROCESSORS))} and text, or register yours in "
                          "regard.inputs.processors.PROCESSORS")  # fmt: skip
    return PROCESSORS[front.kind](front, augment)
