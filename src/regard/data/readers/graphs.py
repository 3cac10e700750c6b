"""Graph records: numbered nodes, the tag or the features of each, and the edges between them.

    {"tags": [6, 6, 8], "edges": [[0, 1], [1, 2]], "label": 1}                     nodes of some kinds (atoms)
    {"nodes": [[0.1, 2], [3, 1], [0, 5]], "edges": [[0, 1]], "label": "ring"}      numbers at each node

Edges are undirected, so [0, 1] and [1, 0] are one. Self-loops are refused: the mask decides whether a node sees itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.data.records import Record

LARGEST = 1 << 15  # nodes: full attention needs a table of their square


@dataclass(frozen=True)
class Graph:
    """A graph: the number of nodes, (N,) tags or (N, F) features or both, and (E, 2) edges, smaller index first."""

    count: int
    edges: Tensor
    tags: Tensor | None = None
    features: Tensor | None = None

    @property
    def joined(self) -> Tensor:  # (N, N)
        """Symmetric adjacency matrix."""
        return adjacency_matrix([self.edges], self.count)[0]


def adjacency_matrix(edges: Sequence[Tensor], count: int) -> Tensor:
    """(B, N, N) adjacency matrices, padded to `count` nodes."""
    row = torch.arange(len(edges)).repeat_interleave(torch.tensor([len(each) for each in edges]))
    one, other = torch.cat(list(edges)).unbind(-1)
    table = torch.zeros(len(edges), count, count, dtype=torch.bool)
    table[row, one, other] = table[row, other, one] = True
    return table


def graph_of_record(record: Record, column: str = "graph") -> Graph:
    """The graph in a column of a record, or in the record's own columns."""
    where, said = record.where, record.get(column, record)
    if not isinstance(said, Mapping) or "edges" not in said or not {"nodes", "tags"} & said.keys():
        there = ", ".join(map(str, said)) if isinstance(said, Mapping) else repr(said)[:40]
        raise DataError(f"{where}: {there or 'nothing'} is no graph; expected the columns edges, and tags or nodes, "
                        f"as in {{\"tags\": [6, 8], \"edges\": [[0, 1]]}}")  # fmt: skip
    tags = None if said.get("tags") is None else node_tags(said["tags"], where)
    features = None if said.get("nodes") is None else node_features(said["nodes"], where)
    counts = {len(each) for each in (tags, features) if each is not None}
    if len(counts) != 1:
        raise DataError(f"{where}: {' tags and '.join(map(str, sorted(counts)))} nodes; expected one of each")
    [count] = counts
    if not 0 < count <= LARGEST:
        most = f"more than the limit of {LARGEST:,}; extract a subgraph"
        raise DataError(f"{where}: a graph of {count:,} nodes, {most if count else 'so there is nothing to look at'}")
    return Graph(count, parse_edges(said["edges"], count, where), tags, features)


def numbers_to_tensor(found: Any, where: str, what: str, expected: str) -> Tensor:
    """A list, or lists of equal length, as a tensor."""
    try:
        made = found if isinstance(found, Tensor) else torch.tensor(found)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise DataError(f"{where}: {what} {repr(found)[:40]}; expected {expected}") from None
    if made.dtype == torch.bool:
        raise DataError(f"{where}: {what} are true and false; expected {expected}")
    return made


def node_tags(found: Any, where: str) -> Tensor:
    made = numbers_to_tensor(found, where, "tags are", "a whole number for each node, all in one list")
    if made.dim() != 1 or (made.is_floating_point() and len(made)):
        raise DataError(f"{where}: tags are {repr(found)[:40]}; expected a whole number for each node, all in one list")
    if len(made) and int(made.min()) < 0:
        raise DataError(f"{where}: node {int(made.argmin())} has the tag {int(made.min())}; tags count from 0")
    return made.long()


def node_features(found: Any, where: str) -> Tensor:
    expected = "a list of numbers for each node, all of one length"
    if isinstance(found, list) and (odd := first_ragged_row(found)) is not None:
        widths = f"{len(found[odd])} features, and the first has {len(found[0])}"
        raise DataError(f"{where}: node {odd} has {widths}; expected {expected}")
    made = numbers_to_tensor(found, where, "nodes are", expected)
    if made.dim() != 2 and len(made):
        raise DataError(f"{where}: nodes are {repr(found)[:40]}; expected {expected}")
    if made.is_floating_point() and not made.isfinite().all():
        node, place = (~made.isfinite()).nonzero()[0].tolist()
        raise DataError(f"{where}: feature {place} of node {node} is {float(made[node, place])}; expected a number")
    return made if made.dtype == torch.uint8 else made.float()


def first_ragged_row(rows: list[Any]) -> int | None:
    """The first node whose list differs in length from that of node 0."""
    lengths = [len(row) if isinstance(row, list) else -1 for row in rows]
    return next((place for place, length in enumerate(lengths) if length != lengths[0] and min(lengths) >= 0), None)


def parse_edges(found: Any, count: int, where: str) -> Tensor:
    """(E, 2) every edge once; raises for unknown nodes, self-loops and repeated pairs."""
    expected = "pairs of nodes, such as [[0, 1], [1, 2]]"
    pairs = numbers_to_tensor(found, where, "edges are", expected)
    if not pairs.numel():
        return torch.empty(0, 2, dtype=torch.long)
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise DataError(f"{where}: edges are {repr(found)[:40]}; expected {expected}")
    pairs = pairs.long()
    for wrong, why in (
        (((pairs < 0) | (pairs >= count)).any(-1), f"and the nodes are 0 to {count - 1}; mend it"),
        (pairs[:, 0] == pairs[:, 1], "a loop; remove it, since the mask decides whether nodes attend to themselves"),
        (is_repeated(pairs[:, 0] * count + pairs[:, 1]), "as one before it; remove one, since edges have no weights"),
    ):
        if wrong.any():
            place = int(wrong.nonzero()[0])
            raise DataError(f"{where}: edge {place} joins {' and '.join(map(str, pairs[place].tolist()))}, {why}")
    keys: Tensor = (pairs.amin(1) * count + pairs.amax(1)).unique()
    return torch.stack([keys // count, keys % count], -1)


def is_repeated(keys: Tensor) -> Tensor:
    """True where a value occurred before."""
    order = keys.argsort(stable=True)
    again = torch.zeros_like(keys, dtype=torch.bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again
