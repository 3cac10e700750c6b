"""Model families: the registry, matching a config to a class of `transformers`, and the reasons for a mismatch.

    config.Transformer ── to_hf ──►  its config.json ──── from_hf ──►  the same config.Transformer

A model belongs to a family when its config survives the round trip: a setting that comes back different has no key in
that family, and is the reason for the mismatch. A family's file registers itself with `register_family`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from regard import config
from regard.config.errors import DataError, did_you_mean
from regard.hub import name_table
from regard.hub.families.canonical import canonicalize
from regard.hub.families.hf_config import HF_DTYPES, HFConfig


@dataclass(frozen=True)
class Family:
    """A model family of transformers: `name` is its model_type, `heads` are its architectures with the head of each.

    The most common architecture comes first. `to_hf` translates a config and its training length to an HF config;
    `from_hf` translates back, given the head; `length` is the key of the maximum length. Tensor names of the body begin
    with `prefix`, except in the architectures of `body_prefix`, which store the body alone. `map` is the name table, by
    default that of the family's name; `front_end` is the config class of the front end (DualEncoder for several
    towers).
    """

    name: str
    title: str
    heads: Mapping[str, Callable[[HFConfig], config.Head]]
    to_hf: Callable[[Any, int | None], dict[str, Any]]
    from_hf: Callable[[HFConfig, Any], config.Model]
    length: str = "max_position_embeddings"
    prefix: str = ""
    body_prefix: tuple[str, ...] = ()
    map: str = ""
    front_end: type = config.TextEmbedding

    @property
    def table(self) -> str:
        return self.map or self.name

    def rows(self, architecture: str, c: config.Model) -> list[name_table.NameRow]:
        """The name table of one architecture."""
        found = name_table.load_name_table(self.table, architecture, last_stage(c))
        if architecture not in self.body_prefix:
            return found
        return [replace(row, theirs=row.theirs.removeprefix(self.prefix)) for row in found]


class FamilyClass(NamedTuple):
    """A family and one of its architectures."""

    family: Family
    architecture: str


FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> None:
    FAMILIES[family.name] = family


def last_stage(c: config.Model) -> int:
    """The index of the last stage of a model with stages."""
    return len(c.embed.trunks) if isinstance(c.embed, config.StageEmbedding) else 0


# ---------------------------------------------------------------- from our config to a family


def match_family(c: config.Model, wanted: str | None = None) -> FamilyClass | None:
    """The family and architecture of a model, if there is one; of several, the one whose name ends with `wanted`."""
    fit = [FamilyClass(family, name) for family in FAMILIES.values() for name in matching_classes(c, family)]
    return next((each for each in fit if wanted and each.architecture.endswith(wanted)), fit[0] if fit else None)


def family_of(c: config.Model) -> Family | None:
    """The family of a model, if there is one."""
    found = match_family(c)
    return found.family if found else None


def explain_all(c: config.Model) -> dict[str, str]:
    """For each family the reason for a mismatch; empty for a match."""
    return {name: explain_mismatch(c, family) for name, family in FAMILIES.items()}


def explain_mismatch(c: config.Model, family: Family) -> str:
    """Why no architecture of the family matches the model; differences outside the head come first."""
    if wrong := explain_other_kind(c, family):
        return wrong
    if matching_classes(c, family):
        return ""
    told = [explain_class_mismatch(c, family, name) for name in family.heads]
    return next((why for why in told if not why.startswith("head")), told[0])


def explain_other_kind(c: config.Model, family: Family) -> str:
    if isinstance(c, config.DualEncoder):
        return (
            ""
            if family.front_end is config.DualEncoder
            else f"several towers beside each other, where {family.title} is one"
        )
    if family.front_end is config.DualEncoder:
        return f"one model, where {family.title} has towers beside each other"
    if type(c.embed) is not family.front_end:
        return f"embed.kind is {c.embed.kind!r}, where {family.title} has {family.front_end.kind!r}"  # type: ignore[attr-defined]
    if not isinstance(c.trunk, config.Trunk):
        return f"trunk.kind is {c.trunk.kind!r}, where {family.title} has 'blocks'"
    return ""


def matching_classes(c: config.Model, family: Family) -> list[str]:
    """The architectures of a family that match a model. Fast, since every save calls it: it gives no reasons."""
    if explain_other_kind(c, family):
        return []
    ours = canonicalize(c)
    return [name for name in family.heads if round_trip_config(c, family, name) == ours]


def round_trip_config(c: config.Model, family: Family, architecture: str) -> config.Model | str:
    """The canonical config after a round trip through the family's config; the error message if it is invalid there."""
    try:
        theirs = HFConfig(family.to_hf(c, None) | {"architectures": [architecture]}, family.title)
        return canonicalize(family.from_hf(theirs, family.heads[architecture](theirs)))
    except ValueError as problem:
        return str(problem)


