"""Families: models that other libraries have a class for, and whether one of ours is exactly such a model.

    config.Transformer ── said ──►  their config.json ── heard ──►  the same config.Transformer

A family is decided by saying a model in its words and hearing it back: whatever comes back different, the family has
no word for, and that setting is the reason why the model is not of it. A family's file enters itself with `enter`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from regard import config
from regard.config import DataError
from regard.config.names import called, did_you_mean
from regard.core.kernels import KERNELS
from regard.core.masks import mask
from regard.hub.families.theirs import PRECISIONS, Theirs


@dataclass(frozen=True)
class Family:
    """A row: `name` is their model_type and our name table; `prefix` is left out where the trunk is stored alone.

    `say` puts a config and the length it was trained on in their words, `hear` reads them; `length` is their key for
    the longest text.
    """

    name: str
    title: str
    architecture: str
    prefix: str
    length: str
    say: Callable[[config.Transformer, int | None], dict[str, Any]]
    hear: Callable[[Theirs], config.Transformer]


FAMILIES: dict[str, Family] = {}


def enter(family: Family) -> None:
    FAMILIES[family.name] = family


def family_of(c: config.Model) -> Family | None:
    """The family that the model belongs to, if there is one."""
    return next((family for name, family in FAMILIES.items() if not reasons(c)[name]), None)


def reasons(c: config.Model) -> dict[str, str]:
    """For each family why the model is not of it; an empty reason means that it is."""
    return {name: reason(c, family) for name, family in FAMILIES.items()}


def reason(c: config.Model, family: Family) -> str:
    if isinstance(c, config.Towers):
        return f"several towers beside each other, where {family.title} is one"
    if not isinstance(c.embed, config.Embed):
        return f"embed.kind is {c.embed.kind!r}, where {family.title} has 'text'"
    if not isinstance(c.trunk, config.Trunk):
        return f"trunk.kind is {c.trunk.kind!r}, where {family.title} has 'blocks'"
    try:
        again = family.hear(Theirs(family.say(c, None), family.title))
        return difference(config.tree(settled(c)), config.tree(settled(again)), family.title)
    except ValueError as problem:  # their words for it make no model at all
        return str(problem)


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


def heard(said: dict[str, Any], path: str) -> tuple[config.Transformer, Family, int]:
    """The model in somebody's config.json, its family, and the longest text it knows."""
    kind, theirs = str(said.get("model_type")), Theirs(said, path)
    if kind not in FAMILIES:
        near = did_you_mean(kind, FAMILIES).removeprefix(";").strip()
        raise theirs.wrong("model_type", f"{near} known are {', '.join(FAMILIES)} and regard".strip())
    family = FAMILIES[kind]
    for key in ("quantization_config", "pruned_heads"):
        if theirs.get(key):
            raise theirs.wrong(key, "models here can only have none")
    theirs.only("is_encoder_decoder", False)
    half = theirs.word("dtype" if theirs.get("dtype") else "torch_dtype", PRECISIONS, "float32") == "bf16"
    try:
        c = replace(family.hear(theirs), precision="bf16" if half else "fp32")
    except DataError:
        raise
    except ValueError as problem:
        raise DataError(f"{path}: {problem}") from None
    return c, family, theirs.whole(family.length, 2048)


# ---------------------------------------------------------------- one spelling for each model


def settled(c: config.Transformer) -> config.Transformer:
    """The same function from ids to logits, spelt in one way.

    Left out are what changes training only (beginnings, dropout), how numbers are held, and which ids are padding.
    """
    embed = replace(c.embed, pad=None, end=None) if isinstance(c.embed, config.Embed) else c.embed
    return replace(c, embed=embed, trunk=settled_trunk(of_blocks(c)), init="xavier", precision="fp32")


def of_blocks(c: config.Transformer) -> config.Trunk:
    """The trunk of a model that could be of a family at all."""
    assert isinstance(c.trunk, config.Trunk)
    return c.trunk


def settled_trunk(c: config.Trunk) -> config.Trunk:
    masks = tuple(str(mask(text)) for text in c.masks)
    return replace(
        c,
        width=None if c.width == c.dim else c.width,
        position=settled_rotary(c.position) if isinstance(c.position, config.Rotary) else c.position,
        mask=masks[0] if len(set(masks)) == 1 else masks,
        attention=settled_attention(c),
        mlp=replace(c.mlp, hidden=c.mlp.hidden or 4 * c.dim),
        norm=settled_norm(c.norm),
        final_norm=c.place == "pre" if c.final_norm is None else c.final_norm,
        dropout=config.NO_DROPOUT,
    )


def settled_attention(trunk: config.Trunk) -> config.Attention:
    c, width = trunk.attention, trunk.head_width
    heads = trunk.heads[0] if len(set(trunk.heads)) == 1 else trunk.heads
    usual = 1 / math.sqrt(width)
    name, _ = called(c.kernel)
    exact = name in KERNELS and KERNELS[name].exact
    return replace(
        c,
        heads=heads,
        groups=c.counts(0, trunk.dim)[1] if isinstance(heads, int) and not isinstance(c.groups, tuple) else c.groups,
        width=width,
        value_width=c.value_width or width,
        scale=usual if c.scale is None or math.isclose(c.scale, usual, rel_tol=1e-12) else c.scale,
        qk_norm=None if c.qk_norm is None else settled_norm(c.qk_norm),
        maps=tuple(sorted(set(c.maps))),
        bias=tuple(sorted(set(c.bias) & set(c.maps))),
        kernel="auto" if exact else c.kernel,
    )


def settled_norm(c: config.Norm) -> config.Norm:
    """An rms norm has no bias, whatever is said."""
    return replace(c, bias=c.bias and c.kind == "layer", offset=c.offset if c.gain else 0.0)


# What each scaling of the rotary angles goes by.
USED = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor", "length"),
    "yarn": ("factor", "length", "fast", "slow"),
    "llama3": ("factor", "length", "low", "high"),
    "longrope": ("factor", "length", "factors"),
}


def settled_rotary(c: config.Rotary) -> config.Rotary:
    used = {name: getattr(c, name) for name in ("base", "layout", "part", "scaling", "stretch", *USED[c.scaling])}
    return config.Rotary(**used)
