"""Top sequences: for every head and metric the sequences on which it is largest, with their ids; a bounded heap each.

A sequence is a window of a text, or a text that is read whole. Memory is heads x metrics x top_k entries, and the ids
of the sequences that stand in one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lens.attention_maps import TrunkNote
from regard.lens.features.neurons import LOW, RunningTop
from regard.lens.head_census.head_sums import BatchSums
from regard.lens.head_census.pair_tables import METRICS

MIN_QUERIES = 8  # a sequence of fewer says little: its last words would top every list


@dataclass(frozen=True)
class CensusSequence:
    """A sequence with its score: which text it is of, where it starts there, its ids, and those of its source."""

    score: float
    text: int
    start: int
    ids: tuple[int, ...]
    source: tuple[int, ...] = ()


SequenceIds = tuple[Tensor, Tensor]  # of the trunk and of the encoder, int32


class TopSequences:
    """The running top of all heads; sequences are known by their number in the corpus."""

    def __init__(self, heads: int, top_k: int) -> None:
        self.top = RunningTop(heads * len(METRICS), top_k, 0)
        self.ids: dict[int, SequenceIds] = {}

    def add(self, batch: BatchSums, where: Tensor, ids: Sequence[SequenceIds], before: int) -> None:
        """A batch over all heads (B, heads, M), `where` (B, 2) text and start; `before` sequences came before it."""
        enough = batch.weights.amax((1, 2)) >= MIN_QUERIES
        there = (batch.weights > 0) & enough[:, None, None]
        values = torch.where(there, batch.sums / batch.weights, -torch.inf).flatten(1)
        self.top.update(values.float(), where.int(), before)
        self.ids |= {before + row: both for row, both in enumerate(ids)}
        used = set(self.numbers()[self.top.values() > -torch.inf].tolist())
        self.ids = {number: both for number, both in self.ids.items() if number in used}

    def numbers(self) -> Tensor:
        """(heads·M, k) the number of each sequence."""
        return LOW - (self.top.keys & LOW)

    def ranking(self, head: int, metric: str) -> list[tuple[int, float]]:
        """The numbers of the sequences of one head with their scores, the largest first."""
        row = head * len(METRICS) + METRICS.index(metric)
        both = zip(self.numbers()[row].tolist(), self.top.values()[row].tolist(), strict=True)
        return [(number, score) for number, score in both if score > -torch.inf]  # nan where there is none

    def places(self) -> dict[int, tuple[int, int]]:
        """The text and the start of every sequence that stands in a list."""
        rows = zip(self.numbers().flatten().tolist(), self.top.context.flatten(0, 1).tolist(), strict=True)
        return {number: (text, start) for number, (text, start) in rows if number in self.ids}

    def of(self, head: int, metric: str) -> list[CensusSequence]:
        """The sequences of one head, the largest first."""
        places, found = self.places(), list[CensusSequence]()
        for number, score in self.ranking(head, metric):
            ids, source = self.ids[number]
            found.append(CensusSequence(score, *places[number], tuple(ids.tolist()), tuple(source.tolist())))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name: the lists of ids one after the other, with their lengths."""
        numbers, none = sorted(self.ids), torch.zeros(0, dtype=torch.int32)
        found: dict[str, Tensor] = {"keys": self.top.keys, "places": self.top.context}
        for side, name in enumerate(("ids", "source")):
            lists = [self.ids[number][side] for number in numbers]
            found[name] = torch.cat([none, *lists])
            found[f"{name}_lengths"] = torch.tensor([len(each) for each in lists], dtype=torch.int64)
        return found | {"numbers": torch.tensor(numbers, dtype=torch.int64)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `tensors` gave."""
        self.top.keys, self.top.context = tensors["keys"].clone(), tensors["places"].clone()
        parts = [tensors[name].split(tensors[f"{name}_lengths"].tolist()) for name in ("ids", "source")]
        self.ids = {
            number: (ids.clone(), source.clone())
            for number, ids, source in zip(tensors["numbers"].tolist(), *parts, strict=True)
        }


def sequence_ids(notes: dict[str, TrunkNote], rows: int) -> list[SequenceIds]:
    """The real ids of each row of a batch: of the trunk, and of the encoder; none of what is not made of ids."""
    sides = []
    for name in ("trunk", "encoder"):
        ids = notes[name].read.ids if name in notes else None
        real = notes[name].read.real if name in notes else torch.zeros(rows, 0)
        sides.append([torch.zeros(0, dtype=torch.int32) if ids is None else ids[row][real[row]].int()
                      for row in range(rows)])  # fmt: skip
    return list(zip(*sides, strict=True))
