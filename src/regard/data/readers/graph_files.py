"""Graph reader: one graph in two tables or in arrays, or many small graphs as adjacency lists in a text.

    edges.csv + nodes.csv     pairs of names; and for each name its features or tag, its label and its split
    cora.npz                  a citation network, as arrays (Yang et al. 2016)

    source,target             node,part,label,a,b
    ada,bob                   ada,train,red,0.5,1
    bob,cy                    bob,validation,blue,0.1,0
                              cy,test,,0.9,1

One graph is one record: "nodes" or "tags", "edges", and for each node its "labels" and "parts" (train, validation,
test). Adjacency lists are written as the data of the GIN paper (Xu et al. 2019):

    graphs:MUTAG.txt.xz        188              number of graphs
                               3 1              three nodes, class 1
                               6 1 1            a node: tag, number of neighbours, their indices
                               6 2 0 2
                               8 1 1            features may follow the neighbours
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.config.recipe import Data
from regard.data.readers import arrays
from regard.data.readers.arrays import ArrayStack
from regard.data.readers.graphs import LARGEST
from regard.data.readers.text_formats import RecordFile
from regard.data.records import BadRecordPolicy, ReadableFile, Record, RecordSource, iterate_lines
from regard.data.sources import JOINED_SOURCES, SOURCE_PREFIXES, SOURCE_SUFFIXES, TextSource, check_not_empty
from regard.files import content_cache
from regard.files.size_limits import check_bytes

LISTS = "graphs:"


@dataclass(frozen=True)
class GraphSource:
    """Base of graph sources: no reader settings, identified by their file contents."""

    files: tuple[ReadableFile, ...]

    @property
    def name(self) -> str:
        return " + ".join(file.name for file in self.files)

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key([type(self).__name__, [file.digest for file in self.files]])


class AdjacencyLists(GraphSource):
    """Adjacency lists: the number of graphs; for each "nodes label", then one line per node: tag, degree, neighbours.

    Numbers after the neighbours are the node's features.
    """

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        [file] = self.files
        said = ((f"{file.name}:{number}", require_line(line).split()) for number, line in iterate_lines(file))
        rows = ((where, words) for where, words in said if words)
        for _ in range(parse_counts(next(rows, None), 1, "how many graphs there are", file.name)[0]):
            head = next(rows, None)
            nodes, _ = parse_counts(head, 2, "how many nodes a graph has, and its label", file.name)
            assert head is not None
            try:
                made = parse_graph(head, list(islice(rows, nodes)), nodes)
            except DataError as problem:
                tally.record_bad(problem)
            else:
                yield made
        if (left := next(rows, None)) is not None:
            raise DataError(f"{left[0]}: more lines than the graphs that line 1 counts; correct the number there")


def require_line(line: str | DataError) -> str:
    if isinstance(line, DataError):
        raise line
    return line


def parse_counts(row: tuple[str, list[str]] | None, size: int, what: str, name: str) -> list[int]:
    """Integers of a header line, the first a count of lines: after a wrong one, the rest of the file cannot be read."""
    where, words = row or (name, [])
    digits = all(len(word) < 19 for word in words)
    good = words and words[0].isdecimal() and (size == 1 or words[-1].lstrip("+-").isdecimal())
    if len(words) != size or not digits or not good:
        found = f"{' '.join(words)[:40]!r} is not" if row else "the file ends before a line with"
        raise DataError(f"{where}: {found} {what}; expected whole numbers, as in {'188' if size == 1 else '17 1'}")
    return [int(word) for word in words]


def parse_graph(head: tuple[str, list[str]], rows: list[tuple[str, list[str]]], count: int) -> Record:
    """Parse the lines of one graph."""
    where, (_, label) = head
    if len(rows) < count:
        raise DataError(f"{where}: a graph of {count} nodes, and the file ends after {len(rows)}; it is not whole")
    tags, pairs, features = [], dict[tuple[int, int], str](), []
    for node, (line, words) in enumerate(rows):
        tag, near, rest = parse_node(node, words, count, line)
        tags.append(tag)
        features.append(rest)
        pairs |= {(node, other): line for other in near}
    for (node, other), line in pairs.items():
        if (other, node) not in pairs:
            raise DataError(f"{line}: node {node} names {other} as its neighbour, and {other} does not name {node}; "
                            "correct one of the two")  # fmt: skip
    edges = [list(pair) for pair in pairs if pair[0] < pair[1]]
    more = {"nodes": features} if any(features) else {}
    return Record({"tags": tags, "edges": edges, "label": label, **more}, where)


def parse_node(node: int, words: list[str], count: int, where: str) -> tuple[int, list[int], list[float]]:
    """Parse the tag, neighbours and features of a line."""
    expected = "expected 'tag neighbours node node ...', as in '6 2 0 4'"
    try:
        tag, degree, *near = (int(word) for word in words[: 2 + int(words[1])])
        rest = [float(word) for word in words[2 + degree :]]
    except (ValueError, IndexError):
        raise DataError(f"{where}: {' '.join(words)[:40]!r} is no node; {expected}") from None
    if degree != len(near) or degree < 0:
        raise DataError(f"{where}: {degree} neighbours, and {len(near)} numbers behind that; {expected}")
    times = Counter(near)
    for other in near:
        if not 0 <= other < count:
            raise DataError(f"{where}: node {node} is joined to {other}, and the nodes are 0 to {count - 1}; fix it")
        if other == node or times[other] > 1:
            twice = "itself" if other == node else f"{other} twice"
            raise DataError(f"{where}: node {node} is joined to {twice}; remove it, since edges join two nodes once")
    return tag, near, rest


def open_adjacency_lists(name: str) -> RecordSource:
    path = Path(name.removeprefix(LISTS)).expanduser()
    return AdjacencyLists((check_not_empty(TextSource(str(path), path)),))


SOURCE_PREFIXES[LISTS] = open_adjacency_lists

TABLES = ("edges.csv", "edges.tsv")
ARRAYS = ("feat_indptr", "feat_indices", "num_nodes", "num_features", "edges", "labels", "train", "val", "test")
PARTS = {"train": "train", "val": "validation", "test": "test"}  # name of a part in the arrays -> ours


class GraphTables(GraphSource):
    """Edges as pairs of node names, and a table of nodes: the first column is the name, `label`, `part` and `tag` have
    their meaning, all other columns are features."""

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        edges, nodes = (RecordFile(file, Data()) for file in self.files)
        rows: dict[str, Record] = {}
        for record in nodes.records(tally):
            name = next(iter(record.values()))
            if name in rows:
                before = rows[name].where
                tally.record_bad(
                    DataError(f"{record.where}: node {name!r} is listed before ({before}); keep one of the two")
                )
            rows.setdefault(name, record)
        if not rows:
            raise DataError(f"{nodes.name}: no nodes in it; expected a line for each, below the names of the columns")
        places = {name: place for place, name in enumerate(rows)}
        pairs = dict[tuple[int, int], list[int]]()
        for record in edges.records(tally):
            try:
                pair = edge_ends(record, places, nodes.name, pairs)
            except DataError as problem:
                tally.record_bad(problem)
            else:
                pairs[pair[0], pair[1]] = pair
        yield Record({"edges": list(pairs.values()), **node_columns(list(rows.values()))}, self.name)


def edge_ends(record: Record, places: dict[str, int], nodes: str, known: dict[tuple[int, int], Any]) -> list[int]:
    """The two node indices of an edge."""
    names = list(record.values())[:2]
    if len(names) < 2:
        raise DataError(f"{record.where}: one column; expected the names of two nodes")
    if lost := [name for name in names if name not in places]:
        raise DataError(f"{record.where}: joins {' and '.join(map(repr, names))}, and {nodes} has no {lost[0]!r}; add "
                        "it there, or remove the edge")  # fmt: skip
    pair = [places[name] for name in names]
    if pair[0] == pair[1]:
        raise DataError(f"{record.where}: joins {names[0]!r} to itself; remove it, since the mask sets whether nodes "
                        "attend to themselves")  # fmt: skip
    if (pair[0], pair[1]) in known:
        raise DataError(f"{record.where}: joins {' and '.join(map(repr, names))}, as a line before does; remove "
                        "one, since edges have no weights")  # fmt: skip
    return pair


def node_columns(rows: Sequence[Record]) -> dict[str, Any]:
    """The data of a node table, by column."""
    name, *others = rows[0]
    made: dict[str, Any] = {}
    for column, into in (("label", "labels"), ("part", "parts")):
        if column in others:
            made[into] = [row[column] for row in rows]
    features = [column for column in others if column not in ("label", "part", "tag")]
    if "tag" in others:
        made["tags"] = [int(parse_number(row, "tag")) for row in rows]
    if features:
        made["nodes"] = [[parse_number(row, column) for column in features] for row in rows]
    if not features and "tag" not in others:
        raise DataError(f"{rows[0].where}: the columns are {', '.join(rows[0])}; expected features or a tag beside "
                        f"{name!r}")  # fmt: skip
    return made


def parse_number(record: Record, column: str) -> float:
    try:
        found = float(record[column])
    except ValueError:
        raise DataError(f"{record.where}: {column!r} is {record[column]!r:.40}; expected a number") from None
    if found != found or found in (float("inf"), float("-inf")):
        raise DataError(f"{record.where}: {column!r} is {record[column]!r:.40}; expected a finite number")
    return found


# ---------------------------------------------------------------- arrays


class GraphArrays(GraphSource):
    """A graph with sparse binary features: feat_indptr, feat_indices."""

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        [file] = self.files
        assert isinstance(file, TextSource)
        found = arrays.read_npz(file.path, file.name)
        if missing := [name for name in ARRAYS if name not in found]:
            raise DataError(f"{file.name}: no array {missing[0]!r}; expected {', '.join(ARRAYS)}")
        count, width = (scalar_int(found[name], name, file.name) for name in ("num_nodes", "num_features"))
        if not 0 < count <= LARGEST:
            raise DataError(f"{file.name}: num_nodes is {count:,}, expected 1 to {LARGEST:,}; cut out a part")
        check_bytes(count * width + 64 * found["edges"].numel(), file.name, file.path)
        for name in ("labels", *PARTS):  # check the size before conversion to lists, which need more memory
            if found[name].dim() != 1 or len(found[name]) > count or found[name].is_floating_point():
                raise DataError(f"{file.name}: {name} is an array of {list(found[name].shape)!s:.40}, expected at most "
                                f"a whole number for each of {count:,} nodes; save it again")  # fmt: skip
        labels = [None if label < 0 else label for label in found["labels"].tolist()]
        parts = [""] * count
        for theirs, ours in PARTS.items():
            for node in found[theirs].tolist():
                if not 0 <= node < count or parts[node]:
                    also = f"also in {parts[node]}" if 0 <= node < count else f"and the nodes are 0 to {count - 1}"
                    raise DataError(f"{file.name}: node {node} in {theirs}, {also}; correct it")
                parts[node] = ours
        nodes = sparse_to_dense(found["feat_indptr"], found["feat_indices"], (count, width), file.name)
        yield Record({"nodes": nodes, "edges": found["edges"].long(), "labels": labels, "parts": parts}, file.name)


def scalar_int(found: Tensor, name: str, file: str) -> int:
    """An array with a single integer."""
    if found.numel() != 1 or found.is_floating_point():
        raise DataError(f"{file}: {name} is an array of {list(found.shape)!s:.40}, expected one whole number")
    return int(found)


def sparse_to_dense(starts: Tensor, places: Tensor, shape: tuple[int, int], name: str) -> Tensor:
    """(N, F) dense binary features from row starts and column indices."""
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


def open_graph_archive(source: TextSource) -> RecordSource:
    """Open an .npz file by the array names in it, as a graph or as records."""
    graph = "feat_indptr" in arrays.npz_names(source.path, source.name)
    return GraphArrays((source,)) if graph else ArrayStack(source)


def open_graph_tables(sources: Sequence[TextSource]) -> RecordSource:
    if len(sources) != 2:
        raise DataError(f"{' + '.join(source.name for source in sources)}: {len(sources)} files; expected two, as in "
                        "edges.csv + nodes.csv")  # fmt: skip
    return GraphTables(tuple(sources))


SOURCE_SUFFIXES[".npz"] = open_graph_archive
JOINED_SOURCES.update(dict.fromkeys(TABLES, open_graph_tables))
