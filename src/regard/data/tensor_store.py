"""Arrays: what a sense made of records, in memory-mapped files; tensors of any shape, several columns.

    {"image": uint8 (3, 32, 32), "label": int64 ()}       <cache>/<key>.bytes     one tensor after the other
    {"sound": float32 (16000,),  "label": int64 ()}                .shapes    their sizes                int64
                                                                   .lengths   how many tokens a row is   int64
    <key>.json: what they are made from, the columns, how many     .marks     a hash of what a row asks  int64

The twin of `examples` for what is no list of ids: made once for a content and a setting, the JSON is written last, and
what does not fit is made again. A mark is the hash of a row's first tensor: what is asked.
"""

import ctypes
import hashlib
import math
import warnings
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data import store
from regard.data.keeping import Bad, Job, Made, Rows, Sizes, kept_rows
from regard.data.records import Tally
from regard.data.shards import Notice, Progress, quiet

Row = dict[str, Tensor]
Length = Callable[[Row], int]

FORMAT = 1
CHUNK = 1 << 22  # bytes that are gathered before they are written
ALIGNED = 8  # bytes: where a tensor begins
TYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.uint8, torch.float32, torch.int64, torch.bool)}
FILES = {"bytes": torch.uint8, "shapes": torch.int64, "lengths": torch.int64, "marks": torch.int64}


class Column(NamedTuple):
    """A tensor of every row: its name, its type, and how many axes it has."""

    name: str
    type: str
    axes: int


class Arrays(Rows):
    """Rows of tensors by their number."""

    @property
    def alike(self) -> bool:
        """Whether all rows have the same shapes, so that batches have too."""
        shapes = self.kept.shapes
        return bool((shapes == shapes[:1]).all())


@dataclass(frozen=True)
class Kept:
    """The files, mapped or in memory."""

    columns: tuple[Column, ...]
    count: int
    bytes: Tensor
    sizes: Tensor
    tokens: Tensor
    marks: Tensor

    @cached_property
    def shapes(self) -> Tensor:  # (rows, axes of all columns)
        return self.sizes.view(self.count, sum(column.axes for column in self.columns))

    @cached_property
    def starts(self) -> Tensor:  # (rows, columns + 1)
        """Where in the bytes each tensor begins, and where the row ends."""
        each, axis = [], 0
        for column in self.columns:
            numbers = self.shapes[:, axis : axis + column.axes].prod(-1)
            each.append(rounded(numbers * TYPES[column.type].itemsize))
            axis += column.axes
        sizes = torch.stack(each, -1)
        ends = sizes.flatten().cumsum(0).view(sizes.shape)
        return torch.cat([(ends - sizes)[:, :1], ends], -1)

    def row(self, row: int) -> Row:
        starts, shape = self.starts[row].tolist(), self.shapes[row].tolist()
        found: Row = {}
        for column, start in zip(self.columns, starts, strict=False):
            size, shape = shape[: column.axes], shape[column.axes :]
            kind = TYPES[column.type]
            stop = start + math.prod(size) * kind.itemsize
            found[column.name] = self.bytes[start:stop].view(kind).view(size).clone()  # nobody writes into the file
        return found

    def lengths(self) -> Tensor:  # (rows,)
        return self.tokens

    @property
    def whole(self) -> bool:
        """Whether there are as many bytes as the shapes say."""
        return len(self.bytes) == (int(self.starts[-1, -1]) if self.count else 0)


def rounded(size: Any) -> Any:
    return -(-size // ALIGNED) * ALIGNED


class Gathered:
    """Rows on their way to the files: `parts` are those that are not written yet."""

    files = FILES

    def __init__(self, length: Length) -> None:
        self.length, self.rows = length, 0
        self.columns: tuple[Column, ...] | None = None
        self.clear()

    def clear(self) -> None:
        self.parts: dict[str, Any] = {"bytes": bytearray(), **{name: array("q") for name in FILES if name != "bytes"}}

    def add(self, row: Row) -> None:
        columns = tuple(Column(name, kind(tensor), tensor.dim()) for name, tensor in row.items())
        self.columns = self.columns or columns
        if columns != self.columns or not row:
            raise TypeError(f"all rows have the same columns, {self.columns}; got {columns}")
        for place, tensor in enumerate(row.values()):
            raw = content(tensor)
            if not place:
                self.parts["marks"].append(mark(raw, tensor))
            self.parts["bytes"] += raw.ljust(rounded(len(raw)), b"\0")
            self.parts["shapes"].extend(tensor.shape)
        self.parts["lengths"].append(self.length(row))
        self.rows += 1

    @property
    def full(self) -> bool:
        return len(self.parts["bytes"]) >= CHUNK

    def known(self, sizes: Sizes, tally: Tally) -> dict[str, Any]:
        return {"sizes": sizes, "told": [tally.told] * bool(tally.count), "columns": self.columns or ()}

    def sizes(self, known: dict[str, Any]) -> Sizes:
        return {name: int(known["sizes"][name]) for name in FILES}

    def built(self, known: dict[str, Any], files: dict[str, Tensor]) -> Kept | None:
        columns = tuple(Column(str(name), str(kind), int(axes)) for name, kind, axes in known["columns"])
        kept = Kept(columns, int(known["count"]), *(files[name] for name in FILES))
        return kept if kept.whole else None


def kind(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TYPES:
        raise TypeError(f"an example holds tensors of {', '.join(TYPES)}; got {name}")
    return name


def content(tensor: Tensor) -> bytes:
    """The bytes of a tensor, its last axis first."""
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def mark(raw: bytes, tensor: Tensor) -> int:
    """A hash of a tensor: two of other shapes or types are never the same question."""
    what = f"{kind(tensor)} {list(tensor.shape)} ".encode()
    return int.from_bytes(hashlib.blake2b(what + raw, digest_size=8).digest(), "little", signed=True)


def marked(row: Row) -> int:
    """The mark that a row has."""
    first = next(iter(row.values()))
    return mark(content(first), first)


def kept_arrays(
    made: Made, about: dict[str, Any], folder: Path, name: str, bad: Bad = "stop", notice: Notice = warnings.warn,
    progress: Progress = quiet, length: Length = lambda row: 1,
) -> Arrays:  # fmt: skip
    """The rows that `about` stands for: from the cache, or made now and kept there."""
    about = {"arrays": FORMAT, "bad": bad, **about}
    kept, told = kept_rows(Job(made, lambda: Gathered(length), bad, progress), about, folder, name, notice)
    return Arrays(kept, name, told=told, digest=store.key(about))
