"""Recipes: a TOML file or a packaged name, with overrides, read into a config.Recipe with derived defaults.

The towers of a dual encoder are tables of any name, each filled in as a single model would be:

    [model]                   becomes     [model]
    kind = "dual_encoder"                 kind = "dual_encoder"
    [model.image]                         [[model.towers]]      in this order
    dim = 96                              trunk = {dim = 96}
    [model.text]                          [[model.towers]]
    dim = 64                              trunk = {dim = 64}
"""

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import did_you_mean
from regard.config.overrides import apply_override, merge_tables
from regard.config.reader import parse_toml, read_file
from regard.zoo.preset import expand_preset, expand_short_keys, preset_table

PRECISIONS = ("fp32", "mixed", "bf16")
# tasks of bidirectional models
BOTH_WAYS = ("masked_lm", "classification", "regression", "token_classification", "question_answering")
ONE_WAY = ("text", "pixels", "masked_conv", "multimodal", "")  # front ends of autoregressive models
UNKNOWN_VOCAB = 1  # placeholder until the tokenizer is known
HERE = Path(__file__).resolve()
FOLDERS = (HERE.parents[1] / "recipes", HERE.parents[3] / "recipes")  # in an installed package, in a checkout


def packaged_recipes() -> dict[str, Path]:
    """The packaged recipes by name."""
    return {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.toml"))}


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> config.Recipe:
    """Read a recipe from a TOML file or by packaged name, after overrides such as "model.depth=6"."""
    given, changes = parse_toml(read_file(find_recipe(path)), path), dict[str, Any]()
    if not given:
        raise config.ConfigError(f"{path}: the file holds no settings; write some, or name a packaged recipe")
    for line in overrides:
        apply_override(changes, line)
    given, changes = (config.canonical_tree(config.Recipe, table) for table in (given, changes))
    return config.from_dict(config.Recipe, fill_defaults(given, changes))


def describe_kind_changes(path: str | Path, overrides: Iterable[str]) -> list[str]:
    """Notices where an override changes the kind of an optimizer or schedule: its table replaces the recipe's, so other
    settings are the defaults of the new kind."""
    lines, changes, told = list(overrides), dict[str, Any](), list[str]()
    for line in lines:
        apply_override(changes, line)
    changes = config.canonical_tree(config.Recipe, changes)
    asked = {name: nested_table(changes, "train", name) for name in ("optimizer", "schedule")}
    if (
        not any("kind" in table for table in asked.values()) or not find_recipe(path).is_file()
    ):  # a pipe can be read only once
        return told
    before, after = (config.to_dict(read_recipe(path, some).train) for some in ([], lines))
    for name, typed in asked.items():
        old, new = before[name], after[name]
        if old["kind"] == new["kind"]:
            continue
        moved = [f"{key} is {new[key]} (was {old[key]})" for key in new
                 if key in old and key not in typed and new[key] != old[key]]  # fmt: skip
        fresh = [f"{key} is {new[key]}" for key in new if key not in old and key not in typed]
        if moved or fresh:
            told.append(f"train.{name}.kind: {new['kind']}, and the recipe has {old['kind']}; with the kind "
                        f"{', '.join(moved + fresh)}; set train.{name}.{next(iter((*moved, *fresh))).split()[0]}=... "
                        "for another value")  # fmt: skip
    return told


def model_from_table(given: dict[str, Any], task: str = "next_token") -> config.Transformer:
    """The model of a recipe with this [model] table, for a task."""
    tables = config.canonical_tree(config.Recipe, {"model": given, "task": {"kind": task}})
    made = config.from_dict(config.Recipe, fill_defaults(tables, {})).model
    assert isinstance(made, config.Transformer)
    return made


def find_recipe(path: str | Path) -> Path:
    """Find a recipe: a file first, then a name; a run's folder stands for its config.toml."""
    path, known = Path(path), packaged_recipes()
    if path.is_dir() and (path / "config.toml").is_file():
        return path / "config.toml"
    if path.is_dir() and str(path) in known:  # a folder that is not a run does not hide a packaged name
        return known[str(path)]
    if path.exists() or str(path) not in known:
        if not path.exists():
            near = did_you_mean(path.stem, known)
            raise config.ConfigError(f"{path}: no such recipe{near} packaged are {', '.join(known) or 'none'}")
        return path
    return known[str(path)]


def fill_defaults(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The file's tables with the overrides merged, and derived defaults filled in: the model's complete table, its
    precision, positions and vocabulary.

    This works on tables, before any config is built: once a dataclass has its defaults, given and omitted settings look
    alike, and only omitted ones may be derived. `asked` has the given settings, `whole` also those of the preset.
    """
    tables = [table.get(name, {}) for table in (given, changes) for name in ("model", "train")]
    if not all(isinstance(table, dict) for table in tables):
        return merge_tables(given, changes)  # the reader reports what is wrong
    model, train, model_changes, train_changes = tables
    if is_dual_encoder(merge_tables(model, model_changes)):
        return expand_towers(given, changes, fill_defaults)
    encoder = has_encoder(merge_tables(model, model_changes))
    # short keys ("depth") become paths ("trunk.depth") in the file and in the changes apart: merged first, an override
    # model.depth=6 would stand beside the file's trunk.depth, and neither would win
    asked = merge_tables(expand_short_keys(model, "model", encoder), expand_short_keys(model_changes, "model", encoder))
    whole, train = expand_preset(asked, "model"), merge_tables(train, train_changes)
    task = nested_table(merge_tables(given, changes), "task")
    if front_end_kind(whole) not in ("text", "multimodal") and (
        longest := fixed_token_count(nested_table(whole, "embed"))
    ):
        train = {"context": longest, **train}
    default_vocab(whole, asked)
    default_mask(whole, asked, task)
    default_positions(whole, asked, train.get("context", config.Train().context))
    default_head(whole, asked, task)
    # model.precision and train.precision are one setting in two tables: an override of either wins over the file;
    # contradictory overrides of both are left for the reader to refuse
    if train.get("precision") in PRECISIONS and ("precision" not in whole or "precision" in train_changes):
        whole.setdefault("precision", train["precision"])
        if "precision" not in model_changes:  # else the reader compares the two
            whole["precision"] = train["precision"]
    if "precision" in whole and "precision" not in train:
        train = {**train, "precision": whole["precision"]}
    return {**merge_tables(given, changes), "model": whole, "train": train}


# ---------------------------------------------------------------- derived defaults of a model table


def front_end_kind(whole: dict[str, Any]) -> str:
    """The kind of the front end; "" where the reader will report an error."""
    embed = whole.get("embed", {})
    return str(embed.get("kind", "text")) if isinstance(embed, dict) else ""


def default_vocab(whole: dict[str, Any], table: dict[str, Any]) -> None:
    """A placeholder vocabulary until the tokenizer is known: a preset has that of its paper, which does not fit the
    data."""
    if front_end_kind(whole) == "text" and "vocab" not in nested_table(table, "embed"):
        whole["embed"] = {**nested_table(whole, "embed"), "vocab": UNKNOWN_VOCAB}
    if front_end_kind(whole) == "multimodal" and "vocab" not in nested_table(table, "embed", "text"):
        whole["embed"] = merge_tables(whole["embed"], {"text": {"vocab": UNKNOWN_VOCAB}})


def default_mask(whole: dict[str, Any], table: dict[str, Any], task: dict[str, Any]) -> None:
    """Make a model causal by default, unless something says that it is bidirectional."""
    trunk = whole.setdefault("trunk", {})
    both_ways = "preset" in table or task.get("kind") in BOTH_WAYS or front_end_kind(whole) not in ONE_WAY
    if both_ways and isinstance(trunk, dict):
        whole["trunk"] = {"mask": config.Trunk().mask, **trunk}


def default_positions(whole: dict[str, Any], table: dict[str, Any], context: Any) -> None:
    """Set learned position tables to the number of tokens; those on a grid stay.

    A preset's length is replaced too: a longer table than the context would hold rows that are never trained.
    """
    for path in (("trunk",), ("encoder", "trunk")):
        position = nested_table(whole, *path, "position")
        unsaid = position.get("kind") == "learned" and "length" not in nested_table(table, *path, "position")
        if unsaid and not isinstance(position.get("length"), list):
            nested_table(whole, *path)["position"] = {**position, "length": max_positions(whole, path[0], context)}


def default_head(whole: dict[str, Any], table: dict[str, Any], task: dict[str, Any]) -> None:
    """A head for the task, with as many outputs as the data will need."""
    said, head = (
        "head" in table,
        head_for_task(task, nested_table(whole, "head"), has_cls_token(nested_table(whole, "embed"))),
    )
    if not said and head:
        whole["head"] = head
    elif not said and front_end_kind(whole) not in ONE_WAY and nested_table(whole, "head").get("kind", "lm") == "lm":
        whole["head"] = {"kind": "none"}  # the task reports that it needs another
    # drop a preset's number of classes (1,000 of ImageNet): `resolve_sizes` takes it from the data
    if task.get("kind") in ("classification", "regression") and "out" not in nested_table(table, "head"):
        whole["head"] = {name: value for name, value in nested_table(whole, "head").items() if name != "out"}
    if nested_table(whole, "head").get("kind") == "token" and "out" not in nested_table(table, "head"):
        whole["head"] = {**nested_table(whole, "head"), "out": UNKNOWN_VOCAB}


def front_end_config(embed: dict[str, Any]) -> Any:
    """The front end config of a table; None where the reader will report an error.

    Errors are ignored here, since the reader names the setting by its whole path, which this table lacks.
    """
    try:
        return config.from_dict(config.Transformer, {"embed": embed, "head": {"kind": "none"}}).embed
    except config.ConfigError:
        return None


def fixed_token_count(embed: dict[str, Any]) -> int | None:
    """The number of tokens of a front end, if it is fixed."""
    count = getattr(front_end_config(embed), "count", None)
    return count if isinstance(count, int) else None


def position_count(embed: dict[str, Any]) -> int | list[int] | None:
    """The number of positions of a front end, by axis where tokens lie on a grid."""
    front = front_end_config(embed)
    grid = front.grid if isinstance(front, config.VideoEmbedding) else getattr(front, "raster", None)
    return fixed_token_count(embed) if grid is None else list(grid)


def max_positions(model: dict[str, Any], side: str, context: Any) -> Any:
    """The positions that a trunk needs: tokens of a text, of an encoder's input, or of both together; rows and columns
    of tokens on a grid."""
    if side == "encoder":
        return position_count(nested_table(model, "encoder", "embed")) or context
    if front_end_kind(model) not in ("text", "multimodal"):
        return position_count(nested_table(model, "embed")) or context
    seen = (
        fixed_token_count(nested_table(model, "embed", "prefix"))
        if nested_table(model, "embed").get("kind") == "multimodal"
        else None
    )
    return context + seen if seen and isinstance(context, int) else context


def has_cls_token(embed: dict[str, Any]) -> bool:
    """Whether a front end has a learned class token."""
    return getattr(front_end_config(embed), "cls_tokens", False) is True


def head_for_task(task: dict[str, Any], head: dict[str, Any], cls: bool = False) -> dict[str, Any]:
    """A head for the task if the model's own does not fit; else {}."""
    kind, asked = head.get("kind", "lm"), task.get("kind")
    if asked == "masked_lm":
        wanted = "pretraining" if task.get("next_sentence") is True else "lm"
        return {} if kind == wanted else {"kind": wanted}
    if asked in ("classification", "regression"):
        return {} if kind == "pooling" else {"kind": "pooling", "pooling": "cls" if cls else "mean"}
    return {} if asked not in ("token_classification", "question_answering") or kind == "token" else {"kind": "token"}


def has_encoder(model: dict[str, Any]) -> bool:
    """Whether a model has an encoder, of its own or from its preset."""
    return "encoder" in model or (model.get("preset") in config.PRESETS and "encoder" in preset_table(model["preset"]))


def nested_table(outer: dict[str, Any], *names: str) -> dict[str, Any]:
    """A table in a table; an empty one if there is none, or another type."""
    for name in names:
        inner = outer.get(name)
        outer = inner if isinstance(inner, dict) else {}
    return outer


OWN = {field.name for field in fields(config.DualEncoder)} | {"preset"}
Fill = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def is_dual_encoder(model: dict[str, Any]) -> bool:
    """Whether a model table describes a dual encoder."""
    preset = model.get("preset")
    return model.get("kind") == "dual_encoder" or (preset in config.PRESETS and "towers" in preset_table(preset))


def expand_towers(given: dict[str, Any], changes: dict[str, Any], fill: Fill) -> dict[str, Any]:
    """A recipe's tables with all towers completed; `fill` completes the tables of a recipe with one model."""
    asked = merge_tables(given, changes)
    model, train = asked["model"], asked.get("train", {})
    base = preset_table(model["preset"]) if "preset" in model else {}
    towers = [
        expand_tower(each, path, train, fill) if isinstance(each, dict) else each
        for path, each in tower_tables(model, base)
    ]
    rest = {name: value for name, value in {**base, **model}.items() if name in OWN - {"preset", "towers"}}
    return {**asked, "model": {**rest, "kind": "dual_encoder", "towers": towers}}


def tower_tables(model: dict[str, Any], base: dict[str, Any]) -> list[tuple[str, Any]]:
    """The tower tables with their paths: named ones, or the list of all."""
    named = {name: each for name, each in model.items() if name not in OWN}
    for name, each in named.items():
        if not isinstance(each, dict):
            raise config.ConfigError(f"model.{name}: it belongs to a tower, which has its own table, as [model.image] "
                                     "and [model.text]; set it there")  # fmt: skip
        if "towers" in model or "towers" in base:
            raise config.ConfigError(f"model.{name}: there is model.towers beside it, which has them all; keep one of "
                                     "the two")  # fmt: skip
    listed = model.get("towers", base.get("towers", []))
    return [(f"model.{name}", each) for name, each in named.items()] or [
        (f"model.towers[{place}]", each) for place, each in enumerate(listed)]  # fmt: skip


def expand_tower(given: dict[str, Any], path: str, train: dict[str, Any], fill: Fill) -> dict[str, Any]:
    """One tower as a model with one output vector; only text has the run's context."""
    given = config.canonical_tree(config.Transformer, given, path)
    front = expand_preset(given, path).get("embed", {})
    textual = not isinstance(front, dict) or front.get("kind", "text") == "text"
    known = {name: value for name, value in train.items() if name == "precision" or (textual and name == "context")}
    try:
        made: dict[str, Any] = fill({"model": given, "train": known, "task": {"kind": "classification"}}, {})["model"]
    except config.ConfigError as problem:
        raise config.ConfigError(str(problem).replace("model.", f"{path}.", 1)) from None
    return made
