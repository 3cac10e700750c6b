"""What settings check of themselves, and the sentence when it is wrong."""

from collections.abc import Sequence

from regard.config.names import did_you_mean


def one_of(name: str, table: Sequence[str], what: str) -> None:
    if name not in table:
        raise ValueError(f"{what}: no {name!r}{did_you_mean(name, table)} there are {', '.join(table)}")


def at_least(least: float, **numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"{name}: {number} is less than {least}")


def beside(mode: str, width: int | None) -> None:
    """A width of its own is for positions that stand beside the vectors, and they need one."""
    at_least(1, width=width)
    if (mode == "concat") != (width is not None):
        raise ValueError("width: mode 'concat' needs it, and it is for that mode alone")
