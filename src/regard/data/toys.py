"""Toy tasks: questions with one right answer, made on the fly.

    toy:copy(5)      bdaac  bdaac       toy:sort(5)        bdaac   aabcd
    toy:reverse(5)   bdaac  caadb       toy:addition(2)    38+5    43
    toy:first(5)     bdaac  b           always of that length: who answers has kept the first letter in mind
    toy:regress(3)   2=V;7=L;4  R       a line through the points before: heights are letters, A low and w high

The number is how long a word is at most, how many digits a number has, or how many points a line has. A second number
says how many records there are, a third another seed: "toy:sort(20, 100000, 7)". Record i is a pure function of the
name and i. A part kept for validation is chosen by what the question is, so that no question to validate on is one to
train on.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from regard.config import DataError
from regard.config.names import did_you_mean
from regard.data import store
from regard.data.records import Record, Tally

TOY = "toy:"
LETTERS = "abcdefghijklmnop"  # sixteen: every byte gives a letter, and all are equally likely
COUNT = 50_000
HEIGHTS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvw"  # of a point, from the lowest; all are reached
ACROSS, STEEPEST, HIGHEST = 9, 4, 8  # places of a point; the slope of a line; how far its middle is from theirs


class Dice:
    """Bytes and whole numbers drawn from a text: the same on every machine, in every version."""

    def __init__(self, text: str) -> None:
        self.text, self.rolls = text, 0

    def bytes(self, count: int) -> bytes:
        self.rolls += 1
        return hashlib.shake_256(f"{self.text} {self.rolls}".encode()).digest(count)

    def roll(self, sides: int) -> int:
        return int.from_bytes(self.bytes(32)) % sides


def word(dice: Dice, size: int) -> str:
    return "".join(LETTERS[byte % 16] for byte in dice.bytes(1 + dice.roll(size)))


def number(dice: Dice, digits: int) -> int:
    """First how many digits, then which: small numbers are as frequent as large ones."""
    count = 1 + dice.roll(digits)
    return dice.roll(10) if count == 1 else 10 ** (count - 1) + dice.roll(9 * 10 ** (count - 1))


def addition(dice: Dice, digits: int) -> tuple[str, str]:
    one, other = number(dice, digits), number(dice, digits)
    return f"{one}+{other}", str(one + other)


def regress(dice: Dice, points: int) -> tuple[str, str]:
    """Points of a line, each place once before any comes again; the last one is asked for."""
    slope, level = dice.roll(2 * STEEPEST + 1) - STEEPEST, dice.roll(2 * HIGHEST + 1) - HIGHEST
    places: list[int] = []
    while len(places) < points:
        left = list(range(ACROSS))
        places += [left.pop(dice.roll(len(left))) for _ in range(ACROSS)]
    told = [f"{x}={height(slope * (x - ACROSS // 2) + level)}" for x in places[:points]]
    question, _, answer = ";".join(told).rpartition("=")
    return question, answer


def height(value: int) -> str:
    return HEIGHTS[len(HEIGHTS) // 2 + value]


def first(dice: Dice, size: int) -> tuple[str, str]:
    word = "".join(LETTERS[byte % 16] for byte in dice.bytes(size))
    return word, word[0]


def about_words(answer: Callable[[str], str]) -> Callable[[Dice, int], tuple[str, str]]:
    def asked(dice: Dice, size: int) -> tuple[str, str]:
        question = word(dice, size)
        return question, answer(question)

    return asked


TOYS = {
    "copy": about_words(lambda word: word), "reverse": about_words(lambda word: word[::-1]),
    "sort": about_words(lambda word: "".join(sorted(word))), "addition": addition,
    "first": first,
    "regress": regress,
}  # fmt: skip


@dataclass(frozen=True)
class Toy:
    """Records with columns source and target, and text: both with an = between."""

    name: str
    task: str
    size: int
    count: int = COUNT
    seed: int = 0

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @property
    def digest(self) -> str:
        return store.key(["toy", 1, self.task, self.size, self.count, self.seed])

    def record(self, index: int) -> Record:
        source, target = TOYS[self.task](Dice(f"{self.task} {self.size} {self.seed} {index}"), self.size)
        return Record({"source": source, "target": target, "text": f"{source}={target}"}, f"{self.name}:{index + 1}")

    def records(self, tally: Tally) -> Iterator[Record]:
        return map(self.record, range(self.count))


def toy(name: str) -> Toy:
    """The task that a name says, such as "toy:reverse(20)"."""
    # digits: more than Python would make a number of are none of a toy
    found = re.fullmatch(r"toy:(\w+)\(([0-9]{1,18}(?:\s*,\s*[0-9]{1,18}){0,2})\)", name)
    name = name if len(name) < 120 else f"{name[:100]}…"
    task = re.split(r"[:(]", name)[1]
    if task not in TOYS:
        raise DataError(f"{name}: no toy task {task!r}{did_you_mean(task, TOYS)} there are {', '.join(TOYS)}")
    numbers = [int(each) for each in found[2].split(",")] if found else []
    if not numbers or min(numbers[:2]) < 1 or numbers[0] > 1000:
        raise DataError(f"{name}: expected sizes of one or more, such as toy:{task}(20), or toy:{task}(20, {COUNT}, 7) "
                        "for so many records from another seed")  # fmt: skip
    return Toy(name, task, *numbers)
