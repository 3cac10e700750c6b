"""Rotary positions in Hugging Face configs: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""

import math
from typing import Any

from regard import config
from regard.hub.families.hf_config import HFConfig

# The keys of each scaling in `transformers`, and our settings.
WORDS = {
    "default": {},
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},  # and max_position_embeddings, outside this table
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_length",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
    },
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "original_length",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "longrope": {
        "factor": "factor",
        "original_max_position_embeddings": "original_length",
        "attention_factor": "attention_factor",
        "short_factor": "freq_factors",
        "long_factor": "freq_factors",
    },
}
OURS = {theirs: "none" if theirs == "default" else theirs for theirs in WORDS}


def rope_to_hf(c: config.RotaryPosition) -> dict[str, Any]:
    theirs = "default" if c.scaling == "none" else c.scaling
    said = {word: getattr(c, name) for word, name in WORDS[theirs].items() if getattr(c, name) is not None}
    lists = {word: list(value) for word, value in said.items() if isinstance(value, tuple)}
    return {"rope_type": theirs, "rope_theta": c.base} | said | lists


def rope_from_hf(hf: HFConfig, longest: int) -> config.RotaryPosition:
    rope = hf.table("rope_scaling" if hf.get("rope_scaling") else "rope_parameters")
    for table in (hf, rope):
        table.require("partial_rotary_factor", 1.0)
    scaling = rope.get_str("rope_type" if rope.get("rope_type") else "type", OURS, "default")
    base = rope.get_float("rope_theta", hf.get_float("rope_theta", 10_000.0))
    return config.from_dict(
        config.RotaryPosition, {"base": base, "scaling": scaling, **HEAR[scaling](hf, rope, longest)}
    )


def original_length(hf: HFConfig, rope: HFConfig, longest: int) -> int:
    """The length before scaling; some configs have it outside the table."""
    key = "original_max_position_embeddings"
    return hf.get_int(key) if hf.get(key) else rope.get_int(key, longest)


def scaling_factor(hf: HFConfig, rope: HFConfig, longest: int) -> dict[str, Any]:
    """The factor, by default the ratio of both lengths, and the attention factor."""
    length = original_length(hf, rope, longest)
    loud = rope.get_float("attention_factor") if rope.get("attention_factor") else None
    return {"factor": rope.get_float("factor", longest / length), "original_length": length, "attention_factor": loud}


def yarn_from_hf(hf: HFConfig, rope: HFConfig, longest: int) -> dict[str, Any]:
    rope.require("truncate", True)
    said = scaling_factor(hf, rope, longest)
    if said["attention_factor"] is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        most = math.log(max(said["factor"], 1.0))
        loud, quiet = (0.1 * rope.get_float(key) * most + 1 for key in ("mscale", "mscale_all_dim"))
        said["attention_factor"] = loud / quiet
    return said | {"beta_fast": rope.get_float("beta_fast", 32.0), "beta_slow": rope.get_float("beta_slow", 1.0)}


def longrope_from_hf(hf: HFConfig, rope: HFConfig, longest: int) -> dict[str, Any]:
    short, long = rope.numbers("short_factor"), rope.numbers("long_factor")
    if short != long:
        raise rope.error("long_factor", "short_factor differs, and factors here do not change with the length")
    return scaling_factor(hf, rope, longest) | {"freq_factors": short}


def llama3_from_hf(hf: HFConfig, rope: HFConfig, longest: int) -> dict[str, Any]:
    low, high = rope.get_float("low_freq_factor"), rope.get_float("high_freq_factor")
    return {
        "factor": rope.get_float("factor"),
        "original_length": original_length(hf, rope, longest),
        "low_freq_factor": low,
        "high_freq_factor": high,
    }


HEAR = {
    "none": lambda theirs, rope, longest: {},
    "linear": lambda theirs, rope, longest: {"factor": rope.get_float("factor")},
    "dynamic": lambda theirs, rope, longest: {"factor": rope.get_float("factor"), "original_length": longest},
    "yarn": yarn_from_hf,
    "llama3": llama3_from_hf,
    "longrope": longrope_from_hf,
}
