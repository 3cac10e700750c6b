"""What a setting is: a frozen dataclass whose fields are said by name.

Comparing, hashing and showing are the same for all, so they are written once: `dataclass` would compile them anew for
each of ninety classes, whenever somebody starts.
"""

from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def setting(made: type[T]) -> type[T]:
    """Make a class a setting."""
    kind: Any = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(made)
    for name, shared in {"__eq__": same, "__hash__": marked, "__repr__": told}.items():
        if name not in vars(made):
            setattr(kind, name, shared)
    return kind  # type: ignore[no-any-return]


def values(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, field.name) for field in fields(one))


def same(one: Any, other: object) -> bool:
    return values(one) == values(other) if type(one) is type(other) else NotImplemented


def marked(one: Any) -> int:
    return hash(values(one))


def told(one: Any) -> str:
    said = (f"{field.name}={getattr(one, field.name)!r}" for field in fields(one))
    return f"{type(one).__qualname__}({', '.join(said)})"
