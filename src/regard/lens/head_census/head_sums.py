"""Head sums: the accumulators of one attention, in float64, from which every metric of its heads is read.

    metric = sums / weights                          over all queries that it applies to
    positional = 1 - Var(p | i, j) / Var(p)          of the attention weight p from position i to position j

Sums of batches in their order are the sums of one pass over everything. Nothing grows with the corpus.
"""

from dataclasses import dataclass
from functools import partial
from math import log
from typing import Self

import torch
from torch import Tensor

from regard.lens.head_census.pair_tables import METRICS, POSITIONS, PairTables

ROUNDING = 1e-12  # of the mean square: a variance below it is that of rounding


@dataclass(frozen=True, eq=False)
class BatchSums:
    """What one batch adds for each sequence and head: a metric is sums / weights, and has no weight where it has no
    meaning."""

    sums: Tensor  # (B, H, M)
    weights: Tensor  # (B, H, M)


def measure_patterns(pattern: Tensor, tables: PairTables) -> BatchSums:
    """The metrics of every head on every sequence of a batch; pattern is (B, H, Q, K) in float64."""
    B, H = pattern.shape[:2]
    found = {
        "entropy": (entropy := torch.special.entr(pattern).sum(-1) / log(2), tables.rows),  # (B, H, Q), (B, Q)
        "relative": (entropy, tables.choice),
    }
    sums, weights = pattern.new_zeros(B, H, len(METRICS)), pattern.new_zeros(B, H, len(METRICS))
    for name, (values, rows) in found.items():
        share = rows if name == "entropy" else rows / tables.most
        sums[..., METRICS.index(name)] = (values * share[:, None]).sum(-1)
        weights[..., METRICS.index(name)] = rows.sum(1)[:, None]
    sums[..., METRICS.index("sink")] = strongest_sink(pattern, tables)
    weights[..., METRICS.index("sink")] = tables.choice.sum(1)[:, None]
    add_pairs(pattern, tables, sums, weights)
    return BatchSums(sums, weights)


def strongest_sink(pattern: Tensor, tables: PairTables) -> Tensor:  # (B, H)
    """The most attention that one key gets from all queries with a choice but itself."""
    received = (tables.choice[:, None, None] @ pattern)[:, :, 0]  # (B, H, K)
    if tables.own:
        received = received - pattern.diagonal(dim1=-2, dim2=-1) * tables.choice[:, None]
    return received.amax(-1)


def add_pairs(pattern: Tensor, tables: PairTables, sums: Tensor, weights: Tensor) -> None:
    """Roles and distance: one product of the pattern with the tables."""
    if not tables.names:
        return
    found = pattern.flatten(2) @ tables.pairs  # (B, H, R)
    for column, name in enumerate(tables.names):
        place = METRICS.index(name)
        sums[..., place] = found[..., column]
        weights[..., place] = found[..., column + 1] if name == "distance" else tables.counts[:, None, column]


class HeadSums:
    """The accumulators of the H heads of one attention."""

    def __init__(self, heads: int, positions: int = POSITIONS) -> None:
        zeros = partial(torch.zeros, dtype=torch.float64)
        self.sums, self.weights = zeros(heads, len(METRICS)), zeros(heads, len(METRICS))
        self.cells, self.cell_counts = zeros(heads, positions, positions), zeros(positions, positions)
        self.squares = zeros(heads)

    def add(self, batch: BatchSums, heads: slice) -> None:
        """The sums of some heads on a batch."""
        self.sums[heads] += batch.sums.sum(0).cpu()
        self.weights[heads] += batch.weights.sum(0).cpu()

    def add_positions(self, pattern: Tensor, tables: PairTables, heads: slice) -> None:
        """What the positional share is made of: the sum of the weights at each pair of positions, and of squares."""
        most = len(self.cell_counts)
        corner = pattern[:, :, :most, :most] * tables.choice[:, None, :most, None]
        queries, keys = corner.shape[2:]
        self.cells[heads, :queries, :keys] += corner.sum(0).cpu()
        self.squares[heads] += corner.square().sum((0, 2, 3)).cpu()
        if heads.start == 0:  # counts are the same for all heads
            self.cell_counts[:queries, :keys] += tables.visible.cpu()

    def means(self) -> Tensor:  # (H, M)
        """Every metric of every head; nan where it has no meaning."""
        return torch.where(self.weights > 0, self.sums / self.weights, torch.nan)

    def positional(self) -> Tensor:  # (H,)
        """The share of the variance of attention weights that the positions of query and key explain.

        Both variances are without bias, so a head that positions do not move gets zero on average, however few
        sequences there are; nan where no pair of positions was seen twice.
        """
        there = self.cell_counts > 0
        count, kinds = self.cell_counts.sum(), there.sum()
        if count <= kinds or count < 2:
            return torch.full_like(self.squares, torch.nan)
        total = self.cells.sum((1, 2))
        between = (self.cells.square() / self.cell_counts.clamp(min=1)).sum((1, 2))
        within = (self.squares - between) / (count - kinds)
        overall = (self.squares - total.square() / count) / (count - 1)
        still = within <= ROUNDING * self.squares / count
        return torch.where(still, 1.0, (1 - within / overall.clamp(min=1e-300)).clamp(min=0.0))

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return dict(vars(self))

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> Self:
        """The accumulators that `tensors` gave."""
        found = cls(len(tensors["squares"]), len(tensors["cell_counts"]))
        vars(found).update({name: tensors[name].clone() for name in vars(found)})
        return found
