"""GGUF file parser: metadata, a list of tensors, and their data in quantized blocks.

    "GGUF", version, number of tensors, number of facts
    facts      name, type, value
    tensors    name, shape (the last axis first), type, offset
    data       each tensor at its offset from here

Files are untrusted: every count is checked against the rest of the file before anything is read or allocated. The
package `gguf` decodes the blocks.
"""

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.files.paths import check_regular_file
from regard.files.size_limits import check_bytes, max_bytes

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, LIST = 8, 9
AXES = 4
NUMBER, TEXT, ROW = 48, 96, 512  # bytes of memory: a number or a string in a list, a fact or a tensor with its name
PIECE = 1 << 22  # numbers decoded at once


class GGUFTensor(NamedTuple):
    """A tensor in a GGUF file: its shape, its block type by number, and its byte offset."""

    name: str
    shape: tuple[int, ...]
    kind: int
    place: int


@dataclass(frozen=True)
class GGUFFile:
    """The metadata (`facts`) and the tensors of a GGUF file."""

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    def pieces(self, held: GGUFTensor) -> Iterator[tuple[slice, Tensor]]:
        """The values of a tensor in fp32, in slices of rows, each with its slice."""
        gguf, kind = import_gguf(), block_type(self.path, held)
        import numpy as np  # a dependency of gguf

        table = held.shape if len(held.shape) > 1 else (1, *held.shape)
        raw = np.memmap(self.path, np.uint8, "r", held.place, (table[0], tensor_bytes(self.path, held) // table[0]))
        step = max(1, PIECE // math.prod(table[1:]))
        for start in range(0, table[0], step):
            made = torch.from_numpy(gguf.dequantize(np.array(raw[start : start + step]), kind).astype(np.float32))
            if table is held.shape:
                yield slice(start, start + len(made)), made
            else:
                yield slice(0, held.shape[0]), made[0]


def import_gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise DataError("a GGUF file needs the package gguf: pip install 'regard[gguf]'") from None
    return gguf


def open_gguf(path: Path) -> GGUFFile:
    """Parse the header of a file, without tensor data."""
    try:
        check_regular_file(path, "name a GGUF file")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return GGUFCursor(path, raw).file()
    except (OSError, ValueError) as problem:
        if isinstance(problem, DataError):
            raise
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"{path}: {reason.lower()}; name a GGUF file") from None


class GGUFCursor:
    """A cursor that parses a file from its beginning, with bounds checks."""

    def __init__(self, path: Path, raw: mmap.mmap) -> None:
        self.path, self.raw, self.end, self.at = path, raw, len(raw), 0
        self.taken, self.most = 0, max_bytes()  # bytes of memory for facts, used and allowed

    def error(self, why: str) -> DataError:
        return DataError(f"{self.path}: not a whole GGUF file ({why}); fetch it again")

    def take(self, form: str) -> tuple[Any, ...]:
        length = struct.calcsize(form)
        if length > self.end - self.at:
            raise self.error(f"it ends at {self.end:,} bytes, within what it promises")
        self.at += length
        return struct.unpack_from(form, self.raw, self.at - length)

    def read_count(self, count: int, least: int, each: int) -> int:
        """Check a count of items that take at least `least` bytes of the file each, and `each` bytes of memory."""
        if count * least > self.end - self.at:
            raise self.error(f"it promises {count:,} things, and has {self.end - self.at:,} bytes left")
        self.taken += count * each
        if self.taken > self.most:
            check_bytes(self.taken, self.path)
        return count

    def text(self) -> str:
        length = self.read_count(self.take("<Q")[0], 1, 1)
        self.at += length
        try:
            return bytes(self.raw[self.at - length : self.at]).decode()
        except UnicodeDecodeError:
            raise self.error(f"the text that ends at byte {self.at:,} is no UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.take(f"<{SCALARS[kind]}")[0]
        if kind == STRING:
            return self.text()
        if kind != LIST:
            raise self.error(f"facts have no type {kind}")
        inner, count = self.take("<IQ")
        if inner in SCALARS:
            self.read_count(count, struct.calcsize(SCALARS[inner]), NUMBER)
            return list(self.take(f"<{count}{SCALARS[inner]}"))
        if inner != STRING:
            raise self.error(f"lists have no type {inner}")
        return [self.text() for _ in range(self.read_count(count, 8, TEXT))]

    def read_tensor(self) -> GGUFTensor:
        name, axes = self.text(), self.take("<I")[0]
        if not 1 <= axes <= AXES:
            raise self.error(f"{name[:80]} has {axes} axes")
        shape = self.take(f"<{axes}Q")
        kind, place = self.take("<IQ")
        return GGUFTensor(name, tuple(reversed(shape)), kind, place)

    def file(self) -> GGUFFile:
        if bytes(self.raw[:4]) != MAGIC:
            raise self.error("it does not begin with the letters GGUF")
        self.at = 4
        version, count, facts = self.take("<IQQ")
        if version not in VERSIONS:
            raise self.error(f"its version is {version}, and known are {' and '.join(map(str, VERSIONS))}")
        told = {self.text(): self.value(self.take("<I")[0]) for _ in range(self.read_count(facts, 12, ROW))}
        found = [self.read_tensor() for _ in range(self.read_count(count, 24, ROW))]
        step = told.get("general.alignment", 32)
        if type(step) is not int or step < 1 or step & (step - 1):
            raise self.error(f"general.alignment is {str(step)[:40]}")
        begin = -(-self.at // step) * step
        placed = {each.name: self.place_tensor(each, begin) for each in found}
        # overlaps are refused: a thousand tensors at one offset would be a thousand times as large in memory
        if len(placed) < len(found) or sum(tensor_bytes(self.path, each) for each in found) > self.end:
            raise self.error("its tensors share bytes or names")
        return GGUFFile(self.path, told, placed)

    def place_tensor(self, held: GGUFTensor, begin: int) -> GGUFTensor:
        """The tensor with its offset from the beginning of the file; refused if it exceeds the file."""
        at = held._replace(place=begin + held.place)
        if not math.prod(at.shape) or at.place + tensor_bytes(self.path, at) > self.end:
            raise self.error(f"{at.name[:80]} {at.shape} is not in it")
        return at


def block_type(path: Path, held: GGUFTensor) -> Any:
    """The block type of a tensor."""
    try:
        return import_gguf().GGMLQuantizationType(held.kind)
    except ValueError:
        raise DataError(f"{path}: {held.name} is packed in a way ({held.kind}) that the package gguf does not know; "
                        "install a newer one") from None  # fmt: skip


def row_bytes(path: Path, held: GGUFTensor) -> int:
    count, length = import_gguf().GGML_QUANT_SIZES[block_type(path, held)]
    if held.shape[-1] % count:
        raise DataError(f"{path}: {held.name} has rows of {held.shape[-1]:,} numbers, and blocks of {count}; fetch it "
                        "again")  # fmt: skip
    return int(held.shape[-1] // count * length)


def tensor_bytes(path: Path, held: GGUFTensor) -> int:
    return row_bytes(path, held) * math.prod(held.shape[:-1])
