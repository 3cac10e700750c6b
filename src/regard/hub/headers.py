"""Tensors in a file before they are read: names, types, shapes and places from its header.

    8 bytes    how long the header is
    header     {"h.0.ln_1.bias": {"dtype": "F32", "shape": [768], "data_offsets": [0, 3072]}, ...}
    numbers    one tensor after the other

A header may come from anywhere: safetensors compares it with the file before anything in it is believed.
"""

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.config import DataError

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32,
    "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, without its numbers."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: int = 0  # the byte of the file that it begins with

    @property
    def ghost(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def header(path: Path) -> dict[str, Stored]:
    """The tensors in a file, in the order in which they stand there."""
    with mapped(path) as file:
        slices, begin = {name: file.get_slice(name) for name in file.offset_keys()}, places(path)
        # a type that is not named here is compressed somehow, and not a float
        return {name: Stored(path, name, tuple(each.get_shape()), TYPES.get(each.get_dtype(), torch.uint8), begin[name])
                for name, each in slices.items()}  # fmt: skip


def places(path: Path) -> dict[str, int]:
    """Where each tensor begins in a file that safetensors has found whole: it says all but that."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        said = json.loads(file.read(length))
    return {name: 8 + length + each["data_offsets"][0] for name, each in said.items() if name != "__metadata__"}


def mapped(path: Path) -> AbstractContextManager[Any]:
    try:
        made: AbstractContextManager[Any] = safe_open(path, "pt")
        return made
    except (SafetensorError, OSError, ValueError) as problem:
        raise DataError(f"{path}: not whole safetensors ({brief(problem)}); fetch or write the file again") from None


def brief(problem: object) -> str:
    """The first words of what a library says: it may quote a whole file."""
    line = next(iter(str(problem).splitlines()), "") or type(problem).__name__
    return line if len(line) < 200 else f"{line[:200]}…"
