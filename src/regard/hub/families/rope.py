"""Rotary positions in other people's words: `rope_parameters`, or `rope_theta` and `rope_scaling` as it was before."""

import math
from typing import Any

from regard import config
from regard.hub.families.theirs import Theirs

# Their words for what a scaling goes by, and ours.
WORDS = {
    "default": {},
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},  # and the longest text, which stands elsewhere
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "length",
        "beta_fast": "fast",
        "beta_slow": "slow",
        "attention_factor": "stretch",
    },
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "length",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
    },
    "longrope": {
        "factor": "factor",
        "original_max_position_embeddings": "length",
        "attention_factor": "stretch",
        "short_factor": "factors",
        "long_factor": "factors",
    },
}
OURS = {theirs: "none" if theirs == "default" else theirs for theirs in WORDS}


def say_rotary(c: config.Rotary) -> dict[str, Any]:
    theirs = "default" if c.scaling == "none" else c.scaling
    said = {word: getattr(c, name) for word, name in WORDS[theirs].items() if getattr(c, name) is not None}
    lists = {word: list(value) for word, value in said.items() if isinstance(value, tuple)}
    return {"rope_type": theirs, "rope_theta": c.base} | said | lists


def hear_rotary(theirs: Theirs, longest: int) -> config.Rotary:
    rope = theirs.inside("rope_scaling" if theirs.get("rope_scaling") else "rope_parameters")
    for table in (theirs, rope):
        table.only("partial_rotary_factor", 1.0)
    scaling = rope.word("rope_type" if rope.get("rope_type") else "type", OURS, "default")
    base = rope.number("rope_theta", theirs.number("rope_theta", 10_000.0))
    return config.make(config.Rotary, {"base": base, "scaling": scaling, **HEAR[scaling](theirs, rope, longest)})


def trained(theirs: Theirs, rope: Theirs, longest: int) -> int:
    """The length before it was stretched; some write it outside the table."""
    key = "original_max_position_embeddings"
    return theirs.whole(key) if theirs.get(key) else rope.whole(key, longest)


def stretched(theirs: Theirs, rope: Theirs, longest: int) -> dict[str, Any]:
    """The factor, or what follows from both lengths, and how loud."""
    length = trained(theirs, rope, longest)
    loud = rope.number("attention_factor") if rope.get("attention_factor") else None
    return {"factor": rope.number("factor", longest / length), "length": length, "stretch": loud}


def yarn(theirs: Theirs, rope: Theirs, longest: int) -> dict[str, Any]:
    rope.only("truncate", True)
    said = stretched(theirs, rope, longest)
    if said["stretch"] is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        most = math.log(max(said["factor"], 1.0))
        loud, quiet = (0.1 * rope.number(key) * most + 1 for key in ("mscale", "mscale_all_dim"))
        said["stretch"] = loud / quiet
    return said | {"fast": rope.number("beta_fast", 32.0), "slow": rope.number("beta_slow", 1.0)}


def longrope(theirs: Theirs, rope: Theirs, longest: int) -> dict[str, Any]:
    short, long = rope.numbers("short_factor"), rope.numbers("long_factor")
    if short != long:
        raise rope.wrong("long_factor", "short_factor differs, and factors here do not change with the length")
    return stretched(theirs, rope, longest) | {"factors": short}


def llama3(theirs: Theirs, rope: Theirs, longest: int) -> dict[str, Any]:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    return {"factor": rope.number("factor"), "length": trained(theirs, rope, longest), "low": low, "high": high}


HEAR = {
    "none": lambda theirs, rope, longest: {},
    "linear": lambda theirs, rope, longest: {"factor": rope.number("factor")},
    "dynamic": lambda theirs, rope, longest: {"factor": rope.number("factor"), "length": longest},
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}
