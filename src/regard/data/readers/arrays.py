"""Arrays in .npy files, alone or several in an .npz, read without NumPy and without running anything.

    \\x93NUMPY 1 0 <length> {'descr': '<i8', 'fortran_order': False, 'shape': (2708,)}   then the numbers
"""

import ast
import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from regard.config import ConfigError, DataError
from regard.config.limits import check_bytes
from regard.data.packing import readable

MAGIC = b"\x93NUMPY"
LONGEST = 10_000  # bytes of a header, as in NumPy itself
AXES = 32
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
PIECE = 1 << 20  # bytes that are read at once
NESTED = 64  # brackets and signs in a header
TYPES = {
    "|b1": torch.bool, "|u1": torch.uint8, "|i1": torch.int8, "<i2": torch.int16, "<i4": torch.int32,
    "<i8": torch.int64, "<u2": torch.uint16, "<f2": torch.float16, "<f4": torch.float32, "<f8": torch.float64,
}  # fmt: skip


def names(path: Path, name: str) -> list[str]:
    """What the arrays of an .npz file are called; they themselves are not read."""
    with opened(path, name) as archive:
        return [member.filename.removesuffix(".npy") for member in archive.infolist()]


def arrays(path: Path, name: str) -> dict[str, Tensor]:
    """All arrays of an .npz file by their names."""
    with opened(path, name) as archive:
        check_bytes(sum(member.file_size for member in archive.infolist()), name, path)
        return {member.filename.removesuffix(".npy"): one(archive, member, name) for member in archive.infolist()}


@contextmanager
def opened(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    try:
        with readable(name), zipfile.ZipFile(path) as archive:
            yield archive
    except (DataError, ConfigError):
        raise
    # torn, or packed in a way of its own; also a name in no known letters, and a place before the file's beginning
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error) as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")
        raise DataError(f"{name}: not a whole .npz file ({reason:.200}); save it again") from None


def one(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Tensor:
    where = f"{name}:{member.filename:.80}"
    if member.compress_type not in PLAIN:  # others take as much memory as they say, before the first byte comes
        raise DataError(f"{where}: packed in a way that NumPy has not; save it with numpy.savez_compressed")
    with archive.open(member) as file:
        return array(file, where, Path(str(archive.filename)), member.file_size)


def array(file: IO[bytes], where: str, path: Path, size: int | None = None) -> Tensor:
    """The array of an .npy file, as many bytes as its header says; `size` is how many the whole file has, if known."""
    start = file.read(8)
    if not start.startswith(MAGIC) or len(start) < 8:
        raise DataError(f"{where}: not an array of NumPy's; save it with numpy.save or numpy.savez")
    form = "<H" if start[6] == 1 else "<I"
    packed = file.read(struct.calcsize(form))
    length = struct.unpack(form, packed)[0] if len(packed) == struct.calcsize(form) else LONGEST
    dtype, shape, turned = header(file.read(length) if length < LONGEST else b"", where)
    count = math.prod(shape) * dtype.itemsize
    there = count if size is None else size - len(start) - len(packed) - length
    check_bytes(count, where, path)
    raw = bytearray()
    while there == count and (some := file.read(min(PIECE, count + 1 - len(raw)))):  # no more than is really there
        raw += some
    if there != count or len(raw) != count:
        told = "more" if len(raw) > count else f"{len(raw) if there == count else there:,}"
        raise DataError(f"{where}: {told} bytes for an array of {list(shape)!s:.80} numbers; save it again")
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.view(shape[::-1]).permute(*range(len(shape) - 1, -1, -1)) if turned else flat.view(shape)


def header(raw: bytes, where: str) -> tuple[torch.dtype, tuple[int, ...], bool]:
    """The type, the sides, and whether the first side runs fastest (Fortran's order)."""
    try:
        if b"\\" in raw or sum(map(raw.count, (b"(", b"[", b"{", b"-", b"+", b"~"))) > NESTED:
            raise ValueError("no header has that")  # and Python's parser would warn of it, or run out of stack
        said: Any = ast.literal_eval(raw.decode("latin1").strip())
        kind, shape, turned = said["descr"], said["shape"], said["fortran_order"]
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise DataError(f"{where}: its header says no type and shape; save it again") from None
    if not isinstance(kind, str) or kind not in TYPES:
        raise DataError(f"{where}: numbers of type {kind!r:.40}; save them as whole or broken numbers of at most 64 "
                        "bits")  # fmt: skip
    whole = isinstance(shape, tuple) and all(type(side) is int and 0 <= side < 1 << 48 for side in shape)
    if not whole or len(shape) > AXES or (math.prod(shape) == 0 and max(shape) > LONGEST):
        raise DataError(f"{where}: a shape of {shape!r:.40}; save it again")
    return TYPES[kind], shape, bool(turned)
