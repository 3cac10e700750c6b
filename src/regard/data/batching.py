"""Rows of examples by step: fixed numbers of rows, or rows of about one length with a budget of tokens.

    Fixed     ▓▓▓▓▓░░ ▓▓░░░░░ ▓▓▓▓▓▓▓      any rows together; padding (░) up to the longest
    Buckets   ▓▓▓▓▓▓▓ ▓▓▓▓▓▓░ │ ▓▓ ▓▓ ▓░    rows of about one length; short ones are many together, long ones few

Batches are pure functions of seed and step; nothing is remembered, so any step of any run can be asked for. Every row
comes once an epoch. What is random in a batch itself (which tokens are hidden) is drawn from a generator of the step.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from regard.config import DataError
from regard.data.arrays import Arrays
from regard.data.batches import Turns, chance
from regard.data.examples import Example, Examples

Batch = dict[str, Tensor]
Rows = Examples | Arrays
Collate = Callable[[Sequence[Example], torch.Generator], Batch]  # examples as one batch; what is random is drawn there


class Fixed:
    """`size` rows a batch, shuffled; batches run on from one epoch into the next."""

    def __init__(self, rows: Rows, collate: Collate, size: int, seed: int) -> None:
        self.rows, self.collate, self.size, self.seed = rows, collate, size, seed
        self.turns = Turns(len(rows), seed)

    def batch(self, step: int) -> Batch:
        return self.collate([self.rows[row] for row in self.names(step)], chance(self.seed, "step", step))

    def names(self, step: int) -> list[int]:
        """The rows of a step, by their numbers."""
        return self.turns(step * self.size, self.size)

    def epochs(self, step: int) -> float:
        """How often the rows have been read after so many steps."""
        return step * self.size / len(self.rows)


class Buckets:
    """Rows of about one length: in a batch, rows times the longest row are at most `budget` tokens.

    Lengths are rounded up to `multiple`, which shuffles rows among more others; and because the widest go first, a
    batch whose rows are padded to w tokens has budget // w rows, but for the last. So a collate that pads to the same
    multiples makes few shapes, and each is compiled once. `added` is how many tokens a collate puts around a row.
    """

    def __init__(
        self, rows: Rows, collate: Collate, budget: int, seed: int, multiple: int = 8, added: int = 0
    ) -> None:
        self.rows, self.collate, self.seed = rows, collate, seed
        self.widths = -(-(rows.lengths() + added) // multiple) * multiple
        if (longest := int(self.widths.max())) > budget:
            raise DataError(f"{rows.name}: a row of {longest:,} tokens with its padding is more than a batch of "
                            f"{budget:,}; allow more tokens a batch (train.tokens={longest}), or cut rows shorter by "
                            "train.context")  # fmt: skip
        self.borders = list(cuts(self.widths.sort(descending=True).values, budget))
        self.turns, self.orders = Turns(self.count, seed), dict[int, Tensor]()

    @property
    def count(self) -> int:
        """Batches in an epoch: the same in all, since only rows of equal width change places."""
        return len(self.borders) - 1

    def batch(self, step: int) -> Batch:
        return self.made(self.names(step), chance(self.seed, "step", step))

    def names(self, step: int) -> list[int]:
        [place] = self.turns(step, 1)
        return self.bucket(self.order(step // self.count), place)

    def bucket(self, order: Tensor, place: int) -> list[int]:
        rows: list[int] = order[self.borders[place] : self.borders[place + 1]].tolist()
        return rows

    def made(self, rows: list[int], luck: torch.Generator) -> Batch:
        return self.collate([self.rows[row] for row in rows], luck)

    def order(self, epoch: int) -> Tensor:
        """All rows, the widest first, shuffled among those of their width."""
        if epoch not in self.orders:
            rows = torch.randperm(len(self.rows), generator=chance(self.seed, "rows", epoch))
            self.orders = {epoch: rows[self.widths[rows].sort(descending=True, stable=True).indices]}
        return self.orders[epoch]

    def epochs(self, step: int) -> float:
        return step / self.count


def cuts(widths: Tensor, budget: int) -> Iterator[int]:
    """Where batches begin and end among widths that fall: each takes as many rows as its first allows."""
    border = 0
    while border < len(widths):
        yield border
        border += budget // max(1, int(widths[border]))
    yield len(widths)


def in_order(rows: Rows, collate: Collate, budget: int, limit: int | None = None) -> Iterator[Batch]:
    """Every row once, the longest first, and always the same batches: for validation.

    `limit` reads so many rows and no more, always the same ones, of all lengths.
    """
    if limit is not None and limit < len(rows):
        rows = rows.part(torch.randperm(len(rows), generator=chance(0, "some"))[:limit], rows.name)
    buckets = Buckets(rows, collate, budget, seed=0, multiple=1)
    order = buckets.widths.sort(descending=True, stable=True).indices
    for place in range(buckets.count):
        yield buckets.made(buckets.bucket(order, place), chance(0, "in order", place))
