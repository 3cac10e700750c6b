"""Small pictures in a page: PNG written by hand (RFC 2083), as a data URI; and what is no picture in a few words."""

import base64
import struct
import zlib

import torch
from torch import Tensor

COLOURS = {1: 0, 3: 2, 4: 6}  # PNG's number for grey, for red, green and blue, and for these with how solid they are
MOST = 128  # pixels of a side: larger ones are shown by every second, third, ... of theirs


def png(image: Tensor) -> bytes:
    """A uint8 image (channels, rows, columns) as a file: each row after a zero, packed."""
    channels, rows, columns = image.shape
    raw = image.movedim(0, -1).reshape(rows, columns * channels).contiguous()
    lines = torch.cat([torch.zeros(rows, 1, dtype=torch.uint8), raw], 1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, COLOURS[channels], 0, 0, 0)
    packed = zlib.compress(bytes(lines.flatten().tolist()), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def uri(image: Tensor) -> str:
    every = -(-max(image.shape[1:]) // MOST)
    return "data:image/png;base64," + base64.b64encode(png(image[:, ::every, ::every])).decode()


def picture(example: dict[str, Tensor]) -> str | None:
    """The image of an example, ready for a page; None where it holds none."""
    image = example.get("image")
    if image is None or image.dim() != 3 or image.dtype != torch.uint8 or image.shape[0] not in COLOURS:
        return None
    return uri(image)


def named(example: dict[str, Tensor], row: int) -> str:
    """What is no picture: its number among the rows, what it is and how large."""
    name, first = next(iter(example.items()))
    return f"row {row:,}: {name} of {' x '.join(map(str, first.shape)) or 1} numbers"
