"""Presets: whole model configs as TOML files, loaded by name, changed, and rescaled.

A file may extend another (`preset = "gpt2"`) and give the differences. Its [about] table names the source of the
numbers and is not part of the config. Short keys for model settings in files and recipes are in SHORT_KEYS.
"""

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from regard import config
from regard.config.aliases import suggest_word
from regard.config.errors import did_you_mean
from regard.config.overrides import merge_tables


@dataclass(frozen=True, kw_only=True)
class PresetVariant:
    """A changed preset: `change` is what `preset` takes, such as {"vocab": 30_000}."""

    what: str
    change: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PresetInfo:
    """Title, paper, and the `source` of the numbers.

    `said` is the size in papers and lectures, `rounded` a sentence on rounding or errors there.
    """

    title: str
    paper: str
    source: str
    said: str | None = None
    rounded: str | None = None
    also: tuple[PresetVariant, ...] = ()


def preset_info(name: str) -> PresetInfo:
    """Facts about a preset besides its settings."""
    given = read_preset(name)["about"]
    return PresetInfo(**{**given, "also": tuple(PresetVariant(**each) for each in given.get("also", ()))})


# Short key of a setting that is often changed, and its paths.
SHORT_KEYS = {
    "dim": ("trunk.dim",),
    "depth": ("trunk.depth",),
    "heads": ("trunk.attention.heads",),
    "kv_heads": ("trunk.attention.kv_heads",),
    "kernel": ("trunk.attention.kernel",),
    "hidden": ("trunk.mlp.hidden",),
    "mask": ("trunk.mask",),
    "position": ("trunk.position",),
    "dropout": ("trunk.dropout.embed", "trunk.dropout.attention", "trunk.dropout.residual"),
    "vocab": ("embed.vocab",),
}
ALIKE = ("dim", "depth", "heads", "kv_heads", "kernel", "hidden", "dropout")  # these apply to an encoder too


def preset(name: str, /, **changes: Any) -> config.Transformer | config.DualEncoder:
    """A preset by its name, with changes by short keys or tables: preset("gpt2", depth=4, trunk={"norm_placement":
    "post"})."""
    base = preset_table(name)
    if "towers" not in base:
        changes = config.canonical_tree(config.Transformer, changes)
        return config.from_dict(config.Transformer, expand_preset({"preset": name, **changes}))
    changes = config.canonical_tree(config.DualEncoder, changes)
    for word in changes:
        if word not in base:
            raise config.ConfigError(f"{word}: {name} has several towers, and none of them is named; give all towers")
    return config.from_dict(config.DualEncoder, {**base, **changes})