def explain_class_mismatch(c: config.Model, family: Family, architecture: str) -> str:
    """The first difference from one architecture of a family."""
    theirs = round_trip_config(c, family, architecture)
    if isinstance(theirs, str):
        return theirs
    return first_config_difference(asdict(canonicalize(c)), asdict(theirs), family.title)


def first_config_difference(ours: dict[str, Any], theirs: dict[str, Any], title: str, path: str = "") -> str:
    """The first setting that differs, in a sentence."""
    for name, value in ours.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, dict) and isinstance(theirs[name], dict):
            if found := first_config_difference(value, theirs[name], title, place):
                return found
        elif value != theirs[name]:
            ours_is, theirs_is = ("a table" if isinstance(one, dict) else repr(one) for one in (value, theirs[name]))
            return f"{place} is {ours_is}, where {title} has {theirs_is}"
    return ""


# ---------------------------------------------------------------- from config.json to ours


class ParsedConfig(NamedTuple):
    """A parsed config.json: our config, family, architecture, and maximum length."""

    config: config.Model
    family: Family
    architecture: str
    longest: int | None


def parse_hf_config(raw: dict[str, Any], path: str) -> ParsedConfig:
    kind, theirs = str(raw.get("model_type")), HFConfig(raw, path)
    if theirs.get("auto_map") and kind not in FAMILIES:
        raise theirs.error("auto_map", "it asks for code from the folder to be run, which is never done here; known "
                           f"model types are {', '.join(FAMILIES)}")  # fmt: skip
    if kind not in FAMILIES:
        near = did_you_mean(kind, FAMILIES).removeprefix(";").strip()
        raise theirs.error("model_type", f"{near} known are {', '.join(FAMILIES)} and regard".strip())
    family = FAMILIES[kind]
    for key in ("quantization_config", "pruned_heads"):
        if theirs.get(key):
            raise theirs.error(key, "models here can only have none")
    architecture = architecture_of(family, theirs)
    half = theirs.get_str("dtype" if theirs.get("dtype") else "torch_dtype", HF_DTYPES, "float32") == "bf16"
    try:
        c = with_precision(family.from_hf(theirs, family.heads[architecture](theirs)), "bf16" if half else "fp32")
    except DataError:
        raise
    except ValueError as problem:
        raise DataError(f"{path}: {problem}") from None
    return ParsedConfig(c, family, architecture, max_positions(c, theirs, family.length))


def max_positions(c: config.Model, hf: HFConfig, key: str) -> int | None:
    """The maximum text length of a model; None for fixed-size inputs such as images."""
    if isinstance(c, config.DualEncoder):
        length = getattr(c.trunk.position, "length", None) if isinstance(c.trunk, config.Trunk) else None
        return length if isinstance(length, int) else None
    if not isinstance(c.embed, config.TextEmbedding | config.PixelEmbedding):
        return None
    length, most = (
        getattr(c.trunk.position, "length", None),
        hf.get_int(key, 2048),
    )  # RoBERTa's counts unused positions
    return (
        min(most, length) if isinstance(c.trunk.position, config.LearnedPosition) and isinstance(length, int) else most
    )


def architecture_of(family: Family, hf: HFConfig) -> str:
    """The architecture in a config.json; the most common one by default."""
    match hf.get("architectures"):
        case None | []:
            return next(iter(family.heads))
        case [str(name), *_] if name in family.heads:
            return name
        case _:
            raise hf.error("architectures", f"known are {', '.join(family.heads)}")


def with_precision(c: config.Model, precision: str) -> config.Model:
    if isinstance(c, config.DualEncoder):
        return replace(c, towers=tuple(replace(each, precision=precision) for each in c.towers))  # type: ignore[arg-type]
    return replace(c, precision=precision)  # type: ignore[arg-type]


def explain_no_family(c: config.Model) -> str:
    """The reason of the nearest family; empty if one matches."""
    return "" if match_family(c) else next(iter(nearest_families(c, 1).values()))


def nearest_families(c: config.Model, most: int = 3) -> dict[str, str]:
    """The nearest families, with the reasons for their mismatch."""
    order = sorted(FAMILIES.values(), key=lambda family: family_distance(c, family))
    near = [family for family in order if family_distance(c, family) < math.inf] or order
    return {family.name: explain_mismatch(c, family) for family in near[:most]}


def family_distance(c: config.Model, family: Family) -> float:
    """The number of settings that a round trip through the family changes; infinite if it is impossible."""
    return math.inf if explain_other_kind(c, family) else min(lost_settings(c, family, name) for name in family.heads)


def lost_settings(c: config.Model, family: Family, architecture: str) -> float:
    heard = round_trip_config(c, family, architecture)
    return math.inf if isinstance(heard, str) else count_differences(asdict(canonicalize(c)), asdict(heard))


def count_differences(ours: Any, theirs: Any) -> int:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return sum(count_differences(ours.get(name), theirs.get(name)) for name in ours.keys() | theirs.keys())
    return int(ours != theirs)
