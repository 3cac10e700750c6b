"""Built-in datasets: generated toy tasks, and the packaged emoji images with captions.

    toy:copy(5)      bdaac  bdaac       toy:sort(5)        bdaac   aabcd
    toy:reverse(5)   bdaac  caadb       toy:addition(2)    38+5    43
    toy:first(5)     bdaac  b           always of that length: tests how long a model remembers the first letter
    toy:regress(3)   2=V;7=L;4  R       linear regression: heights are letters, A low and w high
    toy:repeat(4)    kR8        kR8kR   two to four letters of 64, then the same again, up to eight in all

The number is the maximum length of a word or number, or the number of points. A second number gives the number of
records, a third another seed: "toy:sort(20, 100000, 7)". Record i is a pure function of the name and i. The validation
part is chosen by a hash of the question, so that no question is in both parts.

    emoji, emoji:validation, emoji:test      1,523, 208 and 180 records of 32 x 32 pixels, split by a hash

    {"image": uint8 (3, 32, 32), "text": "grinning face", "tags": "cheerful, happy, ...", "label": "Smileys & Emotion",
     "both": "grinning face, cheerful, happy, ...", "group": "face-smiling", "thing": "face",
     "text_fr": "visage rieur", "text_de": "grinsendes Gesicht", "code": "1F600"}

Unicode sorts them into 10 categories (label) and 100 groups, whose names are not plain words; `thing` is a plain word
for one or several groups. The images are Twemoji (CC BY 4.0), the captions Unicode's (see NOTICE), no two the same.
"""

import hashlib
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError, did_you_mean
from regard.data.readers.tabular import PACKAGED_DIR
from regard.data.records import BadRecordPolicy, Record
from regard.files import content_cache
from regard.files.compression import open_decompressed, readable_errors

TOY_PREFIX = "toy:"
TOY_LETTERS = "abcdefghijklmnop"  # sixteen letters, so that bytes map to letters with equal probability
COUNT = 50_000
TOY_HEIGHTS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvw"  # of points, lowest first; every one can occur
TOY_WIDTH, TOY_MAX_SLOPE, TOY_MAX_HEIGHT = (
    9,
    4,
    8,
)  # x positions; slope range; range of the mean height


REPEAT_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


class SeededDice:
    """Deterministic random numbers from a hashed text: the same on every machine and in every version."""

    def __init__(self, text: str) -> None:
        self.text, self.rolls = text, 0

    def bytes(self, count: int) -> bytes:
        self.rolls += 1
        return hashlib.shake_256(f"{self.text} {self.rolls}".encode()).digest(count)

    def roll(self, sides: int) -> int:
        return int.from_bytes(self.bytes(32)) % sides


def random_word(dice: SeededDice, size: int) -> str:
    return "".join(TOY_LETTERS[byte % 16] for byte in dice.bytes(1 + dice.roll(size)))


def random_number(dice: SeededDice, digits: int) -> int:
    """A number with a random count of digits first, so that small numbers are as frequent as large ones."""
    count = 1 + dice.roll(digits)
    return dice.roll(10) if count == 1 else 10 ** (count - 1) + dice.roll(9 * 10 ** (count - 1))


def make_addition(dice: SeededDice, digits: int) -> tuple[str, str]:
    one, other = random_number(dice, digits), random_number(dice, digits)
    return f"{one}+{other}", str(one + other)


def make_line_regression(dice: SeededDice, points: int) -> tuple[str, str]:
    """Points of a line, each x position once before any repeats; the last point is the question."""
    slope, level = dice.roll(2 * TOY_MAX_SLOPE + 1) - TOY_MAX_SLOPE, dice.roll(2 * TOY_MAX_HEIGHT + 1) - TOY_MAX_HEIGHT
    places: list[int] = []
    while len(places) < points:
        left = list(range(TOY_WIDTH))
        places += [left.pop(dice.roll(len(left))) for _ in range(TOY_WIDTH)]
    told = [f"{x}={height_letter(slope * (x - TOY_WIDTH // 2) + level)}" for x in places[:points]]
    question, _, answer = ";".join(told).rpartition("=")
    return question, answer


