"""Render budget: the steps and characters that one rendering of a chat template may spend.

    steps      each loop iteration, call, filter and value that is read, and its length
    letters    each character of a text that is created or written; too long a text is refused before it is created

Each function here does the same as Jinja or Python, and charges the budget for it.
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
ITEM = 16  # characters: the memory of a list entry
READ = 250  # characters read in the time of a step
QUOTED = 12  # most characters for one in a quoted list or dict: \ud83d\ude00
ESCAPED = 6  # most characters for one in HTML
CASED = 3  # most characters for one after a change of case: ΐ in capitals has an accent and a diaeresis
LONGEST_NUMBER = 1000  # characters
WIDE_FORMAT = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*(\d{3}|\*)")  # a format with a width of a hundred or more
REPR = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*[ra]")  # a format with Python's repr


class BudgetExceeded(jinja2.TemplateError):
    """Raised when the render budget is exceeded."""


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
    """Context with a new budget for one rendering."""
    fresh = RenderBudget()
    before = CURRENT_BUDGET.set(fresh)
    try:
        yield fresh
    finally:
        CURRENT_BUDGET.reset(before)


def charge(steps: int = 1, letters: int = 0) -> None:
    CURRENT_BUDGET.get().pay(steps, letters)


def text_size(value: Any, quoted: int = 1) -> int:
    """The length of a value as text, charged for every part, repeated parts included.

    A character within a list or dict counts as `quoted`, plus the separators.
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
            charge(1 + len(each) // 8)  # searching takes time proportional to the length
            letters += ITEM * len(each)
        elif isinstance(each, Collection):
            charge(1 + len(each))
            letters += 4 * len(each)
            rest += each
        elif isinstance(each, Namespace):
            raise BudgetExceeded("it prints or stores a namespace, which may contain itself")
        else:
            charge()
            letters += each.bit_length() // 3 + 1 if isinstance(each, int) else 24
    return letters


def charge_value(value: Any) -> Any:
    text_size(value)
    return value


def join_charged(parts: list[Any]) -> str:
    """Concatenated texts, charged."""
    check_growth(sum(text_size(part, QUOTED) for part in parts))
    return charge_result("".join(map(str, parts)))  # type: ignore[no-any-return]


def charge_slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """A slice of a text or a list, charged."""
    if isinstance(value, str | list | tuple):
        # a slice of a text with a step is copied character by character
        many = len(range(*slice(start, stop, step).indices(len(value))))
        charge(1 + (many // READ if step in (None, 1) else many // 16))
        check_growth(many * (1 if isinstance(value, str) else ITEM))
        return charge_result(value[start:stop:step])
    return value[start:stop:step]


def charge_loop(values: Iterable[Any], letters: int) -> Iterator[Any]:
    """The items of a loop; an iteration costs a step, and its constant text."""
    for each in values:
        charge(1, letters)
        yield each


def charge_result(value: Any) -> Any:
    """The result of a call or filter; iterators are charged item by item."""
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


# ---------------------------------------------------------------- growth limits


def check_growth(count: int) -> None:
    """Raise before a text or list of this size is created."""
    if count > CURRENT_BUDGET.get().letters:
        raise BudgetExceeded(f"it makes more than {MAX_LETTERS:,} letters")


def charge_operands(left: Any, right: Any) -> None:
    """Charge for the operands of an operator; unknown types are refused, since their size cannot be tracked."""
    for each in (left, right):
        if isinstance(each, str):
            charge(len(each) // 1000)
        elif isinstance(each, list | tuple):
            charge(len(each) // 8)
        elif each is right and isinstance(left, str) and isinstance(each, Mapping):
            charge()  # a format with names
        elif not isinstance(each, int | float | Undefined | None):
            raise BudgetExceeded(f"it uses an operator on a {type(each).__name__}")
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
    """Modulo of numbers, or formatting of a text."""
    if isinstance(left, str):
        charge(left.count("%(") * len(left) // READ)  # for each name its end is searched up to the end of the text
        quoted = QUOTED if REPR.search(left) else 1
        check_growth(len(left) + left.count("%") * (99 + quoted * text_size(right, QUOTED)))  # each inserts all
        if WIDE_FORMAT.search(left):
            raise BudgetExceeded(f"it formats {left[:40]!r}, whose width may be 100 or more")
    return left % right


def charge_split(text: str, *rest: Any) -> None:
    check_growth(ITEM * (text.count(rest[0]) + 1 if rest and isinstance(rest[0], str) and rest[0] else len(text)))


def charge_reverse_search(text: str, *rest: Any) -> None:
    """Charge for a reverse search, which takes the product of both lengths in Python."""
    charge(len(text) * (len(rest[0]) if rest and isinstance(rest[0], str) else 1) // (16 * READ))


def charge_reverse_split(text: str, *rest: Any) -> None:
    charge_split(text, *rest)
    charge_reverse_search(text, *rest)


def charge_strip(text: Any, *rest: Any) -> None:
    """Charge for strip, which searches each character of one text in the other."""
    if isinstance(text, str) and rest and isinstance(rest[0], str):
        charge(len(text) * len(rest[0]) // READ)


def charge_replace(text: Any, old: Any = "", new: Any = "", *most: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        charge(len(text) // READ)
        check_growth((len(text) + text.count(old) * len(new)) * (ESCAPED if isinstance(text, Markup) else 1))


def charge_case(text: Any, *rest: Any) -> None:
    """Charge for a change of case: Python allocates for the longest result, four bytes per character."""
    if isinstance(text, str) and not text.isascii():
        check_growth(CASED * len(text))


def charge_letters(text: Any, steps: int) -> None:
    """Charge for a text treated as a list of characters, each an object."""
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
    """Python's range, with a limited number of items."""
    found = range(*given)
    if len(found) > MAX_STEPS:
        raise BudgetExceeded(f"range{given} has {len(found):,} numbers")
    return found


BINARY_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "/": operator.truediv, "//": operator.floordiv,
    "*": multiply, "**": raise_power, "%": modulo,
}  # fmt: skip
