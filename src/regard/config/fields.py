"""The `@config_class` decorator, and field checks that config classes call in `__post_init__`.

A config class is a frozen dataclass with keyword-only fields. Equality, hash and repr are written once here:
`dataclass` would compile them for each of ninety classes at every start.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

from regard.config.errors import ConfigError, did_you_mean

# Largest plausible values; larger ones are typing errors.
COST_LIMITS = {"tokens": (1, 1e30), "utilization": (1e-6, 1), "tokens_per_parameter": (1e-9, 1e9), "price": (0, 1e9)}


def check_choice(name: str, table: Sequence[str], what: str) -> None:
    if name not in table:
        raise ConfigError(f"{what}: no {name!r}{did_you_mean(name, table)} there are {', '.join(table)}")


def check_minimum(least: float, **numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ConfigError(f"{name}: {number} is less than {least}")
        if number == math.inf:
            raise ConfigError(f"{name}: {number} is not a finite number; give one")


def check_concat_width(mode: str, width: int | None) -> None:
    """Concatenated positions need a width, other modes have none."""
    check_minimum(1, dim=width)
    if (mode == "concat") != (width is not None):
        raise ConfigError("dim: mode 'concat' needs it, and it is for that mode alone")


def check_ranges(limits: dict[str, tuple[float, float]], settings: object) -> None:
    """Check that each of these settings is None or within its limits."""
    for name, (least, most) in limits.items():
        number = getattr(settings, name)
        if number is not None and not least <= number <= most:
            raise ConfigError(f"{name}: {number} is not between {least:g} and {most:g}")


def check_fraction(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not 0 <= number <= 1:
            raise ConfigError(f"{name}: {number} is not between 0 and 1")


def check_open_fraction(**numbers: float) -> None:
    """Check that fractions are above 0 and below 1."""
    for name, number in numbers.items():
        if not 0 < number < 1:
            raise ConfigError(f"{name}: {number} is not a part between 0 and 1")


def check_columns(**names: str | None) -> None:
    """Check that each column has a name, and no two the same."""
    said = {name: column for name, column in names.items() if column is not None}
    for name, column in said.items():
        if not column:
            raise ConfigError(f"{name}: empty; name a column of the data")
        if twin := [other for other in said if other != name and said[other] == column]:
            raise ConfigError(f"{name}: column {column!r} is also {twin[0]}; name two different ones")


def check_label_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise ConfigError(f"label_smoothing: {smoothing} is not from 0 up to 1; 0 smooths nothing")


def check_classes(classes: tuple[str, ...]) -> None:
    if twice := [name for name, times in Counter(classes).items() if times > 1]:
        raise ConfigError(f"classes: {twice[0]!r} is listed twice")
    if len(classes) == 1:
        raise ConfigError(f"classes: {classes[0]!r} is the only class; name two or more")


class NonTextEmbedding:
    """Base of front ends that read no text: their token id settings are empty."""

    @property
    def vocab(self) -> int:
        return 0

    @property
    def pad_id(self) -> int | None:
        return None

    @property
    def eos_id(self) -> int | None:
        return None


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config_class(cls: type[T]) -> type[T]:
    """Decorator for config classes."""
    kind: Any = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
    for name, shared in {"__eq__": configs_equal, "__hash__": config_hash, "__repr__": config_repr}.items():
        if name not in vars(cls):
            setattr(kind, name, shared)
    return kind  # type: ignore[no-any-return]


def field_values(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, field.name) for field in fields(one))


def configs_equal(one: Any, other: object) -> bool:
    return field_values(one) == field_values(other) if type(one) is type(other) else NotImplemented


def config_hash(one: Any) -> int:
    return hash(field_values(one))


def config_repr(one: Any) -> str:
    said = (f"{field.name}={getattr(one, field.name)!r}" for field in fields(one))
    return f"{type(one).__qualname__}({', '.join(said)})"
