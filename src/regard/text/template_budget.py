"""What a template may spend: steps and letters, anew for every rendering.

    steps      each turn of a loop, each call, each filter, each value that is looked at, and its length
    letters    each letter of a text that is made or said; what would be too long is refused before it is made

Each function here does what Jinja or Python would do, and is paid for.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2.runtime import Undefined
from jinja2.utils import Namespace
from markupsafe import Markup

STEPS, LETTERS, BITS = 500_000, 1 << 26, 4096
ITEM = 16  # letters: the room that a place in a list takes
READ = 250  # letters that are read in the time of a step
QUOTED = 12  # letters that one becomes at most where a list or a table is said: \ud83d\ude00
ESCAPED = 6  # letters that one becomes at most in HTML
LONGEST_NUMBER = 1000  # letters
WIDE = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*(\d{3}|\*)")  # a width of a hundred and more that a format asks for
REPR = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*[ra]")  # a place that is filled with what Python would type


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


def weight(value: Any, quoted: int = 1) -> int:
    """How many letters a value has when it is said, every part of it paid for: what stands there twice counts twice.

    A letter within a list or a table counts as `quoted`, with what stands between the parts.
    """
    letters, rest = 0, [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            pay(1 + len(each) // 1000)
            letters += len(each) * (1 if each is value else quoted)
        elif isinstance(each, Mapping):
            pay(1 + 2 * len(each))
            letters += 4 * len(each)
            rest += [*each.keys(), *each.values()]
        elif isinstance(each, range):
            pay(1 + len(each) // 8)  # to look for something in it takes as long as it is
            letters += ITEM * len(each)
        elif isinstance(each, Collection):
            pay(1 + len(each))
            letters += 4 * len(each)
            rest += each
        elif isinstance(each, Namespace):
            raise Spent("it says or keeps a namespace, which may hold itself")
        else:
            pay()
            letters += each.bit_length() // 3 + 1 if isinstance(each, int) else 24
    return letters


def weighed(value: Any) -> Any:
    weight(value)
    return value


def strung(parts: list[Any]) -> str:
    """Texts one after the other."""
    grows(sum(weight(part, QUOTED) for part in parts))
    return made("".join(map(str, parts)))  # type: ignore[no-any-return]


def sliced(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """A part of a text or a list, which is another one."""
    if isinstance(value, str | list | tuple):
        # a slice of a text is read and copied, letter by letter where it has a step
        many = len(range(*slice(start, stop, step).indices(len(value))))
        pay(1 + (many // READ if step in (None, 1) else many // 16))
        grows(many * (1 if isinstance(value, str) else ITEM))
        return made(value[start:stop:step])
    return value[start:stop:step]


def turns(values: Iterable[Any], letters: int) -> Iterator[Any]:
    """What a loop goes over; a turn costs a step, and what stands in the loop as it is."""
    for each in values:
        pay(1, letters)
        yield each


def made(value: Any) -> Any:
    """What a call or a filter answers; what comes one by one is paid for one by one."""
    if isinstance(value, str):
        pay(1 + len(value) // 1000, len(value))
    elif isinstance(value, list | tuple | Mapping):
        pay(1 + len(value) // 8, ITEM * len(value))
    elif isinstance(value, int) and value.bit_length() > BITS:
        raise Spent(f"it makes a number of more than {BITS:,} bits")
    elif isinstance(value, Iterator):
        return turns(value, 0)
    else:
        pay()
    return value


# ---------------------------------------------------------------- what grows


def grows(count: int) -> None:
    """Refuse what would grow so large, before it does."""
    if count > PURSE.get().letters:
        raise Spent(f"it makes more than {LETTERS:,} letters")


def operands(left: Any, right: Any) -> None:
    """Pay for what an operator reads, and refuse what it does not know: sets grow out of sight."""
    for each in (left, right):
        if isinstance(each, str):
            pay(len(each) // 1000)
        elif isinstance(each, list | tuple):
            pay(len(each) // 8)
        elif each is right and isinstance(left, str) and isinstance(each, Mapping):
            pay()  # a format with names
        elif not isinstance(each, int | float | Undefined | None):
            raise Spent(f"it reckons with a {type(each).__name__}")
    if isinstance(left, Markup) or isinstance(right, Markup):
        grows(ESCAPED * (weight(left) + weight(right)))


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
        quoted = QUOTED if REPR.search(left) else 1
        grows(len(left) + left.count("%") * (99 + quoted * weight(right, QUOTED)))  # each may say all of it
        if WIDE.search(left):
            raise Spent(f"it writes into {left[:40]!r}, as wide as that says")
    return left % right


def parted(text: str, *how: Any) -> None:
    grows(ITEM * (text.count(how[0]) + 1 if how and isinstance(how[0], str) and how[0] else len(text)))


def from_behind(text: str, *how: Any) -> None:
    """Python looks for a text from the end as if each letter could be its last: all letters times all letters."""
    pay(len(text) * (len(how[0]) if how and isinstance(how[0], str) else 1) // (16 * READ))


def parted_from_behind(text: str, *how: Any) -> None:
    parted(text, *how)
    from_behind(text, *how)


def stripped(text: Any, *how: Any) -> None:
    """Each letter of one text is looked for among all of the other."""
    if isinstance(text, str) and how and isinstance(how[0], str):
        pay(len(text) * len(how[0]) // READ)


def replaced(text: Any, old: Any = "", new: Any = "", *most: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        pay(len(text) // READ)
        grows((len(text) + text.count(old) * len(new)) * (ESCAPED if isinstance(text, Markup) else 1))


def joined(between: Any, parts: Any = (), *others: Any) -> None:
    if isinstance(between, str) and isinstance(parts, Collection):
        escaped = ESCAPED if isinstance(between, Markup) else 1
        grows((len(between) * len(parts) + weight(parts, QUOTED)) * escaped)


GROWING: dict[str, Callable[..., None]] = {
    "replace": replaced, "join": joined, "split": parted, "rsplit": parted_from_behind,
    "splitlines": lambda text, *_: parted(text), "rfind": from_behind, "rindex": from_behind,
    "rpartition": from_behind, "strip": stripped, "lstrip": stripped, "rstrip": stripped,
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
