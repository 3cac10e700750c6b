"""Emoji: 1,911 pictures of 32 x 32 pixels with captions in three languages, which come with the package.

    emoji, emoji:validation, emoji:test      1,523, 208 and 180 records, parted by a hash

    {"image": uint8 (3, 32, 32), "text": "grinning face", "tags": "cheerful, happy, ...", "label": "Smileys & Emotion",
     "both": "grinning face, cheerful, happy, ...", "group": "face-smiling", "thing": "face",
     "text_fr": "visage rieur", "text_de": "grinsendes Gesicht", "code": "1F600"}

Unicode sorts them into 10 categories (label) and 100 groups, whose names are not words that anybody would say; `thing`
is a plain word for one or several groups.

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
THINGS = {  # a word, and the groups that it stands for
    "face": "face-affection face-concerned face-costume face-glasses face-hand face-hat face-negative "
            "face-neutral-skeptical face-sleepy face-smiling face-tongue face-unwell",
    "heart": "heart", "comic": "emotion", "skin": "skin-tone",
    "hand": "hand-fingers-closed hand-fingers-open hand-fingers-partial hand-prop hand-single-finger hands",
    "body": "body-parts", "family": "family person-symbol",
    "person": "person person-activity person-fantasy person-gesture person-resting person-role person-sport",
    "animal": "animal-mammal animal-reptile animal-amphibian cat-face monkey-face", "bird": "animal-bird",
    "insect": "animal-bug", "fish": "animal-marine", "flower": "plant-flower", "plant": "plant-other",
    "fruit": "food-fruit", "vegetable": "food-vegetable", "dessert": "food-sweet", "drink": "drink",
    "food": "food-asian food-prepared dishware", "building": "place-building place-religious hotel",
    "mountain": "place-geographic", "globe": "place-map", "city": "place-other", "vehicle": "transport-ground",
    "airplane": "transport-air", "boat": "transport-water", "clock": "time", "weather": "sky_&_weather",
    "celebration": "event", "medal": "award-medal", "ball": "sport", "game": "game", "art": "arts_&_crafts",
    "clothing": "clothing", "music": "music musical-instrument", "speaker": "sound", "phone": "phone",
    "computer": "computer", "camera": "light_&_video", "book": "book-paper", "money": "money currency", "mail": "mail",
    "pen": "writing", "office": "office", "lock": "lock", "tool": "tool", "science": "science", "medicine": "medical",
    "home": "household other-object", "sign": "transport-sign other-symbol punctuation math gender",
    "forbidden": "warning", "arrow": "arrow", "religion": "religion", "zodiac": "zodiac",
    "button": "av-symbol alphanum", "geometric": "geometric", "keycap": "keycap",
    "flag": "country-flag flag subdivision-flag",
}  # fmt: skip
THING = {group.replace("_", " "): word for word, groups in THINGS.items() for group in groups.split()}
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
                columns["thing"] = THING[columns["group"]]
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
