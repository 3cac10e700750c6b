"""Batches: what is read at each step, a pure function of seed and step, and the whole text in order for evaluation.

    text      . . │a a a a│b b b b│c c c c│. . .       windows of context 4, laid from offset 2
    one row       │a a a a│b                           inputs: all but its last token; targets: all but its first

An epoch lays windows of `context` targets from a random offset and shuffles them: every token is a target once, but for
the few before the first window and after the last. Nothing is remembered, so any step of any run can be asked for.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.config import DataError
from regard.data.shards import Shards


class Windows:
    """Random batches; `count` windows make an epoch, and batches run on from one epoch into the next."""

    def __init__(self, shards: Shards, context: int, batch: int, seed: int) -> None:
        if len(shards) <= context:
            raise DataError(f"{shards.name}: {len(shards):,} tokens are too few for a context of {context:,}; "
                            f"set train.context={max(1, len(shards) - 1)} or less, name more text, or keep less of "
                            "it back (data.validation)")  # fmt: skip
        self.shards, self.context, self.size, self.seed = shards, context, batch, seed
        # One window fewer than would fit leaves room to begin anywhere: a token meets many neighbours in many epochs.
        self.count = max(1, (len(shards) - context) // context)
        self.starts: dict[int, Tensor] = {}

    def batch(self, step: int) -> Tensor:
        """(B, N + 1) the ids of a step: inputs are all but the last of each row, targets all but the first."""
        first = step * self.size
        epochs = range(first // self.count, (first + self.size - 1) // self.count + 1)
        starts = torch.cat([self.epoch(number) for number in epochs])
        skip = first - epochs[0] * self.count
        rows = self.shards.data.unfold(0, self.context + 1, 1)
        return rows[starts[skip : skip + self.size]].long()

    def names(self, step: int) -> list[int]:
        """Where in the text the rows of a step begin."""
        first = step * self.size
        places = range(first, first + self.size)
        return [int(self.epoch(place // self.count)[place % self.count]) for place in places]

    def epochs(self, step: int) -> float:
        """How often the text has been read after so many steps."""
        return step * self.size / self.count

    def epoch(self, number: int) -> Tensor:
        """(count,) where the windows of an epoch begin, in the order in which they are read."""
        if number not in self.starts:
            chance = torch.Generator().manual_seed(mixed(self.seed, number))
            slack = len(self.shards) - 1 - self.count * self.context
            offset = torch.randint(slack + 1, (), generator=chance)
            order = torch.randperm(self.count, generator=chance)
            self.starts = {number - 1: self.starts[number - 1]} if number - 1 in self.starts else {}
            self.starts[number] = offset + order * self.context
        return self.starts[number]


class Turns:
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
            self.orders[number] = torch.randperm(self.count, generator=chance(self.seed, number))
        return self.orders[number]


def chance(seed: int, *words: int | str) -> torch.Generator:
    """A generator for what these words name."""
    return torch.Generator().manual_seed(mixed(seed, *words))


def mixed(seed: int, *words: int | str) -> int:
    """A number for a generator; near seeds and epochs give far numbers."""
    text = " ".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def blocks(shards: Shards, context: int, batch: int, tokens: int | None = None) -> Iterator[Tensor]:
    """(b, n + 1) the text in order: every token but the first is a target exactly once. The last block may be shorter.

    `tokens` ends after so many targets.
    """
    targets = min(len(shards) - 1, len(shards) if tokens is None else tokens)
    if targets < 1:
        raise DataError(f"{shards.name}: {len(shards):,} tokens are too few to predict one from; name more text")
    whole = targets // context * context
    for start in range(0, whole, batch * context):
        stop = min(start + batch * context, whole)
        yield shards.ids(start, stop + 1).unfold(0, context + 1, context).contiguous()
    if whole < targets:
        yield shards.ids(whole, targets + 1)[None]
