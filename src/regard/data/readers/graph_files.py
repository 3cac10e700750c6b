"""One graph in files: two tables, or arrays.

    edges.csv + nodes.csv     pairs of names; and for each name its features, or its tag, its label and its part
    cora.npz                  texts that cite each other, as arrays (Yang et al. 2016)

    source,target             node,part,label,a,b
    ada,bob                   ada,train,red,0.5,1
    bob,cy                    bob,validation,blue,0.1,0
                              cy,test,,0.9,1

It is one record: "nodes" or "tags", "edges", and for each node its "labels" and "parts" (train, validation, test).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config import Data, DataError
from regard.config.limits import check_bytes
from regard.data import npz
from regard.data.formats import Filed
from regard.data.graph_lists import Made
from regard.data.graphs import LARGEST
from regard.data.records import Record, Table, Tally
from regard.data.sources import JOINED, SUFFIXES, Source
from regard.data.stacks import Stack

TABLES = ("edges.csv", "edges.tsv")
ARRAYS = ("feat_indptr", "feat_indices", "num_nodes", "num_features", "edges", "labels", "train", "val", "test")
PARTS = {"train": "train", "val": "validation", "test": "test"}  # what the arrays call them, and we


class Tables(Made):
    """Edges by the names of nodes, and a table of nodes: the first column is the name, `label`, `part` and `tag` are
    what they say, all others are features."""

    def records(self, tally: Tally) -> Iterator[Record]:
        edges, nodes = (Filed(file, Data()) for file in self.files)
        rows: dict[str, Record] = {}
        for record in nodes.records(tally):
            name = next(iter(record.values()))
            if name in rows:
                before = rows[name].where
                tally.bad(DataError(f"{record.where}: node {name!r} stands there before ({before}); name it once"))
            rows.setdefault(name, record)
        if not rows:
            raise DataError(f"{nodes.name}: no nodes in it; expected a line for each, below the names of the columns")
        places = {name: place for place, name in enumerate(rows)}
        pairs = dict[tuple[int, int], list[int]]()
        for record in edges.records(tally):
            try:
                pair = ends(record, places, nodes.name, pairs)
            except DataError as problem:
                tally.bad(problem)
            else:
                pairs[pair[0], pair[1]] = pair
        yield Record({"edges": list(pairs.values()), **carried(list(rows.values()))}, self.name)


def ends(record: Record, places: dict[str, int], nodes: str, known: dict[tuple[int, int], Any]) -> list[int]:
    """The two nodes that a line joins."""
    names = list(record.values())[:2]
    if len(names) < 2:
        raise DataError(f"{record.where}: one column; expected the names of two nodes")
    if lost := [name for name in names if name not in places]:
        raise DataError(f"{record.where}: joins {' and '.join(map(repr, names))}, and {nodes} has no {lost[0]!r}; add "
                        "it there, or remove the edge")  # fmt: skip
    pair = [places[name] for name in names]
    if pair[0] == pair[1]:
        raise DataError(f"{record.where}: joins {names[0]!r} to itself; remove it, since the mask says whether nodes "
                        "see themselves")  # fmt: skip
    if (pair[0], pair[1]) in known:
        raise DataError(f"{record.where}: joins {' and '.join(map(repr, names))}, as a line before does; remove "
                        "one, since edges do not weigh")  # fmt: skip
    return pair


def carried(rows: Sequence[Record]) -> dict[str, Any]:
    """What the nodes of a table carry, by column."""
    name, *others = rows[0]
    made: dict[str, Any] = {}
    for column, into in (("label", "labels"), ("part", "parts")):
        if column in others:
            made[into] = [row[column] for row in rows]
    features = [column for column in others if column not in ("label", "part", "tag")]
    if "tag" in others:
        made["tags"] = [int(number(row, "tag")) for row in rows]
    if features:
        made["nodes"] = [[number(row, column) for column in features] for row in rows]
    if not features and "tag" not in others:
        raise DataError(f"{rows[0].where}: the columns are {', '.join(rows[0])}; expected features or a tag beside "
                        f"{name!r}")  # fmt: skip
    return made


def number(record: Record, column: str) -> float:
    try:
        found = float(record[column])
    except ValueError:
        raise DataError(f"{record.where}: {column!r} is {record[column]!r:.40}; expected a number") from None
    if found != found or found in (float("inf"), float("-inf")):
        raise DataError(f"{record.where}: {column!r} is {record[column]!r:.40}; expected a finite number")
    return found


# ---------------------------------------------------------------- arrays


class Arrays(Made):
    """One graph whose features are ones at the places of a sparse table: feat_indptr, feat_indices."""

    def records(self, tally: Tally) -> Iterator[Record]:
        [file] = self.files
        assert isinstance(file, Source)
        found = npz.arrays(file.path, file.name)
        if missing := [name for name in ARRAYS if name not in found]:
            raise DataError(f"{file.name}: no array {missing[0]!r}; expected {', '.join(ARRAYS)}")
        count, width = (one(found[name], name, file.name) for name in ("num_nodes", "num_features"))
        if not 0 < count <= LARGEST:
            raise DataError(f"{file.name}: num_nodes is {count:,}, expected 1 to {LARGEST:,}; cut out a part")
        check_bytes(count * width + 64 * found["edges"].numel(), file.name, file.path)
        for name in ("labels", *PARTS):  # before they are lists, which take more room
            if found[name].dim() != 1 or len(found[name]) > count or found[name].is_floating_point():
                raise DataError(f"{file.name}: {name} is an array of {list(found[name].shape)!s:.40}, expected at most "
                                f"a whole number for each of {count:,} nodes; save it again")  # fmt: skip
        labels = [None if label < 0 else label for label in found["labels"].tolist()]
        parts = [""] * count
        for theirs, ours in PARTS.items():
            for node in found[theirs].tolist():
                if not 0 <= node < count or parts[node]:
                    also = f"also in {parts[node]}" if 0 <= node < count else f"and the nodes are 0 to {count - 1}"
                    raise DataError(f"{file.name}: node {node} in {theirs}, {also}; mend it")
                parts[node] = ours
        nodes = ones(found["feat_indptr"], found["feat_indices"], (count, width), file.name)
        yield Record({"nodes": nodes, "edges": found["edges"].long(), "labels": labels, "parts": parts}, file.name)


def one(found: Tensor, name: str, file: str) -> int:
    """An array of a single whole number."""
    if found.numel() != 1 or found.is_floating_point():
        raise DataError(f"{file}: {name} is an array of {list(found.shape)!s:.40}, expected one whole number")
    return int(found)


def ones(starts: Tensor, places: Tensor, shape: tuple[int, int], name: str) -> Tensor:
    """(N, F) a one at each place, row by row."""
    count, width = shape
    whole = all(each.dim() == 1 and not each.is_floating_point() for each in (starts, places))
    if not whole or len(starts) != count + 1:
        raise DataError(f"{name}: feat_indptr and feat_indices are no table of {count} x {width}; save them again")
    lengths = starts.long().diff()
    good = int(starts[0]) == 0 and int(starts[-1]) == len(places) and (lengths >= 0).all()
    if not good or (len(places) and not 0 <= int(places.min()) <= int(places.max()) < width):
        raise DataError(f"{name}: feat_indptr and feat_indices are no table of {count} x {width}; save them again")
    table = torch.zeros(shape, dtype=torch.uint8)
    table[torch.arange(count).repeat_interleave(lengths), places.long()] = 1
    return table


def archive(source: Source) -> Table:
    """What an .npz file holds, by the names in it."""
    graph = "feat_indptr" in npz.names(source.path, source.name)
    return Arrays((source,)) if graph else Stack(source)


def pair(sources: Sequence[Source]) -> Table:
    if len(sources) != 2:
        raise DataError(f"{' + '.join(source.name for source in sources)}: {len(sources)} files; expected two, as in "
                        "edges.csv + nodes.csv")  # fmt: skip
    return Tables(tuple(sources))


SUFFIXES[".npz"] = archive
JOINED.update(dict.fromkeys(TABLES, pair))