def expand_preset(given: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The complete table of a model: its preset, if it names one, with the short keys expanded and merged over it."""
    given = dict(given)
    base = preset_table(given["preset"], path) if "preset" in given else {}
    if "towers" in base:
        where, name = f"{path}.preset" if path else "preset", given["preset"]
        raise config.ConfigError(f"{where}: {name!r} is several models beside each other; choose a preset of one")
    given.pop("preset", None)
    for word in given:
        if word in ALIKE and base.get("embed", {}).get("kind") == "stages":
            where = f"{path}.{word}" if path else word
            raise config.ConfigError(f"{where}: a model of several stages has one for each; set trunk.{word} and those "
                                     "of embed.trunks")  # fmt: skip
    changes = expand_short_keys(given, path, "encoder" in base)
    whole = merge_tables(base, changes)
    if "encoder" in base and isinstance(changes.get("encoder"), dict):
        whole["encoder"] = keep_proportions(whole["encoder"], base["encoder"], changes["encoder"])
    return keep_proportions(whole, base, changes)


def keep_proportions(whole: dict[str, Any], base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Rescale a trunk to another width: head width, the ratio of kv_heads, and scales that are a root of the width stay
    in proportion."""
    theirs, ours = base.get("trunk"), changes.get("trunk")
    if not (theirs and isinstance(ours, dict) and isinstance(ours.get("dim"), int) and ours["dim"] > 0):
        return whole
    whole = scale_mlp(scale_heads(whole, theirs, ours), theirs, ours)
    return rescale_by_dim(whole, theirs["dim"], ours["dim"], changes)


def scale_mlp(whole: dict[str, Any], base: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Keep the ratio of MLP width to model width, where that is an integer."""
    known, said = base.get("mlp", {}), ours.get("mlp", {})
    if "hidden" not in known or not isinstance(said, dict) or said.keys() & {"hidden", "kind"}:
        return whole
    hidden, rest = divmod(known["hidden"] * ours["dim"], base["dim"])
    mlp = {**whole["trunk"]["mlp"], "hidden": max(1, hidden)} if not rest else whole["trunk"]["mlp"]
    return {**whole, "trunk": {**whole["trunk"], "mlp": mlp}}


def scale_heads(whole: dict[str, Any], base: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    said, known = ours.get("attention", {}), base["attention"]
    if not isinstance(said, dict) or {"heads", "head_dim"} & {*said} or "head_dim" in known:
        return whole
    width, sharing = base["dim"] // known["heads"], known["heads"] // known.get("kv_heads", known["heads"])
    heads, rest = divmod(ours["dim"], width)
    if rest:
        return whole
    shared = max(1, heads // sharing)
    kv_heads = {"kv_heads": shared} if "kv_heads" in known and heads % shared == 0 else {}
    attention = {**whole["trunk"]["attention"], "heads": heads, **kv_heads, **said}
    return {**whole, "trunk": {**whole["trunk"], "attention": attention}}


def rescale_by_dim(whole: dict[str, Any], before: int, after: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Keep embed.scale = sqrt(dim) and head.scale = 1/sqrt(dim) at a new width, unless they are given."""
    for name, power in (("embed", 0.5), ("head", -0.5)):
        tables = [given.get(name) for given in (whole, changes)]
        now, said = (given if isinstance(given, dict) else {} for given in tables)
        rooted = isinstance(now.get("scale"), float) and abs(now["scale"] / before**power - 1) < 1e-6
        if rooted and "scale" not in said:
            whole = {**whole, name: {**now, "scale": after**power}}
    return whole


def preset_table(name: Any, path: str = "") -> dict[str, Any]:
    """The settings of a preset as nested dicts; absent ones are defaults."""
    own = read_preset(name, path)
    own.pop("about")
    return expand_preset(own) if "preset" in own else own


def read_preset(name: Any, path: str = "") -> dict[str, Any]:
    """The file of a preset."""
    where = f"{path}.preset" if path else "preset"
    if name not in config.PRESETS:
        near = did_you_mean(str(name), config.PRESETS)
        raise config.ConfigError(f"{where}: no preset {name!r}{near} regard models lists what there is")
    return tomllib.loads(files(__package__).joinpath("presets", f"{name}.toml").read_text(encoding="utf8"))


def expand_short_keys(given: dict[str, Any], path: str, encoder: bool = False) -> dict[str, Any]:
    """Expand short keys to the settings they stand for; if both are given, they must agree.

    An `encoder` takes those in ALIKE, where it has no setting of its own.
    """
    whole: dict[str, Any] = {}
    known = [*SHORT_KEYS, "preset", *(field.name for field in fields(config.Transformer))]
    for word, value in given.items():
        if word not in known:
            where = f"{path}.{word}" if path else word
            if ours := suggest_word(str(word), known, path):
                raise config.ConfigError(f"{where}: {ours}")
            near = did_you_mean(str(word), known)
            raise config.ConfigError(f"{where}: no such setting{near} there are {', '.join(known)}")
        if word not in SHORT_KEYS:
            whole = merge_tables(whole, {word: value})
    for word, value in given.items():
        for long in SHORT_KEYS.get(word, ()):
            *tables, last = long.split(".")
            inner = whole
            for name in tables:
                under = inner.get(name, {})
                if not isinstance(under, dict):
                    return whole  # the reader reports that it is not a table
                inner[name] = dict(under)
                inner = inner[name]
            if last in inner and inner[last] != value:
                where = f"{path}.{word}" if path else word
                raise config.ConfigError(f"{where}: {value!r}, and {long} is {inner[last]!r}; keep one of the two")
            inner[last] = value
    alike = {word: value for word, value in given.items() if word in ALIKE} if encoder else {}
    if alike and isinstance(whole.get("encoder", {}), dict):
        whole["encoder"] = merge_tables({"trunk": expand_short_keys(alike, path)["trunk"]}, whole.get("encoder", {}))
    return whole
