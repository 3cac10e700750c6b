"""Array reader without NumPy and without pickle: .npy, .npz and the idx files of MNIST.

    NUMPY 1 0 <length> {'descr': '<i8', 'fortran_order': False, 'shape': (2708,)}   then the numbers

    00 00 08 03   00 00 EA 60   00 00 00 1C   00 00 00 1C   ...        idx: 60,000 x 28 x 28 bytes (LeCun et al. 1998)

The images and labels of idx are two files. Both may be named, "train-images-idx3-ubyte.gz +
train-labels-idx1-ubyte.gz", or the images alone: the labels are then in the file of the matching name.

ArrayStack reads arrays whose first axis counts records: those of an .npz file by name, or the one of an .npy file as
the column "image".

    images (50000, 32, 32, 3)   labels (50000,)        Record(images=(32, 32, 3), labels=7)   .where == "cifar.npz:1"
"""

import ast
import math
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.data.records import BadRecordPolicy, ReadableFile, Record
from regard.data.sources import JOINED_SOURCES, SOURCE_SUFFIXES, TextSource
from regard.files import content_cache
from regard.files.compression import readable_errors
from regard.files.size_limits import check_bytes

MAGIC = b"\x93NUMPY"
LONGEST = 10_000  # maximum header bytes, as in NumPy itself
AXES = 32
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
NPY_CHUNK = 1 << 20  # bytes read at once
NESTED = 64  # most brackets and signs in a header
TYPES = {
    "|b1": torch.bool, "|u1": torch.uint8, "|i1": torch.int8, "<i2": torch.int16, "<i4": torch.int32,
    "<i8": torch.int64, "<u2": torch.uint16, "<f2": torch.float16, "<f4": torch.float32, "<f8": torch.float64,
}  # fmt: skip


def npz_names(path: Path, name: str) -> list[str]:
    """The array names of an .npz file; the arrays are not read."""
    with open_npz(path, name) as archive:
        return [member.filename.removesuffix(".npy") for member in archive.infolist()]


def read_npz(path: Path, name: str) -> dict[str, Tensor]:
    """All arrays of an .npz file by name."""
    with open_npz(path, name) as archive:
        check_bytes(sum(member.file_size for member in archive.infolist()), name, path)
        return {
            member.filename.removesuffix(".npy"): read_npz_member(archive, member, name)
            for member in archive.infolist()
        }


@contextmanager
def open_npz(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    try:
        with readable_errors(name), zipfile.ZipFile(path) as archive:
            yield archive
    except (DataError, ConfigError):
        raise
    # truncated, or packed in an unknown way; also undecodable names, and offsets before the start of the file
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error) as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")
        raise DataError(f"{name}: not a whole .npz file ({reason:.200}); save it again") from None


def read_npz_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Tensor:
    where = f"{name}:{member.filename:.80}"
    if member.compress_type not in PLAIN:  # other compressions allocate the declared size before the first byte is read
        raise DataError(f"{where}: in a compression that NumPy does not have; save it with numpy.savez_compressed")
    with archive.open(member) as file:
        return read_npy(file, where, Path(str(archive.filename)), member.file_size)


def read_npy(file: IO[bytes], where: str, path: Path, size: int | None = None) -> Tensor:
    """The array of an .npy file, with exactly the bytes of its header; `size`: the bytes of the whole file, if
    known."""
    start = file.read(8)
    if not start.startswith(MAGIC) or len(start) < 8:
        raise DataError(f"{where}: not an array of NumPy's; save it with numpy.save or numpy.savez")
    form = "<H" if start[6] == 1 else "<I"
    packed = file.read(struct.calcsize(form))
    length = struct.unpack(form, packed)[0] if len(packed) == struct.calcsize(form) else LONGEST
    dtype, shape, turned = parse_npy_header(file.read(length) if length < LONGEST else b"", where)
    count = math.prod(shape) * dtype.itemsize
    there = count if size is None else size - len(start) - len(packed) - length
    check_bytes(count, where, path)
    raw = bytearray()
    while there == count and (some := file.read(min(NPY_CHUNK, count + 1 - len(raw)))):  # at most the real bytes
        raw += some
    if there != count or len(raw) != count:
        told = "more" if len(raw) > count else f"{len(raw) if there == count else there:,}"
        raise DataError(f"{where}: {told} bytes for an array of {list(shape)!s:.80} numbers; save it again")
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.view(shape[::-1]).permute(tuple(reversed(range(len(shape))))) if turned else flat.view(shape)


def parse_npy_header(raw: bytes, where: str) -> tuple[torch.dtype, tuple[int, ...], bool]:
    """The dtype, the shape, and whether it is in Fortran order."""
    try:
        if b"\\" in raw or sum(map(raw.count, (b"(", b"[", b"{", b"-", b"+", b"~"))) > NESTED:
            raise ValueError("no header has that")  # and Python's parser would warn, or run out of stack
        said: Any = ast.literal_eval(raw.decode("latin1").strip())
        kind, shape, turned = said["descr"], said["shape"], said["fortran_order"]
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise DataError(f"{where}: its header has no valid type and shape; save it again") from None
    if not isinstance(kind, str) or kind not in TYPES:
        raise DataError(f"{where}: unsupported dtype {kind!r:.40}; save integers or floats of at most 64 "
                        "bits")  # fmt: skip
    whole = isinstance(shape, tuple) and all(type(side) is int and 0 <= side < 1 << 48 for side in shape)
    if not whole or len(shape) > AXES or (math.prod(shape) == 0 and max(shape) > LONGEST):
        raise DataError(f"{where}: a shape of {shape!r:.40}; save it again")
    return TYPES[kind], shape, bool(turned)


