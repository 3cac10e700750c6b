"""Packed documents: several in one row by best fit, without attention between them.

    ids        a a a b b b b c c ·        documents of 3, 4 and 2 tokens in a row of 10
    document   0 0 0 1 1 1 1 2 2 3        document number of each token; the unused rest (·) has its own
    labels     a a - b b b - c - -        the next token of the same document; - is -100, ignored by the loss

Documents go into the row where they fit best, longest first, so that little space is left. A longer document is cut
into slices, and the first token of the next slice is still a label at the end of the previous one. Every token but the
first of each document is a label once in an epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.data.batching import ShuffledEpochs
from regard.data.example_store import Examples

IGNORE_INDEX = -100  # label that the loss ignores


@dataclass(frozen=True)
class DocumentSlice:
    """A contiguous slice of a document."""

    row: int
    start: int
    stop: int


class PackedBatches:
    """Shuffled batches of `size` packed rows of `context` tokens; batches run on from one epoch into the next.

    `pieces` is an upper bound of the documents in a batch, which variable-length attention kernels require.
    """

    def __init__(self, rows: Examples, context: int, size: int, seed: int, fill: int = 0) -> None:
        if context < 2:
            raise DataError(f"{rows.name}: a row of {context} has nothing to predict; set train.context=2 or more")
        self.rows, self.context, self.size, self.fill = rows, context, size, fill
        self.packs = pack_documents(rows.lengths().tolist(), context)
        self.pieces = size * max(map(len, self.packs)) + size  # plus the unused rest of each row
        self.turns = ShuffledEpochs(self.count, seed)

    @property
    def count(self) -> int:
        """Rows in an epoch."""
        return len(self.packs)

    @property
    def filled(self) -> float:
        """The fraction of positions that hold a token."""
        tokens = sum(each.stop - each.start for pack in self.packs for each in pack)
        return tokens / (self.count * self.context)

    def batch(self, step: int) -> dict[str, Tensor]:
        """The packed batch of a step: ids, document and labels, each (B, N)."""
        return self.collate_packs([self.packs[turn] for turn in self.turns(step * self.size, self.size)])

    def names(self, step: int) -> list[int]:
        """The document numbers in the rows of a step."""
        turns = self.turns(step * self.size, self.size)
        return sorted({each.row for turn in turns for each in self.packs[turn]})

    def in_order(self, tokens: int | None = None) -> Iterator[dict[str, Tensor]]:
        """Every row once, for validation; or about `tokens` tokens of them."""
        count = self.count if tokens is None else min(self.count, max(1, tokens // self.context))
        for start in range(0, count, self.size):
            yield self.collate_packs(self.packs[start : min(count, start + self.size)])

    def collate_packs(self, packs: "list[list[DocumentSlice]]") -> dict[str, Tensor]:
        ids, document, labels = (torch.tensor(table) for table in zip(*map(self.row, packs), strict=True))
        return {"ids": ids, "document": document, "labels": labels}

    def row(self, pack: list[DocumentSlice]) -> tuple[list[int], list[int], list[int]]:
        ids, document, labels = list[int](), list[int](), list[int]()
        for number, each in enumerate(pack):
            whole = self.rows[each.row]["ids"]
            ids += whole[each.start : each.stop]
            document += [number] * (each.stop - each.start)
            labels += [*whole[each.start + 1 : each.stop + 1], *([IGNORE_INDEX] * (each.stop == len(whole)))]
        left = self.context - len(ids)
        return ids + [self.fill] * left, document + [len(pack)] * left, labels + [IGNORE_INDEX] * left

    def epochs(self, step: int) -> float:
        return step * self.size / self.count


def pack_documents(lengths: list[int], context: int) -> list[list[DocumentSlice]]:
    """Best-fit packing of document slices into rows, longest first."""
    stretches = [DocumentSlice(row, start, min(start + context, length)) for row, length in enumerate(lengths)
                 for start in range(0, length, context)]  # fmt: skip
    made: list[list[DocumentSlice]] = []
    rooms: dict[int, list[list[DocumentSlice]]] = {}  # rows by free positions
    some = 0  # bit n is set if a row has n free positions
    for each in sorted(stretches, key=lambda each: each.start - each.stop):
        size = each.stop - each.start
        fits = some >> size << size  # rows with enough free positions
        room = (fits & -fits).bit_length() - 1 if fits else context  # the lowest bit is the best fit
        if fits:
            pack = rooms[room].pop()
            some ^= (not rooms[room]) << room
        else:
            made.append(pack := [])
        pack.append(each)
        rooms.setdefault(room - size, []).append(pack)
        some |= 1 << room - size
    return made
