"""Families: models that other libraries have a class for, and whether one of ours is exactly such a model.

    config.Transformer ── said ──►  their config.json ── heard ──►  the same config.Transformer

A family is decided by saying a model in its words and hearing it back: whatever comes back different, the family has
no word for, and that setting is the reason why the model is not of it. A family's file enters itself with `enter`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from regard import config
from regard.config import DataError
from regard.config.names import did_you_mean
from regard.hub import names
from regard.hub.families.settled import settled
from regard.hub.families.theirs import PRECISIONS, Theirs


@dataclass(frozen=True)
class Family:
    """A row: `name` is their model_type; `heads` are their classes, the most usual first, each with the head it has.

    `say` puts a config and the length it was trained on in their words, `hear` reads them, given the head; `length` is
    their key for the longest text. `prefix` is before the names of the body, and left out where the body is stored
    alone, as the classes in `alone` store it. `map` is the name table, unless it is called as the family is; `front`
    is the kind of front end that its models have (Towers: several models side by side).
    """

    name: str
    title: str
    heads: Mapping[str, Callable[[Theirs], config.Head]]
    say: Callable[[Any, int | None], dict[str, Any]]
    hear: Callable[[Theirs, Any], config.Model]
    length: str = "max_position_embeddings"
    prefix: str = ""
    alone: tuple[str, ...] = ()
    map: str = ""
    front: type = config.Embed

    @property
    def table(self) -> str:
        return self.map or self.name

    def rows(self, architecture: str, c: config.Model) -> list[names.Row]:
        """The name table of one class."""
        found = names.table(self.table, architecture, stages(c))
        if architecture not in self.alone:
            return found
        return [replace(row, theirs=row.theirs.removeprefix(self.prefix)) for row in found]


class Kin(NamedTuple):
    """A family, and which of its classes."""

    family: Family
    architecture: str


FAMILIES: dict[str, Family] = {}


def enter(family: Family) -> None:
    FAMILIES[family.name] = family


def stages(c: config.Model) -> int:
    """The number of the last stage of a model with several."""
    return len(c.embed.trunks) if isinstance(c.embed, config.Stages) else 0


# ---------------------------------------------------------------- ours, in their words


def kin(c: config.Model, wanted: str | None = None) -> Kin | None:
    """The family and the class that a model is of, if there is one; where several would do, one called as `wanted`."""
    fit = [Kin(family, name) for family in FAMILIES.values() for name in fitting(c, family)]
    return next((each for each in fit if wanted and each.architecture.endswith(wanted)), fit[0] if fit else None)


def family_of(c: config.Model) -> Family | None:
    """The family that the model belongs to, if there is one."""
    found = kin(c)
    return found.family if found else None


def reasons(c: config.Model) -> dict[str, str]:
    """For each family why the model is not of it; an empty reason means that it is."""
    return {name: reason(c, family) for name, family in FAMILIES.items()}


def reason(c: config.Model, family: Family) -> str:
    """Why no class of the family is this model; what more than the head differs is told first."""
    if wrong := another_kind(c, family):
        return wrong
    if fitting(c, family):
        return ""
    told = [against(c, family, name) for name in family.heads]
    return next((why for why in told if not why.startswith("head")), told[0])


def another_kind(c: config.Model, family: Family) -> str:
    if isinstance(c, config.Towers):
        return "" if family.front is config.Towers else f"several towers beside each other, where {family.title} is one"
    if family.front is config.Towers:
        return f"one model, where {family.title} has towers beside each other"
    if type(c.embed) is not family.front:
        return f"embed.kind is {c.embed.kind!r}, where {family.title} has {family.front.kind!r}"  # type: ignore[attr-defined]
    if not isinstance(c.trunk, config.Trunk):
        return f"trunk.kind is {c.trunk.kind!r}, where {family.title} has 'blocks'"
    return ""


def fitting(c: config.Model, family: Family) -> list[str]:
    """The classes of a family that a model is of. It is asked at every save, so nothing is told of the others."""
    if another_kind(c, family):
        return []
    ours = settled(c)
    return [name for name in family.heads if again(c, family, name) == ours]


def again(c: config.Model, family: Family, architecture: str) -> config.Model | str:
    """A model said in their words and heard back, settled; where their words make no model at all, why."""
    try:
        theirs = Theirs(family.say(c, None) | {"architectures": [architecture]}, family.title)
        return settled(family.hear(theirs, family.heads[architecture](theirs)))
    except ValueError as problem:
        return str(problem)


def against(c: config.Model, family: Family, architecture: str) -> str:
    """What differs from a class of a family."""
    theirs = again(c, family, architecture)
    if isinstance(theirs, str):
        return theirs
    return difference(asdict(settled(c)), asdict(theirs), family.title)


def difference(ours: dict[str, Any], theirs: dict[str, Any], title: str, path: str = "") -> str:
    """The first setting that differs, in a sentence."""
    for name, value in ours.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, dict) and isinstance(theirs[name], dict):
            if found := difference(value, theirs[name], title, place):
                return found
        elif value != theirs[name]:
            ours_is, theirs_is = ("a table" if isinstance(one, dict) else repr(one) for one in (value, theirs[name]))
            return f"{place} is {ours_is}, where {title} has {theirs_is}"
    return ""


# ---------------------------------------------------------------- theirs, in our words


class Heard(NamedTuple):
    """The model in somebody's config.json, what it is called there, and the longest text it knows."""

    config: config.Model
    family: Family
    architecture: str
    longest: int | None


