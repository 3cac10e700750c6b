"""The render budget: the steps and letters that one rendering of a chat template may spend.

    steps      each turn of a loop, each call, each filter, each value that is looked at, and its length
    letters    each letter of a text that is made or written; what would be too long is refused before it is made

Each function here does what Jinja or Python would do, and charges the budget for it.
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

MAX_STEPS, MAX_LETTERS, MAX_BITS = 500_000, 1 << 26, 4096
ITEM = 16  # letters: the room that a place in a list takes
READ = 250  # letters that are read in the time of a step
QUOTED = 12  # letters that one becomes at most where a list or a table is said: \ud83d\ude00
ESCAPED = 6  # letters that one becomes at most in HTML
CASED = 3  # letters that one becomes at most in another case: ΐ in capitals has an accent and a diaeresis behind it
LONGEST_NUMBER = 1000  # letters
WIDE_FORMAT = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*(\d{3}|\*)")  # a width of a hundred and more that a format asks for
REPR = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*[ra]")  # a place that is filled with what Python would type


class BudgetExceeded(jinja2.TemplateError):
    """The render budget is spent."""


class RenderBudget:
    def __init__(self) -> None:
        self.steps, self.letters = MAX_STEPS, MAX_LETTERS

    def pay(self, steps: int = 1, letters: int = 0) -> None:
        self.steps -= steps
        self.letters -= letters
        if self.steps < 0:
            raise BudgetExceeded(f"it takes more than {MAX_STEPS:,} steps")
        if self.letters < 0:
            raise BudgetExceeded(f"it makes more than {MAX_LETTERS:,} letters")


CURRENT_BUDGET: ContextVar[RenderBudget] = ContextVar("render_budget")


@contextmanager
def render_budget() -> Iterator[RenderBudget]:
    """Inside, a template may spend as much as one rendering may."""
    fresh = RenderBudget()
    before = CURRENT_BUDGET.set(fresh)
    try:
        yield fresh
    finally:
        CURRENT_BUDGET.reset(before)


def charge(steps: int = 1, letters: int = 0) -> None:
    CURRENT_BUDGET.get().pay(steps, letters)


def text_size(value: Any, quoted: int = 1) -> int:
    """How many letters a value has when it is said, every part of it paid for: what stands there twice counts twice.

    A letter within a list or a table counts as `quoted`, with what stands between the parts.
    """
    letters, rest = 0, [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            charge(1 + len(each) // 1000)
            letters += len(each) * (1 if each is value else quoted)
        elif isinstance(each, Mapping):
            charge(1 + 2 * len(each))
            letters += 4 * len(each)
            rest += [*each.keys(), *each.values()]
        elif isinstance(each, range):
            charge(1 + len(each) // 8)  # to look for something in it takes as long as it is
            letters += ITEM * len(each)
        elif isinstance(each, Collection):
            charge(1 + len(each))
            letters += 4 * len(each)
            rest += each
        elif isinstance(each, Namespace):
            raise BudgetExceeded("it says or keeps a namespace, which may hold itself")
        else:
            charge()
            letters += each.bit_length() // 3 + 1 if isinstance(each, int) else 24
    return letters


def charge_value(value: Any) -> Any:
    text_size(value)
    return value


def join_charged(parts: list[Any]) -> str:
    """Texts one after the other."""
    check_growth(sum(text_size(part, QUOTED) for part in parts))
    return charge_result("".join(map(str, parts)))  # type: ignore[no-any-return]


def charge_slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """A part of a text or a list, which is another one."""
    if isinstance(value, str | list | tuple):
        # a slice of a text is read and copied, letter by letter where it has a step
        many = len(range(*slice(start, stop, step).indices(len(value))))
        charge(1 + (many // READ if step in (None, 1) else many // 16))
        check_growth(many * (1 if isinstance(value, str) else ITEM))
        return charge_result(value[start:stop:step])
    return value[start:stop:step]


def charge_loop(values: Iterable[Any], letters: int) -> Iterator[Any]:
    """What a loop goes over; a turn costs a step, and what stands in the loop as it is."""
    for each in values:
        charge(1, letters)
        yield each


def charge_result(value: Any) -> Any:
    """What a call or a filter answers; what comes one by one is paid for one by one."""
    if isinstance(value, str):
        charge(1 + len(value) // 1000, len(value))
    elif isinstance(value, list | tuple | Mapping):
        charge(1 + len(value) // 8, ITEM * len(value))
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise BudgetExceeded(f"it makes a number of more than {MAX_BITS:,} bits")
    elif isinstance(value, Iterator):
        return charge_loop(value, 0)
    else:
        charge()
    return value


# ---------------------------------------------------------------- what grows


def check_growth(count: int) -> None:
    """Refuse what would grow so large, before it does."""
    if count > CURRENT_BUDGET.get().letters:
        raise BudgetExceeded(f"it makes more than {MAX_LETTERS:,} letters")


def charge_operands(left: Any, right: Any) -> None:
    """Pay for what an operator reads, and refuse what it does not know: sets grow out of sight."""
    for each in (left, right):
        if isinstance(each, str):
            charge(len(each) // 1000)
        elif isinstance(each, list | tuple):
            charge(len(each) // 8)
        elif each is right and isinstance(left, str) and isinstance(each, Mapping):
            charge()  # a format with names
        elif not isinstance(each, int | float | Undefined | None):
            raise BudgetExceeded(f"it reckons with a {type(each).__name__}")
    if isinstance(left, Markup) or isinstance(right, Markup):
        check_growth(ESCAPED * (text_size(left) + text_size(right)))


def multiply(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            check_growth((1 if isinstance(one, str) else ITEM) * len(one) * other)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
        raise BudgetExceeded(f"it makes a number of more than {MAX_BITS:,} bits")
    return left * right


def raise_power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_BITS:
        raise BudgetExceeded(f"it makes a number of more than {MAX_BITS:,} bits")
    return left**right


def modulo(left: Any, right: Any) -> Any:
    """Of numbers; a text is a format that is filled in."""
    if isinstance(left, str):
        charge(left.count("%(") * len(left) // READ)  # behind each the end of a name is looked for, up to the end
        quoted = QUOTED if REPR.search(left) else 1
        check_growth(len(left) + left.count("%") * (99 + quoted * text_size(right, QUOTED)))  # each may say all of it
        if WIDE_FORMAT.search(left):
            raise BudgetExceeded(f"it writes into {left[:40]!r}, as wide as that says")
    return left % right


def charge_split(text: str, *rest: Any) -> None:
    check_growth(ITEM * (text.count(rest[0]) + 1 if rest and isinstance(rest[0], str) and rest[0] else len(text)))


def charge_reverse_search(text: str, *rest: Any) -> None:
    """Python looks for a text from the end as if each letter could be its last: all letters times all letters."""
    charge(len(text) * (len(rest[0]) if rest and isinstance(rest[0], str) else 1) // (16 * READ))


def charge_reverse_split(text: str, *rest: Any) -> None:
    charge_split(text, *rest)
    charge_reverse_search(text, *rest)


def charge_strip(text: Any, *rest: Any) -> None:
    """Each letter of one text is looked for among all of the other."""
    if isinstance(text, str) and rest and isinstance(rest[0], str):
        charge(len(text) * len(rest[0]) // READ)


def charge_replace(text: Any, old: Any = "", new: Any = "", *most: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        charge(len(text) // READ)
        check_growth((len(text) + text.count(old) * len(new)) * (ESCAPED if isinstance(text, Markup) else 1))


def charge_case(text: Any, *rest: Any) -> None:
    """A text in another case. Python makes room for the longest that may come of it, four bytes for each letter."""
    if isinstance(text, str) and not text.isascii():
        check_growth(CASED * len(text))


def charge_letters(text: Any, steps: int) -> None:
    """A text that is taken for a list of letters, each of which is an object of its own."""
    if isinstance(text, str):
        charge(1 + steps * len(text) // 8)


def charge_join(between: Any, parts: Any = (), *others: Any) -> None:
    charge_letters(parts, 1)
    if isinstance(between, str) and isinstance(parts, Collection):
        escaped = ESCAPED if isinstance(between, Markup) else 1
        check_growth((len(between) * len(parts) + text_size(parts, QUOTED)) * escaped)


CHARGED_METHODS: dict[str, Callable[..., None]] = {
    "replace": charge_replace, "join": charge_join, "split": charge_split, "rsplit": charge_reverse_split,
    "splitlines": lambda text, *_: charge_split(text), "rfind": charge_reverse_search, "rindex": charge_reverse_search,
    "rpartition": charge_reverse_search, "strip": charge_strip, "lstrip": charge_strip, "rstrip": charge_strip,
    "capitalize": charge_case, "lower": charge_case, "swapcase": charge_case, "title": charge_case,
    "upper": charge_case,
}  # fmt: skip


def bounded_range(*given: Any) -> range:
    """Python's range, if it is one of few."""
    found = range(*given)
    if len(found) > MAX_STEPS:
        raise BudgetExceeded(f"range{given} has {len(found):,} numbers")
    return found


BINARY_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "/": operator.truediv, "//": operator.floordiv,
    "*": multiply, "**": raise_power, "%": modulo,
}  # fmt: skip
