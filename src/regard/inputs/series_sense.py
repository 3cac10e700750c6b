"""Series of records: windows of numbers, one a record, of the length and the channels that the front end takes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config import ConfigError, DataError
from regard.data import Record
from regard.inputs.senses import SENSES, Example


class Windows:
    """A list of numbers, or of rows of them (a number a channel); the same in an array."""

    column = "series"

    def __init__(self, front: config.Series, augment: Any = None) -> None:
        if augment is not None:
            raise ConfigError("train.augment: it changes images, and series are read as they are; leave it out")
        self.front = front

    @property
    def about(self) -> dict[str, Any]:
        """What examples depend on: not on what a token is."""
        return {"series": 1, "length": self.front.length, "channels": self.front.channels}

    def example(self, record: Record, name: str) -> Example:
        if not self.front.channels:
            raise ConfigError("model.embed.channels: 0; say how many numbers a row of the series has")
        if self.front.mix == "independent" and self.front.channels > 1:
            raise ConfigError("model.embed.mix: 'independent' answers for each channel by itself, and here is one "
                              "answer for all; set it to mixed")  # fmt: skip
        return {"series": window(record[name], self.front, f"{record.where}: column {name!r}")}

    def blank(self, context: int) -> Example:
        """An example without content, for whoever counts what a model costs."""
        return {"series": torch.zeros(self.front.length, self.front.channels)}

    def length(self, example: Example) -> int:
        return self.front.count

    def batch(self, examples: Sequence[Example], chance: torch.Generator | None) -> dict[str, Tensor]:
        return {"ids": torch.stack([example["series"] for example in examples])}


def window(found: Any, c: config.Series, where: str) -> Tensor:  # (T, C)
    try:
        table = (found if isinstance(found, Tensor) else torch.tensor(found)).float()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{where} holds {found!r:.60}; expected {c.length} rows of {c.channels} numbers") from None
    table = table[:, None] if table.dim() == 1 else table
    if tuple(table.shape) != (c.length, c.channels):
        raise DataError(f"{where} is a series of {tuple(table.shape)} numbers, expected {(c.length, c.channels)} by "
                        "model.embed.length and model.embed.channels")  # fmt: skip
    if not bool(table.isfinite().all()):
        row = int((~table.isfinite()).any(-1).nonzero()[0])
        raise DataError(f"{where} has a gap in row {row}: a number is missing or infinite; fill it, or pass it over by "
                        "data.bad=skip")  # fmt: skip
    return table


SENSES["series"] = Windows