def heard(said: dict[str, Any], path: str) -> Heard:
    kind, theirs = str(said.get("model_type")), Theirs(said, path)
    if theirs.get("auto_map") and kind not in FAMILIES:
        raise theirs.wrong("auto_map", "it asks for code from the folder to be run, which is never done here; known "
                           f"model types are {', '.join(FAMILIES)}")  # fmt: skip
    if kind not in FAMILIES:
        near = did_you_mean(kind, FAMILIES).removeprefix(";").strip()
        raise theirs.wrong("model_type", f"{near} known are {', '.join(FAMILIES)} and regard".strip())
    family = FAMILIES[kind]
    for key in ("quantization_config", "pruned_heads"):
        if theirs.get(key):
            raise theirs.wrong(key, "models here can only have none")
    architecture = class_of(family, theirs)
    half = theirs.word("dtype" if theirs.get("dtype") else "torch_dtype", PRECISIONS, "float32") == "bf16"
    try:
        c = precise(family.hear(theirs, family.heads[architecture](theirs)), "bf16" if half else "fp32")
    except DataError:
        raise
    except ValueError as problem:
        raise DataError(f"{path}: {problem}") from None
    return Heard(c, family, architecture, longest(c, theirs, family.length))


def longest(c: config.Model, theirs: Theirs, key: str) -> int | None:
    """The longest text that a model knows; images are all alike."""
    if isinstance(c, config.Towers):
        length = getattr(c.trunk.position, "length", None) if isinstance(c.trunk, config.Trunk) else None
        return length if isinstance(length, int) else None
    if not isinstance(c.embed, config.Embed | config.Pixels):
        return None
    length, most = getattr(c.trunk.position, "length", None), theirs.whole(key, 2048)  # RoBERTa's counts places unused
    return min(most, length) if isinstance(c.trunk.position, config.Learned) and isinstance(length, int) else most


def class_of(family: Family, theirs: Theirs) -> str:
    """Their class; the most usual where none is named."""
    match theirs.get("architectures"):
        case None | []:
            return next(iter(family.heads))
        case [str(name), *_] if name in family.heads:
            return name
        case _:
            raise theirs.wrong("architectures", f"known are {', '.join(family.heads)}")


def precise(c: config.Model, precision: str) -> config.Model:
    if isinstance(c, config.Towers):
        return replace(c, towers=tuple(replace(each, precision=precision) for each in c.towers))  # type: ignore[arg-type]
    return replace(c, precision=precision)  # type: ignore[arg-type]
