"""Where a preset comes from: the [about] table of its file, which is no setting of the model."""

from dataclasses import dataclass
from typing import Any

from regard.zoo.presets import read


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The same model otherwise: `change` is what `preset` takes, such as {"vocab": 30_000}."""

    what: str
    change: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class About:
    """Title, paper, and the `source` that the numbers were read from.

    `said` is the size that papers and lectures give, `rounded` a sentence on where they rounded or erred.
    """

    title: str
    paper: str
    source: str
    said: str | None = None
    rounded: str | None = None
    also: tuple[Variant, ...] = ()


def about(name: str) -> About:
    """What is known of a preset besides its settings."""
    given = read(name)["about"]
    return About(**{**given, "also": tuple(Variant(**each) for each in given.get("also", ()))})
