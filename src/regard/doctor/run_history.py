"""Whom the doctor sees: a recipe that has not begun, or a run where its newest checkpoint left it."""

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from regard import config
from regard.hub import folder as hub
from regard.train.run import Run
from regard.zoo import read_recipe


def opened(
    thing: str | Path, overrides: Iterable[str] = (), notice: Callable[[str], object] = warnings.warn
) -> tuple[Run, list[dict[str, Any]]]:  # fmt: skip
    """The run, and the lines of its log; nothing is written in its folder."""
    path, changes = Path(thing), list(overrides)
    if not (path / "config.toml").is_file():
        return Run.from_recipe(read_recipe(thing, changes), notice=notice), []
    if changes:
        raise config.ConfigError(f"{changes[0]}: a run is examined as it is; `regard doctor {path}/config.toml "
                                 f"{changes[0]}` examines a new one")  # fmt: skip
    recipe = config.read(config.Recipe, path / "config.toml")
    if not hub.steps(path):
        return Run.from_recipe(recipe, notice=notice), lines(path / "log.jsonl")
    newest = hub.newest(path)
    run = Run.from_recipe(recipe, tokenizer=hub.words(newest), notice=notice, fresh=False)
    run.load(newest)
    return run, lines(path / "log.jsonl")


def lines(path: Path) -> list[dict[str, Any]]:
    """Those that are whole: a run may be writing the last one now."""
    found = []
    for line in path.read_text(encoding="utf8").splitlines() if path.is_file() else []:
        try:
            read = json.loads(line)
        except ValueError:
            continue
        found.append(read if isinstance(read, dict) else {})
    return found
