"""Beginnings that were read before: many requests begin alike, and what a model computed of that is the same.

    prompt    │ piece 0 │ piece 1 │ piece 2 │ rest       pieces of `chunk` tokens, each kept under all ids up to its end
                  ▲          ▲
    kept      ────┴──────────┘                           those are copied, and reading begins with piece 2

Only whole pieces are kept, and pieces always begin at the same places, so what is copied has the bits that reading it
again would give.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

Parts = list[Tensor]


class Prefixes:
    """As many pieces as fit into `room` bytes; those that were not asked for longest make room for others."""

    def __init__(self, room: int) -> None:
        self.room, self.bytes, self.hits = room, 0, 0
        self.kept: OrderedDict[tuple[int, ...], Parts] = OrderedDict()

    def find(self, ids: Sequence[int]) -> Parts | None:
        """The last piece of these ids, if it is kept."""
        key = tuple(ids)
        if key not in self.kept:
            return None
        self.kept.move_to_end(key)
        self.hits += 1
        return self.kept[key]

    def keep(self, ids: Sequence[int], parts: Parts) -> None:
        """A copy of the last piece of these ids, as far as there is room."""
        key, need = tuple(ids), size(parts)
        if key in self.kept or need > self.room:
            return
        while self.bytes + need > self.room:
            _, old = self.kept.popitem(last=False)
            self.bytes -= size(old)
        self.kept[key] = [part.clone() for part in parts]
        self.bytes += need


def size(parts: Parts) -> int:
    return sum(part.nbytes for part in parts)
