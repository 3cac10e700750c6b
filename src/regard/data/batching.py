"""Batches of examples by step: a fixed number of rows, or rows bucketed by length with a budget of tokens.

    FixedSizeBatches   ▓▓▓▓▓░░ ▓▓░░░░░ ▓▓▓▓▓▓▓      any rows together; padding (░) up to the longest
    BucketedBatches    ▓▓▓▓▓▓▓ ▓▓▓▓▓▓░ │ ▓▓ ▓▓ ▓░   rows of about one length; many short ones together, few long ones

Batches are pure functions of seed and step, without state, so any step of any run can be made again. Every row comes
once an epoch. What is random in a batch itself (which tokens are masked) is drawn from a generator of the step.
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
]  # examples as one batch; what is random is drawn there


class FixedSizeBatches:
    """`size` rows a batch, shuffled; batches run on from one epoch into the next."""

    def __init__(self, rows: Rows, collate: Collate, size: int, seed: int) -> None:
        self.rows, self.collate, self.size, self.seed = rows, collate, size, seed
        self.turns = ShuffledEpochs(len(rows), seed)

    def batch(self, step: int) -> TensorBatch:
        return self.collate([self.rows[row] for row in self.names(step)], seeded_generator(self.seed, "step", step))

    def names(self, step: int) -> list[int]:
        """The rows of a step, by their numbers."""
        return self.turns(step * self.size, self.size)

    def epochs(self, step: int) -> float:
        """How often the rows have been read after so many steps."""
        return step * self.size / len(self.rows)


class BucketedBatches:
    """Rows of about one length: in a batch, rows times the longest row are at most `budget` tokens.

    Lengths are rounded up to `multiple`, which shuffles rows among more others; and because the widest go first, a
    batch whose rows are padded to w tokens has budget // w rows, but for the last. So a collate that pads to the same
    multiples makes few shapes, and each is compiled once. `added` is how many tokens a collate puts around a row.
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
        """All rows, the widest first, shuffled among those of their width."""
        if epoch not in self.orders:
            rows = torch.randperm(len(self.rows), generator=seeded_generator(self.seed, "rows", epoch))
            self.orders = {epoch: rows[self.widths[rows].sort(descending=True, stable=True).indices]}
        return self.orders[epoch]

    def epochs(self, step: int) -> float:
        return step / self.count


def bucket_borders(widths: Tensor, budget: int) -> Iterator[int]:
    """Where batches begin and end among widths that fall: each takes as many rows as its first allows."""
    border = 0
    while border < len(widths):
        yield border
        border += budget // max(1, int(widths[border]))
    yield len(widths)


def ordered_batches(rows: Rows, collate: Collate, budget: int, limit: int | None = None) -> Iterator[TensorBatch]:
    """Every row once, the longest first, and always the same batches: for validation.

    `limit` reads so many rows and no more, always the same ones, of all lengths.
    """
    if limit is not None and limit < len(rows):
        rows = rows.part(torch.randperm(len(rows), generator=seeded_generator(0, "some"))[:limit], rows.name)
    buckets = BucketedBatches(rows, collate, budget, seed=0, multiple=1)
    order = buckets.widths.sort(descending=True, stable=True).indices
    for place in range(buckets.count):
        yield buckets.collate_rows(buckets.bucket(order, place), seeded_generator(0, "in order", place))


class ShuffledEpochs:
    """The turns of `count` things, shuffled anew in each epoch; they run on from one epoch into the next."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self.orders: dict[int, Tensor] = {}

    def __call__(self, first: int, size: int) -> list[int]:
        """Whose turn it is at places `first` up to `first + size`."""
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
    """A generator for what these words name."""
    return torch.Generator().manual_seed(mix_seed(seed, *words))


def mix_seed(seed: int, *words: int | str) -> int:
    """A number for a generator; near seeds and epochs give far numbers."""
    text = " ".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def batch_to_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device; the host need not wait for it."""
    if isinstance(batch, dict):
        return {name: batch_to_device(table, device) for name, table in batch.items()}
    if device.type == "cuda":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)
