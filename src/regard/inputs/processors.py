"""Processor: how records of one modality become the inputs of their front end; the registry.

    Record  ── example ──►  tensors of one record, kept in files  ── batch ──►  forward's arguments, by name
    {"image": "cat.png"}    {"image": uint8 (3, 32, 32)}                        {"ids": float32 (B, 3, 32, 32)}

A Processor is entered in PROCESSORS under the kind of its front end. What is slow and always the same (decoding,
resizing) is done once, in `example`; what is random (augmentation) in `batch`, from the generator that it is given.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.data.records import Record

TensorExample = dict[str, Tensor]  # uint8, float32, int64 or bool, of any shape; the first one is what is asked


class Processor(Protocol):
    """How records of one modality become the inputs of their front end."""

    @property
    def column(self) -> str:
        """Where records usually have it: image, sound, graph, series."""
        ...

    def example(self, record: Record, name: str) -> TensorExample:
        """One record, checked and in its final size; `name` is the column to look in. DataError for a bad one."""
        ...

    def length(self, example: TensorExample) -> int:
        """How many tokens it will be."""
        ...

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> dict[str, Tensor]:
        """Forward's arguments by name, row by row; "ids" is the first of them.

        With `chance` it is for training, and may be augmented; without it never. Rows that were mixed say with which
        ("partner", (B,) rows of this batch) and how much of each is its own ("share", (B,)).
        """
        ...


PROCESSORS: dict[
    str, Callable[..., Processor]
] = {}  # by the kind of a front end: called with its setting, and train.augment


def build_processor(front: Any, augment: Any = None) -> Processor:
    """The Processor for the config of a front end."""
    if front.kind not in PROCESSORS:
        raise ConfigError(f"model.embed.kind: no sense reads records for {front.kind!r}; there are "
                          f"{', '.join(sorted(PROCESSORS))} and text, or enter yours in "
                          "regard.inputs.processors.PROCESSORS")  # fmt: skip
    return PROCESSORS[front.kind](front, augment)
