"""Batches of examples by step: a fixed number of rows, or rows bucketed by length with a budget of tokens.

    FixedSizeBatches   ▓▓▓▓▓░░ ▓▓░░░░░ ▓▓▓▓▓▓▓      rows in any order; padding (░) to the longest
    BucketedBatches    ▓▓▓▓▓▓▓ ▓▓▓▓▓▓░ │ ▓▓ ▓▓ ▓░   rows of similar length: many short ones, or few long ones

Batches are pure functions of seed and step, without state, so any step of any run can be reproduced. Every row occurs
once in an epoch. Randomness within a batch (which tokens are masked) comes from a generator seeded by the step.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.data.example_store import Example, Examples
from regard.data.tensor_store import TensorRows

TensorBatch = dict[str, Tensor]
Rows = Examples | TensorRows
Collate = Callable[
    [Sequence[Example], torch.Generator], TensorBatch
]  # collate: examples to a batch; draws random numbers from the generator


class FixedSizeBatches:
    """Shuffled batches of `size` rows; batches run on from one epoch into the next."""

    def __init__(self, rows: Rows, collate: Collate, size: int, seed: int) -> None:
        self.rows, self.collate, self.size, self.seed = rows, collate, size, seed
        self.turns = ShuffledEpochs(len(rows), seed)

    def batch(self, step: int) -> TensorBatch:
        return self.collate([self.rows[row] for row in self.names(step)], seeded_generator(self.seed, "step", step))

    def names(self, step: int) -> list[int]:
        """The row numbers of a step."""
        return self.turns(step * self.size, self.size)

    def epochs(self, step: int) -> float:
        """The number of epochs read after so many steps."""
        return step * self.size / len(self.rows)


class BucketedBatches:
    """Batches bucketed by length: rows times the longest row of a batch are at most `budget` tokens.

    Lengths are rounded up to `multiple`, which shuffles rows within larger groups. Because the widest rows come first,
    a batch padded to w tokens has budget // w rows, except the last. A collate that pads to the same multiples
    therefore makes few shapes, and each is compiled once. `added` is the number of tokens that collate adds to a row.
    """

    def __init__(self, rows: Rows, collate: Collate, budget: int, seed: int, multiple: int = 8, added: int = 0) -> None:
        self.rows, self.collate, self.seed = rows, collate, seed
        self.widths = -(-(rows.lengths() + added) // multiple) * multiple
        if (longest := int(self.widths.max())) > budget:
            raise DataError(f"{rows.name}: a row of {longest:,} tokens with its padding is more than a batch of "
                            f"{budget:,}; allow more tokens a batch (train.batch_tokens={longest}), or cut rows "
                            "shorter by train.context")  # fmt: skip
        self.borders = list(bucket_borders(self.widths.sort(descending=True).values, budget))
        self.turns, self.orders = ShuffledEpochs(self.count, seed), dict[int, Tensor]()

    @property
    def count(self) -> int:
        """Batches in an epoch: the same in all, since only rows of equal width change places."""
        return len(self.borders) - 1

    def batch(self, step: int) -> TensorBatch:
        return self.collate_rows(self.names(step), seeded_generator(self.seed, "step", step))

    def names(self, step: int) -> list[int]:
        [place] = self.turns(step, 1)
        return self.bucket(self.order(step // self.count), place)

    def bucket(self, order: Tensor, place: int) -> list[int]:
        rows: list[int] = order[self.borders[place] : self.borders[place + 1]].tolist()
        return rows

    def collate_rows(self, rows: list[int], luck: torch.Generator) -> TensorBatch:
        return self.collate([self.rows[row] for row in rows], luck)

    def order(self, epoch: int) -> Tensor:
        """All rows, widest first, shuffled among rows of equal width."""
        if epoch not in self.orders:
            rows = torch.randperm(len(self.rows), generator=seeded_generator(self.seed, "rows", epoch))
            self.orders = {epoch: rows[self.widths[rows].sort(descending=True, stable=True).indices]}
        return self.orders[epoch]

    def epochs(self, step: int) -> float:
        return step / self.count


def bucket_borders(widths: Tensor, budget: int) -> Iterator[int]:
    """Batch boundaries for decreasing widths: each batch takes as many rows as its first width allows."""
    border = 0
    while border < len(widths):
        yield border
        border += budget // max(1, int(widths[border]))
    yield len(widths)


def ordered_batches(rows: Rows, collate: Collate, budget: int, limit: int | None = None) -> Iterator[TensorBatch]:
    """Every row once, longest first, always in the same batches: for validation.

    `limit` restricts it to so many rows, always the same ones, of all lengths.
    """
    if limit is not None and limit < len(rows):
        rows = rows.part(torch.randperm(len(rows), generator=seeded_generator(0, "some"))[:limit], rows.name)
    buckets = BucketedBatches(rows, collate, budget, seed=0, multiple=1)
    order = buckets.widths.sort(descending=True, stable=True).indices
    for place in range(buckets.count):
        yield buckets.collate_rows(buckets.bucket(order, place), seeded_generator(0, "in order", place))


class ShuffledEpochs:
    """Random permutations of `count` items, one for each epoch, read continuously over epoch boundaries."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self.orders: dict[int, Tensor] = {}

    def __call__(self, first: int, size: int) -> list[int]:
        """The items at positions `first` to `first + size`."""
        epochs = range(first // self.count, (first + size - 1) // self.count + 1)
        skip = first - epochs[0] * self.count
        found: list[int] = torch.cat([self.epoch(number) for number in epochs])[skip : skip + size].tolist()
        return found

    def epoch(self, number: int) -> Tensor:
        if number not in self.orders:
            self.orders = {other: order for other, order in self.orders.items() if other == number - 1}
            self.orders[number] = torch.randperm(self.count, generator=seeded_generator(self.seed, number))
        return self.orders[number]


def seeded_generator(seed: int, *words: int | str) -> torch.Generator:
    """A random generator seeded by a seed and names."""
    return torch.Generator().manual_seed(mix_seed(seed, *words))


def mix_seed(seed: int, *words: int | str) -> int:
    """A seed for a generator; similar seeds and epochs give unrelated numbers."""
    text = " ".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def batch_to_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device, copied asynchronously."""
    if isinstance(batch, dict):
        return {name: batch_to_device(table, device) for name, table in batch.items()}
    if device.type == "cuda":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)