IDX_CHUNK = 1 << 20  # bytes read at once
BYTES = 8  # idx dtype code of uint8


def open_idx(images: TextSource) -> "IdxFile":
    """An idx file of images, and the labels file of the matching name."""
    name = images.path.name.replace("images", "labels").replace("idx3", "idx1")
    labels = images.path.with_name(name)
    return IdxFile([images, *([TextSource(str(labels), labels)] if labels != images.path and labels.is_file() else [])])


@dataclass(frozen=True)
class IdxFile:
    """A record for each image: "image", and "label" if there are labels."""

    files: Sequence[ReadableFile]

    @property
    def name(self) -> str:
        return " + ".join(file.name for file in self.files)

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key(["idx", [file.digest for file in self.files]])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        images, *labels = sorted((read_idx(file) for file in self.files), key=lambda table: -table.dim())
        if len(labels) > 1 or images.dim() < 2 or any(table.dim() != 1 for table in labels):
            raise DataError(f"{self.name}: {' and '.join(str(tuple(t.shape)) for t in (images, *labels))} numbers; "
                            "expected images, or images and a label for each")  # fmt: skip
        if labels and len(labels[0]) != len(images):
            raise DataError(f"{self.name}: {len(images):,} images and {len(labels[0]):,} labels; name files that go "
                            "together")  # fmt: skip
        for number, image in enumerate(images):
            columns = {"image": image} | ({"label": int(labels[0][number])} if labels else {})
            yield Record(columns, f"{self.files[0].name}:{number + 1}")


def read_idx(file: ReadableFile) -> Tensor:
    """All numbers of an idx file, in its shape."""
    with readable_errors(file.name), file.open() as opened:
        head = opened.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or not 1 <= head[3] <= 4:
            raise DataError(f"{file.name}: not an idx file: it begins with {head.hex(' ') or 'nothing'}, expected "
                            "00 00, the type of its numbers, and how many axes they have")  # fmt: skip
        if head[2] != BYTES:
            raise DataError(f"{file.name}: its numbers are of type {head[2]:02x}, and only bytes (08) are images")
        sizes = opened.read(4 * head[3])
        shape = struct.unpack(f">{len(sizes) // 4}I", sizes[: len(sizes) // 4 * 4])
        count = math.prod(shape)
        if len(shape) < head[3]:
            raise DataError(f"{file.name}: {' x '.join(map(str, shape))} numbers by its header; fetch it again")
        check_bytes(count, f"{file.name} ({' x '.join(map(str, shape))})", getattr(file, "path", None))
        raw = bytearray()
        while some := opened.read(min(IDX_CHUNK, count + 1 - len(raw))):  # never more than the file contains
            raw += some
    if len(raw) != count or not count:
        there = "more" if len(raw) > count else f"{len(raw):,}"
        raise DataError(f"{file.name}: {count:,} bytes by its header, and there are {there}; fetch it again")
    return torch.frombuffer(raw, dtype=torch.uint8).view(shape)


SOURCE_SUFFIXES["idx3-ubyte"] = open_idx
JOINED_SOURCES["idx3-ubyte"] = IdxFile


@dataclass(frozen=True)
class ArrayStack:
    """A record for each row of all arrays; scalars become Python numbers."""

    file: TextSource

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key(["stack", self.file.digest])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        columns = self.columns()
        counts = {name: len(column) if column.dim() else 0 for name, column in columns.items()}
        empty = any(not column.numel() for column in columns.values())  # empty rows: a count of a billion would not end
        if empty or len(set(counts.values())) != 1 or not min(counts.values()):
            told = ", ".join(f"{name} {tuple(column.shape)}" for name, column in columns.items()) or "none"
            alone = any(not column.dim() for column in columns.values())
            what = "without numbers" if empty else "without rows" if alone else "of different lengths"
            raise DataError(f"{self.name}: arrays {what} ({told:.400}); each has a row for every record, so save those "
                            "alone")  # fmt: skip
        for number in range(next(iter(counts.values()))):
            row = {name: to_python(column[number]) for name, column in columns.items()}
            yield Record(row, f"{self.name}:{number + 1}")

    def columns(self) -> dict[str, Tensor]:
        if self.name.endswith(".npz"):
            return read_npz(self.file.path, self.name)
        with readable_errors(self.name), self.file.open() as file:
            return {"image": read_npy(file, self.name, self.file.path)}


def to_python(row: Tensor) -> Any:
    return row if row.dim() else row.item()


SOURCE_SUFFIXES.update({".npz": ArrayStack, ".npy": ArrayStack})
