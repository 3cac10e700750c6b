"""Emoji: 1,911 pictures of 32 x 32 pixels with captions in three languages, which come with the package.

    emoji, emoji:validation, emoji:test      1,523, 208 and 180 records, parted by a hash

    {"image": uint8 (3, 32, 32), "text": "grinning face", "tags": "cheerful, happy, ...", "label": "Smileys & Emotion",
     "both": "grinning face, cheerful, happy, ...", "group": "face-smiling", "text_fr": "visage rieur",
     "text_de": "grinsendes Gesicht", "code": "1F600"}

The pictures are Twemoji (CC BY 4.0), the captions Unicode's (see NOTICE). No two captions are the same.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.config import DataError
from regard.config.names import did_you_mean
from regard.data import store
from regard.data.packing import readable, unpacking
from regard.data.records import Record, Tally
from regard.data.tables import HERE

EMOJI = "emoji"
PARTS = {"train": "train", "validation": "val", "test": "test"}  # and what the file calls them
COLUMNS = {"label_en": "text", "tags_en": "tags", "category": "label", "subcategory": "group", "label_fr": "text_fr",
           "label_de": "text_de", "codepoints": "code"}  # fmt: skip
PICTURES, CAPTIONS = HERE / "emoji.rgb.xz", HERE / "emoji.tsv.xz"
SIDE = 32


@dataclass(frozen=True)
class Emoji:
    """The records of one part."""

    name: str
    part: str

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        packed = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (PICTURES, CAPTIONS)]
        return store.key(["emoji", *packed, self.part])

    def records(self, tally: Tally) -> Iterator[Record]:
        images, (header, *rows) = pictures(), captions()
        for number, row in enumerate(rows):
            said = dict(zip(header, row, strict=True))
            if said["split"] == PARTS[self.part]:
                columns = {ours: said[theirs] for theirs, ours in COLUMNS.items()}
                columns["both"] = f"{columns['text']}, {columns['tags']}"
                yield Record({"image": images[number], **columns}, f"{self.name}:{number + 1}")


def emoji(name: str) -> Emoji:
    """The part that a name says, such as "emoji:test"; without one, what is to train on."""
    part = name.partition(":")[2] or "train"
    if part not in PARTS:
        raise DataError(f"{name}: no part {part!r}{did_you_mean(part, PARTS)} there are {', '.join(PARTS)}")
    return Emoji(name, part)


@lru_cache(maxsize=1)
def pictures() -> Tensor:  # uint8 (1911, 3, 32, 32)
    """The file holds them one after the other, row by row, red, green and blue of each pixel together."""
    with readable(str(PICTURES)), unpacking(PICTURES) as file:
        table = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    return table.view(-1, SIDE, SIDE, 3).movedim(-1, 1).contiguous()


def captions() -> list[list[str]]:
    with readable(str(CAPTIONS)), unpacking(CAPTIONS) as file:
        return [line.split("\t") for line in file.read().decode().splitlines()]
