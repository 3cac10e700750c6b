"""Lists of neighbours: many small graphs in a text, as the data of the GIN paper are written (Xu et al. 2019).

    graphs:MUTAG.txt.xz        188              so many graphs
                               3 1              three nodes, class 1
                               6 1 1            a node: its tag, how many neighbours, their numbers
                               6 2 0 2
                               8 1 1            behind the neighbours there may be features
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from regard.config import DataError
from regard.data import store
from regard.data.records import File, Record, Table, Tally, all_lines
from regard.data.sources import PREFIXES, Source, filled

LISTS = "graphs:"


@dataclass(frozen=True)
class Made:
    """What tables of graphs have in common: they are read as they are, and told apart by what is in their files."""

    files: tuple[File, ...]

    @property
    def name(self) -> str:
        return " + ".join(file.name for file in self.files)

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return store.key([type(self).__name__, [file.digest for file in self.files]])


class Lists(Made):
    """The number of graphs; for each "nodes label", then a line a node: its tag, how many neighbours, their numbers.

    What stands behind the neighbours are the node's features.
    """

    def records(self, tally: Tally) -> Iterator[Record]:
        [file] = self.files
        said = ((f"{file.name}:{number}", whole(line).split()) for number, line in all_lines(file))
        rows = ((where, words) for where, words in said if words)
        for _ in range(counts(next(rows, None), 1, "how many graphs there are", file.name)[0]):
            head = next(rows, None)
            nodes, _ = counts(head, 2, "how many nodes a graph has, and its label", file.name)
            assert head is not None
            try:
                made = listed(head, list(islice(rows, nodes)), nodes)
            except DataError as problem:
                tally.bad(problem)
            else:
                yield made
        if (left := next(rows, None)) is not None:
            raise DataError(f"{left[0]}: more lines than the graphs that line 1 counts; mend the number there")


def whole(line: str | DataError) -> str:
    if isinstance(line, DataError):
        raise line
    return line


def counts(row: tuple[str, list[str]] | None, size: int, what: str, name: str) -> list[int]:
    """So many whole numbers, the first of which counts lines: where it is wrong nothing after it is certain."""
    where, words = row or (name, [])
    digits = all(len(word) < 19 for word in words)
    good = words and words[0].isdecimal() and (size == 1 or words[-1].lstrip("+-").isdecimal())
    if len(words) != size or not digits or not good:
        found = f"{' '.join(words)[:40]!r} is not" if row else "the file ends before a line with"
        raise DataError(f"{where}: {found} {what}; expected whole numbers, as in {'188' if size == 1 else '17 1'}")
    return [int(word) for word in words]


def listed(head: tuple[str, list[str]], rows: list[tuple[str, list[str]]], count: int) -> Record:
    """One graph from its lines."""
    where, (_, label) = head
    if len(rows) < count:
        raise DataError(f"{where}: a graph of {count} nodes, and the file ends after {len(rows)}; it is not whole")
    tags, pairs, features = [], dict[tuple[int, int], str](), []
    for node, (line, words) in enumerate(rows):
        tag, near, rest = neighbours(node, words, count, line)
        tags.append(tag)
        features.append(rest)
        pairs |= {(node, other): line for other in near}
    for (node, other), line in pairs.items():
        if (other, node) not in pairs:
            raise DataError(f"{line}: node {node} names {other} as its neighbour, and {other} does not name {node}; "
                            "mend one of the two")  # fmt: skip
    edges = [list(pair) for pair in pairs if pair[0] < pair[1]]
    more = {"nodes": features} if any(features) else {}
    return Record({"tags": tags, "edges": edges, "label": label, **more}, where)


def neighbours(node: int, words: list[str], count: int, where: str) -> tuple[int, list[int], list[float]]:
    """A line's tag, neighbours and features."""
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
            raise DataError(f"{where}: node {node} is joined to {other}, and the nodes are 0 to {count - 1}; mend it")
        if other == node or times[other] > 1:
            twice = "itself" if other == node else f"{other} twice"
            raise DataError(f"{where}: node {node} is joined to {twice}; remove it, since edges join two nodes once")
    return tag, near, rest


def lists(name: str) -> Table:
    path = Path(name.removeprefix(LISTS)).expanduser()
    return Lists((filled(Source(str(path), path)),))


PREFIXES[LISTS] = lists
