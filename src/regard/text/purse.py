"""What a template may spend: steps and letters, anew for every rendering.

    steps      each turn of a loop, each call, each filter, each value that is looked at
    letters    each letter of a text that is made or said; what would be too long is refused before it is made

Each function here does what Jinja or Python would do, and is paid for.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2.utils import Namespace

STEPS, LETTERS, BITS = 500_000, 1 << 26, 4096
ITEM = 16  # letters: the room that a place in a list takes
WIDE = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*(\d{3}|\*)")  # a width of a hundred and more that a format asks for


class Spent(jinja2.TemplateError):
    """The purse is empty."""


class Purse:
    def __init__(self) -> None:
        self.steps, self.letters = STEPS, LETTERS

    def pay(self, steps: int = 1, letters: int = 0) -> None:
        self.steps -= steps
        self.letters -= letters
        if self.steps < 0:
            raise Spent(f"it takes more than {STEPS:,} steps")
        if self.letters < 0:
            raise Spent(f"it makes more than {LETTERS:,} letters")


PURSE: ContextVar[Purse] = ContextVar("purse")


@contextmanager
def purse() -> Iterator[Purse]:
    """Inside, a template may spend as much as one rendering may."""
    fresh = Purse()
    before = PURSE.set(fresh)
    try:
        yield fresh
    finally:
        PURSE.reset(before)


def pay(steps: int = 1, letters: int = 0) -> None:
    PURSE.get().pay(steps, letters)


def weight(value: Any) -> int:
    """How many letters a value has when it is said, every part of it paid for: what stands there twice counts twice."""
    letters, rest = 0, [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            pay(1 + len(each) // 1000)
            letters += len(each)
        elif isinstance(each, Mapping):
            pay(1 + 2 * len(each))
            rest += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            pay(1 + len(each))
            rest += each
        elif isinstance(each, Namespace):
            raise Spent("it says or keeps a namespace, which may hold itself")
        else:
            pay()
    return letters


def weighed(value: Any) -> Any:
    weight(value)
    return value


def strung(parts: list[Any]) -> str:
    """Texts one after the other."""
    grows(weight(parts))
    return made("".join(map(str, parts)))  # type: ignore[no-any-return]


def turns(values: Iterable[Any], letters: int) -> Iterator[Any]:
    """What a loop goes over; a turn costs a step, and what stands in the loop as it is."""
    for each in values:
        pay(1, letters)
        yield each


def made(value: Any) -> Any:
    """What a call or a filter answers."""
    pay(1, len(value) if isinstance(value, str | list | tuple) else 0)
    return value


# ---------------------------------------------------------------- what grows


def grows(count: int) -> None:
    """Refuse what would grow so large, before it does."""
    if count > PURSE.get().letters:
        raise Spent(f"it makes more than {LETTERS:,} letters")


def times(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            grows((1 if isinstance(one, str) else ITEM) * len(one) * other)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > BITS:
        raise Spent(f"it makes a number of more than {BITS:,} bits")
    return left * right


def power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > BITS:
        raise Spent(f"it makes a number of more than {BITS:,} bits")
    return left**right


def remainder(left: Any, right: Any) -> Any:
    """Of numbers; a text is a format that is filled in."""
    if isinstance(left, str):
        grows(99 * len(left) + weight(right))
        if WIDE.search(left):
            raise Spent(f"it writes into {left[:40]!r}, as wide as that says")
    return left % right


def parted(text: str, *how: Any) -> None:
    grows(ITEM * len(text))


def replaced(text: Any, old: Any, new: Any, *most: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        grows(len(text) + text.count(old) * len(new))


def joined(between: Any, parts: Any) -> None:
    if isinstance(between, str) and isinstance(parts, list | tuple | dict | str):
        grows(len(between) * len(parts))


GROWING: dict[str, Callable[..., None]] = {
    "replace": replaced, "join": joined, "split": parted, "rsplit": parted, "splitlines": parted,
}  # fmt: skip


def few(*given: Any) -> range:
    """Python's range, if it is one of few."""
    found = range(*given)
    if len(found) > STEPS:
        raise Spent(f"range{given} has {len(found):,} numbers")
    return found


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "/": operator.truediv, "//": operator.floordiv,
    "*": times, "**": power, "%": remainder,
}  # fmt: skip
