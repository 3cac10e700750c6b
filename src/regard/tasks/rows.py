"""Rows of different lengths as one tensor, and the texts cut that are too long for one."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

Example = dict[str, Any]  # str -> list[int] | int | float: what an objective makes of a record
Batch = dict[str, Tensor]  # what it makes of examples: the arguments of the model's forward by name, and labels


@dataclass(frozen=True)
class Rows:
    """At most `length` tokens a row; shorter ones are padded on one `side` up to a multiple of `multiple`.

    A closed set of lengths (multiple = 64, say) keeps a compiled model from being compiled for each.
    """

    length: int = 512
    side: Literal["right", "left"] = "right"
    multiple: int = 1

    def __post_init__(self) -> None:
        if self.length < 4 or self.multiple < 1:
            raise ValueError(f"rows of length {self.length} in multiples of {self.multiple}: at least 4 and 1")

    def width(self, lengths: Sequence[int]) -> int:
        """Of a batch with rows of these lengths."""
        longest = max(lengths)
        return max(longest, min(self.length, -(-longest // self.multiple) * self.multiple))

    def padded(self, rows: Sequence[Sequence[int]], fill: int) -> Tensor:  # (B, N)
        there = self.there(rows)
        ids = array("q", chain.from_iterable(rows))
        table = torch.full(there.shape, fill)
        table[there] = torch.frombuffer(ids, dtype=torch.long) if ids else torch.empty(0, dtype=torch.long)
        return table

    def there(self, rows: Sequence[Sequence[int]]) -> Tensor:  # (B, N)
        """True where a row has a token."""
        lengths = [len(row) for row in rows]
        places, count = torch.arange(self.width(lengths)), torch.tensor(lengths)[:, None]
        return places >= len(places) - count if self.side == "left" else places < count

    def real(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """{"real": (B, N)}, True for tokens; nothing where every row is as long as can be, which is faster to read."""
        if all(len(row) == self.length for row in rows):
            return {}
        return {"real": self.there(rows)}


def trimmed(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Two texts that fit in a room together: the longer one gives way first, from its end."""
    half = room // 2
    if len(first) + len(second) <= room:
        return first, second
    if len(first) <= half:
        return first, second[: room - len(first)]
    if len(second) <= half:
        return first[: room - len(second)], second
    return first[: room - half], second[:half]
