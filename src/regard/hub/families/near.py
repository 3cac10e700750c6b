"""Why no family has a class for a model, told by those that come nearest."""

import math
from dataclasses import asdict
from typing import Any

from regard import config
from regard.hub.families.settled import settled
from regard.hub.families.table import FAMILIES, Family, again, another_kind, kin, reason


def why(c: config.Model) -> str:
    """The reason of the family that comes nearest; nothing if one has a class for the model."""
    return "" if kin(c) else next(iter(nearest(c, 1).values()))


def nearest(c: config.Model, most: int = 3) -> dict[str, str]:
    """The families that come nearest, and why the model is not of them."""
    order = sorted(FAMILIES.values(), key=lambda family: apart(c, family))
    near = [family for family in order if apart(c, family) < math.inf] or order
    return {family.name: reason(c, family) for family in near[:most]}


def apart(c: config.Model, family: Family) -> float:
    """How many settings come back different when a family says the model; endless where it cannot say it at all."""
    return math.inf if another_kind(c, family) else min(lost(c, family, name) for name in family.heads)


def lost(c: config.Model, family: Family, architecture: str) -> float:
    heard = again(c, family, architecture)
    return math.inf if isinstance(heard, str) else differing(asdict(settled(c)), asdict(heard))


def differing(ours: Any, theirs: Any) -> int:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return sum(differing(ours.get(name), theirs.get(name)) for name in ours.keys() | theirs.keys())
    return int(ours != theirs)
