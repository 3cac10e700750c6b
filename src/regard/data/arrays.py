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
import json
import math
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.config import DataError
from regard.data import store
from regard.data.examples import Bad
from regard.data.records import Tally
from regard.data.shards import Notice, Progress, opened, quiet, unkept

Row = dict[str, Tensor]
Length = Callable[[Row], int]
Made = Callable[[Tally], Iterable[Row]]  # makes all rows, and tallies the records it cannot use

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


class Arrays(Sequence[Row]):
    """Rows by their number; `which` of all that are kept are meant (none: all, in order).

    `told` is worth a line to whoever trains on them. `digest` tells what they were made from.
    """

    def __init__(
        self, kept: "Kept", name: str, which: Tensor | None = None, told: tuple[str, ...] = (), digest: str = ""
    ) -> None:
        self.kept, self.name, self.which, self.told, self.digest = kept, name, which, told, digest

    def __len__(self) -> int:
        return self.kept.count if self.which is None else len(self.which)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.name}: row {row} of {len(self):,}")
        row = row % len(self)
        return self.kept.row(row if self.which is None else int(self.which[row]))

    def lengths(self) -> Tensor:
        """(rows,) how many tokens each will be."""
        return self.kept.lengths if self.which is None else self.kept.lengths[self.which]

    def marks(self) -> Tensor:
        """(rows,) the hash of what each asks."""
        return self.kept.marks if self.which is None else self.kept.marks[self.which]

    def part(self, which: Tensor, name: str) -> "Arrays":
        """Some of the rows; nothing is copied."""
        return Arrays(self.kept, name, which if self.which is None else self.which[which], self.told, self.digest)

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
    lengths: Tensor
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

    @property
    def whole(self) -> bool:
        """Whether there are as many bytes as the shapes say."""
        return len(self.bytes) == (int(self.starts[-1, -1]) if self.count else 0)


def rounded(size: Any) -> Any:
    return -(-size // ALIGNED) * ALIGNED


class Gathered:
    """Rows on their way to the files: `parts` are those that are not written yet."""

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


def gathering(rows: Iterable[Row], into: Gathered, progress: Progress) -> Iterator[dict[str, Any]]:
    """The files' next parts, again and again until all rows are in them."""
    for row in rows:
        into.add(row)
        if len(into.parts["bytes"]) >= CHUNK:
            yield into.parts
            into.clear()
            progress(into.rows)
    yield into.parts
    progress(into.rows)


def kept_arrays(
    made: Made, about: dict[str, Any], folder: Path, name: str, bad: Bad = "stop", notice: Notice = warnings.warn,
    progress: Progress = quiet, length: Length = lambda row: 1,
) -> Arrays:  # fmt: skip
    """The rows that `about` stands for: from the cache, or made now and kept there."""
    about = {"arrays": FORMAT, "bad": bad, **about}
    path = folder / store.key(about)
    found = mapped(path, about)
    if found is None:
        try:
            keep(path, about, made, Gathered(length), Tally(bad), progress)
            found = mapped(path, about)
        except OSError as problem:
            notice(unkept(folder, problem))
    files, told = found or in_memory(made, Gathered(length), Tally(bad), progress)
    if not files.count:
        raise DataError(f"{name}: no records to learn from; name a source that has some")
    for line in told:
        notice(f"{name}: {line}")
    return Arrays(files, name, told=told, digest=path.name)


def keep(path: Path, about: dict[str, Any], made: Made, rows: Gathered, tally: Tally, progress: Progress) -> None:
    """Writes the files side by side, then what they are."""
    path.with_suffix(".json").unlink(missing_ok=True)
    with ExitStack() as stack:
        files = {name: stack.enter_context(store.writing(path.with_suffix(f".{name}"))) for name in FILES}
        for parts in gathering(made(tally), rows, progress):
            for name, file in files.items():
                file.write(parts[name])
        sizes = {name: file.tell() // FILES[name].itemsize for name, file in files.items()}
    known = {**about, "count": rows.rows, "sizes": sizes, "told": [tally.told] * bool(tally.count),
             "columns": rows.columns or ()}  # fmt: skip
    store.put(path.with_suffix(".json"), [json.dumps(known, indent=1).encode()])


def mapped(path: Path, about: dict[str, Any]) -> tuple[Kept, tuple[str, ...]] | None:
    """The kept files, without reading them; None where they are not there, or not as they should be."""
    known = store.get(path.with_suffix(".json"))
    if not isinstance(known, dict) or {name: known.get(name) for name in about} != json.loads(json.dumps(about)):
        return None
    try:
        columns = tuple(Column(str(name), str(kind), int(axes)) for name, kind, axes in known["columns"])
        found = [opened(path.with_suffix(f".{name}"), int(known["sizes"][name]), kind) for name, kind in FILES.items()]
        files = [file for file in found if file is not None]
        kept = Kept(columns, int(known["count"]), *files) if len(files) == len(FILES) else None
        return None if kept is None or not kept.whole else (kept, tuple(map(str, known["told"])))
    except (KeyError, TypeError, ValueError, RuntimeError):  # RuntimeError: sizes that are no table
        return None


def in_memory(made: Made, rows: Gathered, tally: Tally, progress: Progress) -> tuple[Kept, tuple[str, ...]]:
    whole = Gathered(rows.length).parts
    for parts in gathering(made(tally), rows, progress):
        for name, part in parts.items():
            whole[name].extend(part)
    files = [torch.frombuffer(whole[name], dtype=kind) if whole[name] else torch.empty(0, dtype=kind)
             for name, kind in FILES.items()]  # fmt: skip
    return Kept(rows.columns or (), rows.rows, *files), (tally.told,) * bool(tally.count)
