"""Stacks: arrays whose first axis counts records, in an .npz file with a name for each, or an .npy file alone.

    images (50000, 32, 32, 3)   labels (50000,)        Record(images=(32, 32, 3), labels=7)   .where == "cifar.npz:1"

The one array of an .npy file is the column "image".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from regard.config import DataError
from regard.data import npz, store
from regard.data.packing import readable
from regard.data.records import Record, Tally
from regard.data.sources import SUFFIXES, Source


@dataclass(frozen=True)
class Stack:
    """A record for each row of all arrays; single numbers are Python's own."""

    file: Source

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return store.key(["stack", self.file.digest])

    def records(self, tally: Tally) -> Iterator[Record]:
        columns = self.columns()
        counts = {name: len(column) if column.dim() else 0 for name, column in columns.items()}
        empty = any(not column.numel() for column in columns.values())  # a billion rows of nothing never end
        if empty or len(set(counts.values())) != 1 or not min(counts.values()):
            told = ", ".join(f"{name} {tuple(column.shape)}" for name, column in columns.items()) or "none"
            alone = any(not column.dim() for column in columns.values())
            what = "without numbers" if empty else "without rows" if alone else "of different lengths"
            raise DataError(f"{self.name}: arrays {what} ({told:.400}); each has a row for every record, so save those "
                            "alone")  # fmt: skip
        for number in range(next(iter(counts.values()))):
            row = {name: plain(column[number]) for name, column in columns.items()}
            yield Record(row, f"{self.name}:{number + 1}")

    def columns(self) -> dict[str, Tensor]:
        if self.name.endswith(".npz"):
            return npz.arrays(self.file.path, self.name)
        with readable(self.name), self.file.open() as file:
            return {"image": npz.array(file, self.name, self.file.path)}


def plain(row: Tensor) -> Any:
    return row if row.dim() else row.item()


SUFFIXES.update({".npz": Stack, ".npy": Stack})
