"""Checkpoints of a run: the model's folder, and under train/ what is needed to go on exactly.

    train/optim.safetensors   the optimizer's tensors, by the name of their weight
    train/rng.safetensors     the states of the run's random number generators
    train/state.json          step, seconds, where log.jsonl stood, which text, and on what machine
"""

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from regard import config
from regard.generate.model import Transformer
from regard.hub import folder as hub
from regard.hub.manifest import NAME
from regard.train.run import Run

FORMAT = 1
NEEDED = {"step": int, "seconds": float, "log": int, "samples": int, "text": str, "recipe": str, "surroundings": dict}


def save(run: Run, path: Path, more: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint, whole or not at all."""
    state = {"format": FORMAT, "step": run.step, "seconds": run.seconds, "log": 0, "samples": 0,
             "text": digest(run), "recipe": said(run), "surroundings": {}, **(more or {})}  # fmt: skip

    def add(folder: Path) -> None:
        inner = folder / "train"
        inner.mkdir()
        hub.tensors_to(inner / "optim.safetensors", run.optimizer.state())
        hub.tensors_to(inner / "rng.safetensors", run.chance)
        (inner / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf8")

    return hub.write(path, savable(run), run.tokenizer, run.settings.context, more=add)


def load(run: Run, path: Path) -> dict[str, Any]:
    """Bring a run to where the checkpoint was; what state.json said."""
    model, state, found = savable(run), state_of(path), hub.read(path)
    if found.config != model.c:
        raise config.DataError(f"{path}: holds another model than the run's config.toml describes; use its own config")
    if state["recipe"] != said(run):
        where = path.parent.parent / "config.toml"
        raise config.ConfigError(f"{where}: says other things than when the run was saved; put it back, or begin a "
                                 "new run from it")  # fmt: skip
    if state["text"] != digest(run):
        name = getattr(getattr(run.data, "shards", None), "name", "the text")
        raise config.DataError(f"{name}: not the text that {path} was trained on; bring it back, or begin a new run")
    hub.fill(model, found)
    run.optimizer.load(hub.tensors_from(path / "train" / "optim.safetensors"))
    run.chance.update(hub.tensors_from(path / "train" / "rng.safetensors"))
    run.step, run.seconds = state["step"], state["seconds"]
    return state


def savable(run: Run) -> Transformer:
    if not isinstance(run.model, Transformer):
        raise TypeError(f"a run of a {type(run.model).__name__} cannot be saved; build its model with regard.build")
    return run.model


def said(run: Run) -> str:
    """A digest of the recipe, but for what a run that goes on may have otherwise."""
    if run.recipe is None:
        return ""
    train = {name: value for name, value in config.tree(run.recipe.train).items()
             if f"train.{name}" not in config.MAY_CHANGE}  # fmt: skip
    return sha256(json.dumps({**config.tree(run.recipe), "train": train}).encode()).hexdigest()


def digest(run: Run) -> str:
    """Which text is read; nothing where the data are not from a text."""
    return str(getattr(getattr(run.data, "shards", None), "digest", ""))


def state_of(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / "train" / "state.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        state = None
    if isinstance(state, dict) and state.get("format", FORMAT) != FORMAT:
        raise config.DataError(f"{path}: format {state['format']!r}; this version reads {FORMAT}")
    if not isinstance(state, dict) or any(not isinstance(state.get(key), kind) for key, kind in NEEDED.items()):
        raise config.DataError(f"{path}: no train/state.json with all that resuming needs; it is no checkpoint of a "
                               "run, or a damaged one; `regard generate` needs the model alone")  # fmt: skip
    return state


def prune(folder: Path, keep: int, last: Path | None = None) -> None:
    """Remove all but the newest few whole checkpoints, and what is left of those that went before.

    Later ones than `last`, which is known to be good, are not counted: a run that had to go back passed them over.
    """
    hub.sweep(folder)
    whole = [path for path in hub.steps(folder.parent) if (path / NAME).is_file()]
    upto = whole.index(last) + 1 if last in whole else len(whole)
    for old in whole[: max(0, upto - keep)]:
        with suppress(OSError):  # it takes room, and does no harm
            hub.remove(old)
