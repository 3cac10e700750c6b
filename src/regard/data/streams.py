"""Stripes: a text read on and on, so that what a model remembers of the last batch is about the text before this one.

    text      a a a a b b b b c c c c d d d d        batch 2, accumulate 2: four stripes
    step 0    a a   b b   c c   d d                  the first windows of all stripes
    step 1      a a   b b   c c   d d                the next ones: row i goes on where row i stopped

An epoch begins somewhere in the first window of the text, chosen by seed and epoch, and ends when all stripes are read;
then every row begins anew. A pure function of the step, as all batches are.
"""

import torch
from torch import Tensor

from regard.config import DataError
from regard.data.batches import chance
from regard.data.shards import Shards


class Stripes:
    """`size` rows a micro-batch, each the next window of its stripe; `accumulate` of them make a step."""

    def __init__(self, shards: Shards, context: int, size: int, seed: int, accumulate: int = 1) -> None:
        rows = size * accumulate
        if len(shards) <= rows * context:
            raise DataError(f"{shards.name}: {len(shards):,} tokens are too few for {rows:,} stripes of at least "
                            f"{context:,}; set train.batch or train.context lower, or name more text")  # fmt: skip
        self.shards, self.context, self.size, self.seed = shards, context, size, seed
        self.accumulate = accumulate
        # as in windows at random, one window less leaves room to begin anywhere
        self.count = max(1, (len(shards) - 1 - context) // (rows * context))  # windows in a stripe

    def batch(self, step: int) -> Tensor:
        """(B, N + 1) the ids of a micro-batch: inputs are all but the last of each row, targets all but the first."""
        rows = self.shards.data.unfold(0, self.context + 1, 1)
        return rows[torch.tensor(self.names(step))].long()

    def names(self, step: int) -> list[int]:
        """Where in the text the rows of a micro-batch begin."""
        step, part = divmod(step, self.accumulate)
        epoch, window = divmod(step, self.count)
        first = self.offset(epoch) + window * self.context
        stripes = range(part * self.size, (part + 1) * self.size)
        return [first + stripe * self.count * self.context for stripe in stripes]

    def offset(self, epoch: int) -> int:
        room = len(self.shards) - 1 - self.count * self.size * self.accumulate * self.context
        return int(torch.randint(min(room, self.context - 1) + 1, (), generator=chance(self.seed, "stripes", epoch)))

    def begins(self, step: int) -> bool:
        """Whether all rows begin anew at this optimizer step."""
        return step % self.count == 0

    def epochs(self, step: int) -> float:
        """How often the text has been read after so many micro-batches."""
        return step / (self.count * self.accumulate)