def height_letter(value: int) -> str:
    return TOY_HEIGHTS[len(TOY_HEIGHTS) // 2 + value]


def make_first(dice: SeededDice, size: int) -> tuple[str, str]:
    word = "".join(TOY_LETTERS[byte % 16] for byte in dice.bytes(size))
    return word, word[0]


def make_repeat(dice: SeededDice, size: int) -> tuple[str, str]:
    """A random word, repeated: only the context predicts the next letter.

    No letter occurs twice in the word, if there are enough. Its length varies, so the distance to the previous copy
    varies.
    """
    count = size - dice.roll(size // 2 + 1)
    word, left, numbers = "", "", dice.bytes(8 * count)
    for i in range(0, len(numbers), 8):
        left = left or REPEAT_LETTERS
        at = int.from_bytes(numbers[i : i + 8]) % len(left)
        word, left = word + left[at], left[:at] + left[at + 1 :]
    return word, (word * (2 * size // count + 1))[count : 2 * size]


def make_word_task(answer: Callable[[str], str]) -> Callable[[SeededDice, int], tuple[str, str]]:
    def make_question(dice: SeededDice, size: int) -> tuple[str, str]:
        question = random_word(dice, size)
        return question, answer(question)

    return make_question


TOY_TASKS = {
    "copy": make_word_task(lambda word: word), "reverse": make_word_task(lambda word: word[::-1]),
    "sort": make_word_task(lambda word: "".join(sorted(word))), "addition": make_addition,
    "first": make_first,
    "regress": make_line_regression, "repeat": make_repeat,
}  # fmt: skip
JOINTS = {"repeat": ""}  # separator of source and target in `text`, if not "="


@dataclass(frozen=True)
class ToyDataset:
    """Toy records with columns source and target, and text: both joined by "=", except for "repeat"."""

    name: str
    task: str
    size: int
    count: int = COUNT
    seed: int = 0

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @property
    def digest(self) -> str:
        return content_cache.content_key(["toy", 1, self.task, self.size, self.count, self.seed])

    def record(self, index: int) -> Record:
        source, target = TOY_TASKS[self.task](SeededDice(f"{self.task} {self.size} {self.seed} {index}"), self.size)
        text = f"{source}{JOINTS.get(self.task, '=')}{target}"
        return Record({"source": source, "target": target, "text": text}, f"{self.name}:{index + 1}")

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        return map(self.record, range(self.count))


def open_toy(name: str) -> ToyDataset:
    """Open a toy task by its name, such as "toy:reverse(20)"."""
    # limits digits: Python refuses to convert very long numbers
    found = re.fullmatch(r"toy:(\w+)\(([0-9]{1,18}(?:\s*,\s*[0-9]{1,18}){0,2})\)", name)
    name = name if len(name) < 120 else f"{name[:100]}…"
    task = re.split(r"[:(]", name)[1]
    if task not in TOY_TASKS:
        raise DataError(f"{name}: no toy task {task!r}{did_you_mean(task, TOY_TASKS)} there are {', '.join(TOY_TASKS)}")
    numbers = [int(each) for each in found[2].split(",")] if found else []
    if not numbers or min(numbers[:2]) < 1 or numbers[0] > 1000:
        raise DataError(f"{name}: expected sizes of one or more, such as toy:{task}(20), or toy:{task}(20, {COUNT}, 7) "
                        "for so many records from another seed")  # fmt: skip
    return ToyDataset(name, task, *numbers)


EMOJI = "emoji"
PARTS = {"train": "train", "validation": "val", "test": "test"}  # our name of a part -> that in the file
COLUMNS = {"label_en": "text", "tags_en": "tags", "category": "label", "subcategory": "group", "label_fr": "text_fr",
           "label_de": "text_de", "codepoints": "code"}  # fmt: skip
EMOJI_GROUPS = {  # plain word -> Unicode groups
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
EMOJI_GROUP_OF = {group.replace("_", " "): word for word, groups in EMOJI_GROUPS.items() for group in groups.split()}
PICTURES, CAPTIONS = PACKAGED_DIR / "emoji.rgb.xz", PACKAGED_DIR / "emoji.tsv.xz"
SIDE = 32


@dataclass(frozen=True)
class EmojiDataset:
    """The emoji records of one part."""

    name: str
    part: str

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        packed = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (PICTURES, CAPTIONS)]
        return content_cache.content_key(["emoji", *packed, self.part])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        images, (header, *rows) = emoji_images(), emoji_captions()
        for number, row in enumerate(rows):
            said = dict(zip(header, row, strict=True))
            if said["split"] == PARTS[self.part]:
                columns = {ours: said[theirs] for theirs, ours in COLUMNS.items()}
                columns["both"] = f"{columns['text']}, {columns['tags']}"
                columns["thing"] = EMOJI_GROUP_OF[columns["group"]]
                yield Record({"image": images[number], **columns}, f"{self.name}:{number + 1}")


def open_emoji(name: str) -> EmojiDataset:
    """Open a part by its name, such as "emoji:test"; the training part by default."""
    part = name.partition(":")[2] or "train"
    if part not in PARTS:
        raise DataError(f"{name}: no part {part!r}{did_you_mean(part, PARTS)} there are {', '.join(PARTS)}")
    return EmojiDataset(name, part)


@lru_cache(maxsize=1)
def emoji_images() -> Tensor:  # uint8 (1911, 3, 32, 32)
    """All images; the file stores them row by row with interleaved red, green and blue."""
    with readable_errors(str(PICTURES)), open_decompressed(PICTURES) as file:
        table = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    return table.view(-1, SIDE, SIDE, 3).movedim(-1, 1).contiguous()


def emoji_captions() -> list[list[str]]:
    with readable_errors(str(CAPTIONS)), open_decompressed(CAPTIONS) as file:
        return [line.split("\t") for line in file.read().decode().splitlines()]
