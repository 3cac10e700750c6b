"""Recipes: a TOML file or the name of a packaged one, with overrides, read into a config.Recipe."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard import config
from regard.config.names import did_you_mean
from regard.config.reader import contents, override, parsed
from regard.zoo.presets import described

PRECISIONS = ("fp32", "mixed", "bf16")
UNKNOWN = 1  # a vocabulary of one: the tokenizer will say
HERE = Path(__file__).resolve()
FOLDERS = (HERE.parents[1] / "recipes", HERE.parents[3] / "recipes")  # in an installed package, in a checkout


def recipes() -> dict[str, Path]:
    """The packaged recipes by name."""
    return {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.toml"))}


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> config.Recipe:
    """The recipe in a TOML file, or the packaged one of that name, after overrides such as "model.depth=6"."""
    given = parsed(contents(found(path)), path)
    for line in overrides:
        override(given, line)
    return config.make(config.Recipe, filled(given))


def found(path: str | Path) -> Path:
    """A file first, then a name; a run's folder stands for its config.toml."""
    path, known = Path(path), recipes()
    if path.is_dir() and (path / "config.toml").is_file():
        return path / "config.toml"
    if path.exists() or str(path) not in known:
        if not path.exists():
            near = did_you_mean(path.stem, known)
            raise config.ConfigError(f"{path}: no such recipe{near} packaged are {', '.join(known) or 'none'}")
        return path
    return known[str(path)]


def filled(given: dict[str, Any]) -> dict[str, Any]:
    """What follows from the rest: the model's whole table, its precision, the places it must know, its vocabulary."""
    model, train = given.get("model", {}), given.get("train", {})
    if not isinstance(model, dict) or not isinstance(train, dict):
        return given  # the reader says what is wrong
    whole = described(model, "model")
    embed, trunk = whole.setdefault("embed", {}), whole.setdefault("trunk", {})
    if isinstance(embed, dict) and "vocab" not in model and "vocab" not in model.get("embed", {}):
        whole["embed"] = {**embed, "vocab": UNKNOWN}
    asked = model.get("position", model.get("trunk", {}).get("position", {}))
    position = trunk.get("position", {}) if isinstance(trunk, dict) else {}
    if position.get("kind") == "learned" and "length" not in asked:
        whole["trunk"]["position"] = {**position, "length": train.get("context", config.Train().context)}
    if "precision" not in whole and train.get("precision") in PRECISIONS:  # else the reader speaks of train.precision
        whole["precision"] = train["precision"]
    if "precision" in whole and "precision" not in train:
        train = {**train, "precision": whole["precision"]}
    return {**given, "model": whole, "train": train}
