"""Arrays in .npy files, alone or several in an .npz, read without NumPy and without running anything.

    \\x93NUMPY 1 0 <length> {'descr': '<i8', 'fortran_order': False, 'shape': (2708,)}   then the numbers
"""

import ast
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from regard.config import DataError
from regard.data.packing import readable

MAGIC = b"\x93NUMPY"
LARGEST = 1 << 32  # bytes of one array
LONGEST = 1 << 16  # bytes of a header
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
        return {member.filename.removesuffix(".npy"): one(archive, member, name) for member in archive.infolist()}


@contextmanager
def opened(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    try:
        with readable(name), zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as problem:  # torn, or packed in a way of its own
        raise DataError(f"{name}: not a whole .npz file ({str(problem).rstrip('.')}); save it again") from None


def one(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Tensor:
    where = f"{name}:{member.filename}"
    if member.file_size > LARGEST:
        raise DataError(f"{where}: {member.file_size:,} bytes, and {LARGEST:,} are the most; save a part of it")
    with archive.open(member) as file:
        return array(file, member.file_size, where)


def array(file: IO[bytes], size: int, where: str) -> Tensor:
    """The array of an .npy file of `size` bytes."""
    start = file.read(8)
    if not start.startswith(MAGIC) or len(start) < 8:
        raise DataError(f"{where}: not an array of NumPy's; save it with numpy.save or numpy.savez")
    form = "<H" if start[6] == 1 else "<I"
    packed = file.read(struct.calcsize(form))
    length = struct.unpack(form, packed)[0] if len(packed) == struct.calcsize(form) else LONGEST
    dtype, shape, turned = header(file.read(length) if length < LONGEST else b"", where)
    raw = bytearray(file.read())
    count = 1
    for side in shape:
        count *= side
    if len(raw) != count * dtype.itemsize:
        raise DataError(f"{where}: {len(raw):,} bytes for an array of {list(shape)} numbers; save it again")
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.view(shape[::-1]).permute(*range(len(shape) - 1, -1, -1)) if turned else flat.view(shape)


def header(raw: bytes, where: str) -> tuple[torch.dtype, tuple[int, ...], bool]:
    """The type, the sides, and whether the first side runs fastest (Fortran's order)."""
    try:
        said: Any = ast.literal_eval(raw.decode("latin1").strip())
        kind, shape, turned = said["descr"], said["shape"], said["fortran_order"]
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise DataError(f"{where}: its header says no type and shape; save it again") from None
    if not isinstance(kind, str) or kind not in TYPES:
        raise DataError(f"{where}: numbers of type {kind!r:.40}; save them as whole or broken numbers of at most 64 "
                        "bits")  # fmt: skip
    if not isinstance(shape, tuple) or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise DataError(f"{where}: a shape of {shape!r:.40}; save it again")
    return TYPES[kind], shape, bool(turned)
