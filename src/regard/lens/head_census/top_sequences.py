"""Top sequences: for every head and metric the sequences on which it is largest, with their ids; a bounded heap each.

A sequence is a window of a text, or a text that is read whole. Memory is heads x metrics x top_k entries, and the ids
of the sequences that stand in one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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


class TopSequences:
    """The running top of all heads; sequences are known by their number in the corpus."""

    def __init__(self, heads: int, top_k: int) -> None:
        self.top = RunningTop(heads * len(METRICS), top_k, 0)
        self.ids: dict[int, tuple[list[int], list[int]]] = {}  # number -> ids of the trunk and of the encoder

    def add(self, batch: BatchSums, where: Tensor, ids: Sequence[tuple[list[int], list[int]]], before: int) -> None:
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
            found.append(CensusSequence(score, *places[number], tuple(ids), tuple(source)))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name: the lists of ids one after the other, with their lengths."""
        numbers = sorted(self.ids)
        lists = [self.ids[number] for number in numbers]
        found: dict[str, Tensor] = {"keys": self.top.keys, "places": self.top.context}
        for side, name in enumerate(("ids", "source")):
            found[name] = torch.tensor([ident for both in lists for ident in both[side]], dtype=torch.int64)
            found[f"{name}_lengths"] = torch.tensor([len(both[side]) for both in lists], dtype=torch.int64)
        return found | {"numbers": torch.tensor(numbers, dtype=torch.int64)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `tensors` gave."""
        self.top.keys, self.top.context = tensors["keys"].clone(), tensors["places"].clone()
        parts = [tensors[name].split(tensors[f"{name}_lengths"].tolist()) for name in ("ids", "source")]
        self.ids = {
            number: (ids.tolist(), source.tolist())
            for number, ids, source in zip(tensors["numbers"].tolist(), *parts, strict=True)
        }


def sequence_ids(notes: dict[str, Any], rows: int) -> list[tuple[list[int], list[int]]]:
    """The real ids of each row of a batch: of the trunk (or of the only one there is), and of the encoder."""
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(rows)]
    for name, note in notes.items():
        if note.read.ids is not None and len(note.read.ids) == rows:
            for both, ids, real in zip(found, note.read.ids, note.read.real, strict=True):
                both[name.endswith("encoder")][:] = ids[real].tolist()
    return found
