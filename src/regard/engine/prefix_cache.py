"""Prefix cache: keys and values of common prompt prefixes are kept once, in chunks, and copied.

    prompt    │ chunk 0 │ chunk 1 │ chunk 2 │ rest       chunks of `chunk` tokens, each kept under all ids up to its end
                  ▲          ▲
    kept      ────┴──────────┘                           those are copied, and prefill begins with chunk 2

Only whole chunks are kept, and chunks always begin at the same positions, so a copy is equal bit for bit to a new
prefill. The least recently used chunk makes room for others.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

Parts = list[Tensor]


class PrefixCache:
    """An LRU cache of prefill chunks, with at most `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room, self.bytes, self.hits = room, 0, 0
        self.kept: OrderedDict[tuple[int, ...], Parts] = OrderedDict()

    def find(self, ids: Sequence[int]) -> Parts | None:
        """The last chunk of these ids, if it is cached."""
        key = tuple(ids)
        if key not in self.kept:
            return None
        self.kept.move_to_end(key)
        self.hits += 1
        return self.kept[key]

    def keep(self, ids: Sequence[int], parts: Parts) -> None:
        """Store a copy of the last chunk of these ids, unless it is larger than the whole cache."""
        key, need = tuple(ids), tensor_bytes(parts)
        if key in self.kept or need > self.room:
            return
        while self.bytes + need > self.room:
            _, old = self.kept.popitem(last=False)
            self.bytes -= tensor_bytes(old)
        self.kept[key] = [part.clone() for part in parts]
        self.bytes += need


def tensor_bytes(parts: Parts) -> int:
    return sum(part.nbytes for part in parts)
