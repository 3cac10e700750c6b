"""Windows of a token stream: shuffled, sequential for evaluation, or striped for carried state.

    text      . . │a a a a│b b b b│c c c c│. . .       windows of context 4, from offset 2
    one row       │a a a a│b                           inputs: all but its last token; targets: all but its first

WindowBatches: an epoch places windows of `context` targets from a random offset and shuffles them: every token is a
target once, except the few before the first window and after the last.

    text      a a a a b b b b c c c c d d d d        batch 2, accumulate 2: four stripes
    step 0    a a   b b   c c   d d                  the first windows of all stripes
    step 1      a a   b b   c c   d d                the next ones: row i continues row i

StripedBatches: an epoch starts at a random offset in the first window and ends when all stripes are read; then every
row restarts. Both are pure functions of seed and step, so any step of any run can be reproduced.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.data.batching import mix_seed, seeded_generator
from regard.data.token_shards import TokenShards


class StripedBatches:
    """Batches for carried state: `size` rows a micro-batch, each the next window of its stripe; `accumulate` make a
    step."""

    def __init__(self, shards: TokenShards, context: int, size: int, seed: int, accumulate: int = 1) -> None:
        rows = size * accumulate
        if len(shards) <= rows * context:
            raise DataError(f"{shards.name}: {len(shards):,} tokens are too few for {rows:,} stripes of at least "
                            f"{context:,}; set train.batch_size or train.context lower, or name more text")  # fmt: skip
        self.shards, self.context, self.size, self.seed = shards, context, size, seed
        self.accumulate = accumulate
        # one window less leaves room for a random offset
        self.count = max(1, (len(shards) - 1 - context) // (rows * context))  # windows in a stripe

    def batch(self, step: int) -> Tensor:
        """(B, N + 1) the ids of a micro-batch: inputs are all but the last of each row, targets all but the first."""
        rows = self.shards.data.unfold(0, self.context + 1, 1)
        return rows[torch.tensor(self.names(step))].long()

    def names(self, step: int) -> list[int]:
        """The text offsets of the rows of a micro-batch."""
        step, part = divmod(step, self.accumulate)
        epoch, window = divmod(step, self.count)
        first = self.offset(epoch) + window * self.context
        stripes = range(part * self.size, (part + 1) * self.size)
        return [first + stripe * self.count * self.context for stripe in stripes]

    def offset(self, epoch: int) -> int:
        room = len(self.shards) - 1 - self.count * self.size * self.accumulate * self.context
        return int(
            torch.randint(min(room, self.context - 1) + 1, (), generator=seeded_generator(self.seed, "stripes", epoch))
        )

    def begins(self, step: int) -> bool:
        """Whether all rows restart at this optimizer step."""
        return step % self.count == 0

    def epochs(self, step: int) -> float:
        """The number of epochs read after so many micro-batches."""
        return step / (self.count * self.accumulate)


class WindowBatches:
    """Shuffled windows; `count` make an epoch, and batches run on from one epoch into the next."""

    def __init__(self, shards: TokenShards, context: int, batch: int, seed: int) -> None:
        if len(shards) <= context:
            raise DataError(f"{shards.name}: {len(shards):,} tokens are too few for a context of {context:,}; "
                            f"set train.context={max(1, len(shards) - 1)} or less, name more text, or keep less of "
                            "it back (data.validation)")  # fmt: skip
        self.shards, self.context, self.size, self.seed = shards, context, batch, seed
        # One window less leaves room for a random offset: over epochs a token occurs at many positions of a window.
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
        """The text offsets of the rows of a step."""
        first = step * self.size
        places = range(first, first + self.size)
        return [int(self.epoch(place // self.count)[place % self.count]) for place in places]

    def epochs(self, step: int) -> float:
        """The number of epochs read after so many steps."""
        return step * self.size / self.count

    def epoch(self, number: int) -> Tensor:
        """(count,) window offsets of an epoch, in reading order."""
        if number not in self.starts:
            chance = torch.Generator().manual_seed(mix_seed(self.seed, number))
            slack = len(self.shards) - 1 - self.count * self.context
            offset = torch.randint(slack + 1, (), generator=chance)
            order = torch.randperm(self.count, generator=chance)
            self.starts = {number - 1: self.starts[number - 1]} if number - 1 in self.starts else {}
            self.starts[number] = offset + order * self.context
        return self.starts[number]


def sequential_windows(shards: TokenShards, context: int, batch: int, tokens: int | None = None) -> Iterator[Tensor]:
    """(b, n + 1) the text in order: every token but the first is a target exactly once. The last block may be shorter.

    `tokens` stops after so many targets.
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
