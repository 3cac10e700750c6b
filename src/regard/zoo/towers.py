"""Recipes of towers: each is a table of its own, by any name, and is filled in as a single model would be.

    [model]                   becomes     [model]
    kind = "towers"                       kind = "towers"
    [model.image]                         [[model.towers]]      in this order
    dim = 96                              trunk = {dim = 96}
    [model.text]                          [[model.towers]]
    dim = 64                              trunk = {dim = 64}
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from regard import config
from regard.zoo.presets import described, laid_over, table

OWN = {field.name for field in fields(config.Towers)} | {"preset"}
Fill = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def of_towers(model: dict[str, Any]) -> bool:
    """Whether a table of a model describes several beside each other."""
    preset = model.get("preset")
    return model.get("kind") == "towers" or (preset in config.PRESETS and "towers" in table(preset))


def raised(given: dict[str, Any], changes: dict[str, Any], fill: Fill) -> dict[str, Any]:
    """A recipe's tables with all towers whole; `fill` makes the tables of a recipe of one model whole."""
    asked = laid_over(given, changes)
    model, train = asked["model"], asked.get("train", {})
    base = table(model["preset"]) if "preset" in model else {}
    towers = [tower(each, path, train, fill) if isinstance(each, dict) else each for path, each in found(model, base)]
    rest = {name: value for name, value in {**base, **model}.items() if name in OWN - {"preset", "towers"}}
    return {**asked, "model": {**rest, "kind": "towers", "towers": towers}}


def found(model: dict[str, Any], base: dict[str, Any]) -> list[tuple[str, Any]]:
    """The tables of the towers with their paths: those that have names, or the list of all."""
    named = {name: each for name, each in model.items() if name not in OWN}
    for name, each in named.items():
        if not isinstance(each, dict):
            raise config.ConfigError(f"model.{name}: of which tower? each has a table of its own, as [model.image] and "
                                     "[model.text]; set it there")  # fmt: skip
        if "towers" in model or "towers" in base:
            raise config.ConfigError(f"model.{name}: there is model.towers beside it, which has them all; keep one of "
                                     "the two")  # fmt: skip
    listed = model.get("towers", base.get("towers", []))
    return [(f"model.{name}", each) for name, each in named.items()] or [
        (f"model.towers[{place}]", each) for place, each in enumerate(listed)]  # fmt: skip


def tower(given: dict[str, Any], path: str, train: dict[str, Any], fill: Fill) -> dict[str, Any]:
    """One of them, as a model that reads the whole and gives one vector; only a text has the run's context."""
    front = described(given, path).get("embed", {})
    textual = not isinstance(front, dict) or front.get("kind", "text") == "text"
    known = {name: value for name, value in train.items() if name == "precision" or (textual and name == "context")}
    try:
        made: dict[str, Any] = fill({"model": given, "train": known, "task": {"kind": "classify"}}, {})["model"]
    except config.ConfigError as problem:
        raise config.ConfigError(str(problem).replace("model.", f"{path}.", 1)) from None
    return made
