"""Recipes: a TOML file or the name of a packaged one, with overrides, read into a config.Recipe."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard import config
from regard.config.names import did_you_mean
from regard.config.reader import contents, override, parsed
from regard.zoo.presets import described, laid_over, spelt, table

PRECISIONS = ("fp32", "mixed", "bf16")
BOTH_WAYS = ("masked", "classify", "regress", "tag", "answer")  # asked of models that see what comes before and after
UNKNOWN = 1  # a vocabulary of one: the tokenizer will say
HERE = Path(__file__).resolve()
FOLDERS = (HERE.parents[1] / "recipes", HERE.parents[3] / "recipes")  # in an installed package, in a checkout


def recipes() -> dict[str, Path]:
    """The packaged recipes by name."""
    return {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.toml"))}


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> config.Recipe:
    """The recipe in a TOML file, or the packaged one of that name, after overrides such as "model.depth=6"."""
    given, changes = parsed(contents(found(path)), path), dict[str, Any]()
    if not given:
        raise config.ConfigError(f"{path}: the file holds no settings; write some, or name a packaged recipe")
    for line in overrides:
        override(changes, line)
    return config.make(config.Recipe, filled(given, changes))


def read_model(given: dict[str, Any], task: str = "next") -> config.Transformer:
    """The model that a recipe with this table of it would have, for a task."""
    return config.make(config.Recipe, filled({"model": given, "task": {"kind": task}}, {})).model


def found(path: str | Path) -> Path:
    """A file first, then a name; a run's folder stands for its config.toml."""
    path, known = Path(path), recipes()
    if path.is_dir() and (path / "config.toml").is_file():
        return path / "config.toml"
    if path.is_dir() and str(path) in known:  # a folder that is no run hides nothing
        return known[str(path)]
    if path.exists() or str(path) not in known:
        if not path.exists():
            near = did_you_mean(path.stem, known)
            raise config.ConfigError(f"{path}: no such recipe{near} packaged are {', '.join(known) or 'none'}")
        return path
    return known[str(path)]


def filled(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The file's tables with the changes laid over them, and what follows from the rest: the model's whole table, its
    precision, the places it must know, its vocabulary.
    """
    tables = [table.get(name, {}) for table in (given, changes) for name in ("model", "train")]
    if not all(isinstance(table, dict) for table in tables):
        return laid_over(given, changes)  # the reader says what is wrong
    model, train, model_changes, train_changes = tables
    encoder = two_sided(laid_over(model, model_changes))
    asked = laid_over(spelt(model, "model", encoder), spelt(model_changes, "model", encoder))
    whole, train = described(asked, "model"), laid_over(train, train_changes)
    textual = isinstance(whole.get("embed", {}), dict) and inside(whole, "embed").get("kind", "text") == "text"
    if textual and "vocab" not in inside(asked, "embed"):
        whole["embed"] = {**inside(whole, "embed"), "vocab": UNKNOWN}
    trunk = whole.setdefault("trunk", {})
    both_ways = "preset" in asked or inside(laid_over(given, changes), "task").get("kind") in BOTH_WAYS
    if both_ways and isinstance(trunk, dict):  # a recipe's own default is a decoder
        whole["trunk"] = {"mask": config.Trunk().mask, **trunk}
    for path in (("trunk",), ("encoder", "trunk")):
        position = inside(whole, *path, "position")
        if textual and position.get("kind") == "learned" and "length" not in inside(asked, *path, "position"):
            inside(whole, *path)["position"] = {**position, "length": train.get("context", config.Train().context)}
    if "head" not in asked and (head := fit_head(inside(laid_over(given, changes), "task"), inside(whole, "head"))):
        whole["head"] = head
    if inside(whole, "head").get("kind") == "each" and "out" not in inside(asked, "head"):
        whole["head"] = {**inside(whole, "head"), "out": UNKNOWN}
    if train.get("precision") in PRECISIONS and ("precision" not in whole or "precision" in train_changes):
        whole.setdefault("precision", train["precision"])
        if "precision" not in model_changes:  # else the reader compares the two
            whole["precision"] = train["precision"]
    if "precision" in whole and "precision" not in train:
        train = {**train, "precision": whole["precision"]}
    return {**laid_over(given, changes), "model": whole, "train": train}


def fit_head(task: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    """A head that can be asked this, where the model's own cannot; nothing where it can."""
    kind, asked = head.get("kind", "vocabulary"), task.get("kind")
    if asked == "masked":
        wanted = "both" if task.get("next_sentence") is True else "vocabulary"
        return {} if kind == wanted else {"kind": wanted}
    if asked in ("classify", "regress"):
        return {} if kind == "pooled" else {"kind": "pooled", "place": "mean"}
    return {} if asked not in ("tag", "answer") or kind == "each" else {"kind": "each"}


def two_sided(model: dict[str, Any]) -> bool:
    """Whether a model has an encoder beside its trunk, by itself or from its preset."""
    return "encoder" in model or (model.get("preset") in config.PRESETS and "encoder" in table(model["preset"]))


def inside(outer: dict[str, Any], *names: str) -> dict[str, Any]:
    """A table in a table; an empty one where there is none, or something else."""
    for name in names:
        inner = outer.get(name)
        outer = inner if isinstance(inner, dict) else {}
    return outer
