"""Tensor store: rows of tensors of any shape, built by a Processor from records, in memory-mapped files.

    {"image": uint8 (3, 32, 32), "label": int64 ()}       <cache>/<key>.bytes     one tensor after the other
    {"sound": float32 (16000,),  "label": int64 ()}                .shapes    their sizes                int64
                                                                   .lengths   how many tokens a row is   int64
    <key>.json: content key, columns, count                        .marks     a hash of each input       int64

Stored by `row_store`, like the lists of ids of `example_store`. A mark is the hash of a row's first tensor.
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

from regard.data.records import BadRecordPolicy
from regard.data.row_store import ColumnSizes, OnBadRecord, RowMaker, RowSequence, StoreJob, store_rows
from regard.data.token_shards import Notice, Progress, no_progress
from regard.files import content_cache

Row = dict[str, Tensor]
RowLength = Callable[[Row], int]

FORMAT = 1
CHUNK = 1 << 22  # bytes buffered before writing
ALIGNED = 8  # alignment of tensors in bytes
TYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.uint8, torch.float32, torch.int64, torch.bool)}
FILES = {"bytes": torch.uint8, "shapes": torch.int64, "lengths": torch.int64, "marks": torch.int64}


class TensorColumn(NamedTuple):
    """A tensor column: its name, dtype and number of axes."""

    name: str
    type: str
    axes: int


class TensorRows(RowSequence):
    """Rows of tensors by number."""

    @property
    def alike(self) -> bool:
        """Whether all rows, and therefore batches, have the same shapes."""
        shapes = self.kept.shapes
        return bool((shapes == shapes[:1]).all())


@dataclass(frozen=True)
class StoredTensors:
    """The files, memory-mapped or in memory."""

    columns: tuple[TensorColumn, ...]
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
        """The byte offset of each tensor, and of the end of the row."""
        each, axis = [], 0
        for column in self.columns:
            numbers = self.shapes[:, axis : axis + column.axes].prod(-1)
            each.append(round_up(numbers * TYPES[column.type].itemsize))
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
            found[column.name] = self.bytes[start:stop].view(kind).view(size).clone()  # not a view of the file
        return found

    def lengths(self) -> Tensor:  # (rows,)
        return self.tokens

    @property
    def is_complete(self) -> bool:
        """Whether the number of bytes agrees with the shapes."""
        return len(self.bytes) == (int(self.starts[-1, -1]) if self.count else 0)


def round_up(size: Any) -> Any:
    return -(-size // ALIGNED) * ALIGNED


class TensorWriter:
    """Writes rows: `parts` are those not yet written."""

    files = FILES

    def __init__(self, length: RowLength) -> None:
        self.length, self.rows = length, 0
        self.columns: tuple[TensorColumn, ...] | None = None
        self.clear()

    def clear(self) -> None:
        self.parts: dict[str, Any] = {"bytes": bytearray(), **{name: array("q") for name in FILES if name != "bytes"}}

    def add(self, row: Row) -> None:
        columns = tuple(TensorColumn(name, dtype_name(tensor), tensor.dim()) for name, tensor in row.items())
        self.columns = self.columns or columns
        if columns != self.columns or not row:
            raise TypeError(f"all rows have the same columns, {self.columns}; got {columns}")
        for place, tensor in enumerate(row.values()):
            raw = tensor_bytes(tensor)
            if not place:
                self.parts["marks"].append(hash_tensor(raw, tensor))
            self.parts["bytes"] += raw.ljust(round_up(len(raw)), b"\0")
            self.parts["shapes"].extend(tensor.shape)
        self.parts["lengths"].append(self.length(row))
        self.rows += 1

    @property
    def full(self) -> bool:
        return len(self.parts["bytes"]) >= CHUNK

    def facts(self, sizes: ColumnSizes, tally: BadRecordPolicy) -> dict[str, Any]:
        return {"sizes": sizes, "told": [tally.summary] * bool(tally.count), "columns": self.columns or ()}

    def sizes(self, known: dict[str, Any]) -> ColumnSizes:
        return {name: int(known["sizes"][name]) for name in FILES}

    def built(self, known: dict[str, Any], files: dict[str, Tensor]) -> StoredTensors | None:
        columns = tuple(TensorColumn(str(name), str(kind), int(axes)) for name, kind, axes in known["columns"])
        kept = StoredTensors(columns, int(known["count"]), *(files[name] for name in FILES))
        return kept if kept.is_complete else None


def dtype_name(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TYPES:
        raise TypeError(f"an example holds tensors of {', '.join(TYPES)}; got {name}")
    return name


def tensor_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor in C order."""
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def hash_tensor(raw: bytes, tensor: Tensor) -> int:
    """A hash of a tensor, which includes its shape and dtype."""
    what = f"{dtype_name(tensor)} {list(tensor.shape)} ".encode()
    return int.from_bytes(hashlib.blake2b(what + raw, digest_size=8).digest(), "little", signed=True)


def hash_row(row: Row) -> int:
    """The mark of a row: the hash of its first tensor."""
    first = next(iter(row.values()))
    return hash_tensor(tensor_bytes(first), first)


def store_tensors(
    make: RowMaker,
    about: dict[str, Any],
    folder: Path,
    name: str,
    bad: OnBadRecord = "error",
    notice: Notice = warnings.warn,
    progress: Progress = no_progress,
    length: RowLength = lambda row: 1,
) -> TensorRows:
    """The rows of the content key `about`: from the cache, or built now and stored there."""
    about = {"arrays": FORMAT, "bad": bad, **about}
    kept, told = store_rows(StoreJob(make, lambda: TensorWriter(length), bad, progress), about, folder, name, notice)
    return TensorRows(kept, name, told=told, digest=content_cache.content_key(about))
