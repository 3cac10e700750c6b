"""The files of MNIST: a short header that names the type and the sizes, then the numbers, the last axis first.

    00 00 08 03   00 00 EA 60   00 00 00 1C   00 00 00 1C   ...        60,000 x 28 x 28 bytes

Images and labels are two files. Both may be named, "train-images-idx3-ubyte.gz + train-labels-idx1-ubyte.gz", or the
images alone: then the labels are in the file whose name says so. They may be packed, as text may (LeCun et al. 1998).
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.config import DataError
from regard.config.limits import check_bytes
from regard.data import store
from regard.data.packing import readable
from regard.data.records import File, Record, Tally
from regard.data.sources import JOINED, SUFFIXES, Source

PIECE = 1 << 20  # bytes that are read at once
BYTES = 8  # the type of all files of images: one byte a number


def with_labels(images: Source) -> "Idx":
    """A file of images, and the labels that go with it by their name."""
    name = images.path.name.replace("images", "labels").replace("idx3", "idx1")
    labels = images.path.with_name(name)
    return Idx([images, *([Source(str(labels), labels)] if labels != images.path and labels.is_file() else [])])


@dataclass(frozen=True)
class Idx:
    """A record for each image: "image", and "label" if there are labels."""

    files: Sequence[File]

    @property
    def name(self) -> str:
        return " + ".join(file.name for file in self.files)

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return store.key(["idx", [file.digest for file in self.files]])

    def records(self, tally: Tally) -> Iterator[Record]:
        images, *labels = sorted((numbers(file) for file in self.files), key=lambda table: -table.dim())
        if len(labels) > 1 or images.dim() < 2 or any(table.dim() != 1 for table in labels):
            raise DataError(f"{self.name}: {' and '.join(str(tuple(t.shape)) for t in (images, *labels))} numbers; "
                            "expected images, or images and a label for each")  # fmt: skip
        if labels and len(labels[0]) != len(images):
            raise DataError(f"{self.name}: {len(images):,} images and {len(labels[0]):,} labels; name files that go "
                            "together")  # fmt: skip
        for number, image in enumerate(images):
            columns = {"image": image} | ({"label": int(labels[0][number])} if labels else {})
            yield Record(columns, f"{self.files[0].name}:{number + 1}")


def numbers(file: File) -> Tensor:
    """All numbers of a file, in its shape."""
    with readable(file.name), file.open() as opened:
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
        while some := opened.read(min(PIECE, count + 1 - len(raw))):  # no more than is really there
            raw += some
    if len(raw) != count or not count:
        there = "more" if len(raw) > count else f"{len(raw):,}"
        raise DataError(f"{file.name}: {count:,} bytes by its header, and there are {there}; fetch it again")
    return torch.frombuffer(raw, dtype=torch.uint8).view(shape)


SUFFIXES["idx3-ubyte"] = with_labels
JOINED["idx3-ubyte"] = Idx
