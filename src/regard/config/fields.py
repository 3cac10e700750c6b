"""What settings check of themselves, and the sentence when it is wrong."""

import math
from collections import Counter
from collections.abc import Sequence

from regard.config.names import did_you_mean
from regard.config.reader import ConfigError

# What a run can be planned with; what lies beyond is a slip of the keys.
TERMS = {"tokens": (1, 1e30), "utilisation": (1e-6, 1), "ratio": (1e-9, 1e9), "price": (0, 1e9)}


def one_of(name: str, table: Sequence[str], what: str) -> None:
    if name not in table:
        raise ValueError(f"{what}: no {name!r}{did_you_mean(name, table)} there are {', '.join(table)}")


def at_least(least: float, **numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"{name}: {number} is less than {least}")
        if number == math.inf:
            raise ValueError(f"{name}: {number} is not a finite number; give one")


def beside(mode: str, width: int | None) -> None:
    """A width of its own is for positions that stand beside the vectors, and they need one."""
    at_least(1, width=width)
    if (mode == "concat") != (width is not None):
        raise ValueError("width: mode 'concat' needs it, and it is for that mode alone")


def within(limits: dict[str, tuple[float, float]], settings: object) -> None:
    """Each of these settings lies between its limits, or is not said."""
    for name, (least, most) in limits.items():
        number = getattr(settings, name)
        if number is not None and not least <= number <= most:
            raise ConfigError(f"{name}: {number} is not between {least:g} and {most:g}")


def fraction(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not 0 <= number <= 1:
            raise ValueError(f"{name}: {number} is not between 0 and 1")


def share(**numbers: float) -> None:
    """A part that is neither nothing nor all."""
    for name, number in numbers.items():
        if not 0 < number < 1:
            raise ValueError(f"{name}: {number} is not a part between 0 and 1")


def columns(**names: str | None) -> None:
    """Each column has a name, and no two the same."""
    said = {name: column for name, column in names.items() if column is not None}
    for name, column in said.items():
        if not column:
            raise ValueError(f"{name}: empty; name a column of the data")
        if twin := [other for other in said if other != name and said[other] == column]:
            raise ValueError(f"{name}: column {column!r} is also {twin[0]}; name two different ones")


def check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing: {smoothing} is not from 0 up to 1; 0 smooths nothing")


def check_classes(classes: tuple[str, ...]) -> None:
    if twice := [name for name, times in Counter(classes).items() if times > 1]:
        raise ValueError(f"classes: {twice[0]!r} stands there twice")
    if len(classes) == 1:
        raise ValueError(f"classes: {classes[0]!r} alone leaves nothing to tell apart; name two or more")
