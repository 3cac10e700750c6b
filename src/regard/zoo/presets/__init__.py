"""A preset is a TOML file here: a config.Transformer. The words that recipes use for its settings stand in SHORT."""

import tomllib
from dataclasses import fields
from importlib.resources import files
from typing import Any

from regard import config
from regard.config.names import did_you_mean

# A short word for a setting that everybody changes, and the paths it stands for.
SHORT = {
    "dim": ("trunk.dim",),
    "depth": ("trunk.depth",),
    "heads": ("trunk.attention.heads",),
    "groups": ("trunk.attention.groups",),
    "kernel": ("trunk.attention.kernel",),
    "hidden": ("trunk.mlp.hidden",),
    "mask": ("trunk.mask",),
    "position": ("trunk.position",),
    "dropout": ("trunk.dropout.embed", "trunk.dropout.attention", "trunk.dropout.sublayer"),
    "vocab": ("embed.vocab",),
}


def preset(name: str, **changes: Any) -> config.Transformer:
    """A model by its name, with changes by short words or tables: preset("gpt2", depth=4, trunk={"place": "post"})."""
    return config.make(config.Transformer, described({"preset": name, **changes}))


def described(given: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The whole table of a model: its preset, if it names one, with the short words spelt out and laid over it."""
    given = dict(given)
    base = table(given.pop("preset"), path) if "preset" in given else {}
    changes = spelt(given, path)
    whole, ours, theirs = laid_over(base, changes), changes.get("trunk"), base.get("trunk")
    if theirs and isinstance(ours, dict) and isinstance(ours.get("dim"), int):
        said, width = ours.get("attention", {}), theirs["dim"] // theirs["attention"]["heads"]
        if isinstance(said, dict) and "heads" not in said and ours["dim"] % width == 0:  # heads keep their width
            whole["trunk"]["attention"] = {**whole["trunk"]["attention"], "heads": ours["dim"] // width}
    return whole


def table(name: Any, path: str = "") -> dict[str, Any]:
    where = f"{path}.preset" if path else "preset"
    if name not in config.PRESETS:
        near = did_you_mean(str(name), config.PRESETS)
        raise config.ConfigError(f"{where}: no preset {name!r}{near} there are {', '.join(config.PRESETS)}")
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf8"))


def spelt(given: dict[str, Any], path: str) -> dict[str, Any]:
    """Short words become the settings they stand for; said both ways, they must agree."""
    whole: dict[str, Any] = {}
    known = [*SHORT, "preset", *(field.name for field in fields(config.Transformer))]
    for word, value in given.items():
        if word not in known:
            where = f"{path}.{word}" if path else word
            near = did_you_mean(str(word), known)
            raise config.ConfigError(f"{where}: no such setting{near} there are {', '.join(known)}")
        if word not in SHORT:
            whole = laid_over(whole, {word: value})
    for word, value in given.items():
        for long in SHORT.get(word, ()):
            *tables, last = long.split(".")
            inner = whole
            for name in tables:
                under = inner.get(name, {})
                if not isinstance(under, dict):
                    return whole  # the reader says that it is no table
                inner[name] = dict(under)
                inner = inner[name]
            if last in inner and inner[last] != value:
                where = f"{path}.{word}" if path else word
                raise config.ConfigError(f"{where}: {value!r}, and {long} says {inner[last]!r}; keep one of the two")
            inner[last] = value
    return whole


def laid_over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Tables joined, the top one winning; a table of another `kind` replaces what was there."""
    joined = dict(base)
    for name, value in top.items():
        under = joined.get(name)
        if isinstance(value, dict) and isinstance(under, dict) and value.get("kind") in (None, under.get("kind")):
            value = laid_over(under, value)
        joined[name] = value
    return joined
