"""Checkpoints of a run: the model's folder, and under train/ what is needed to go on exactly.

    train/optim.safetensors   the optimizer's tensors, by the name of their weight
    train/rng.safetensors     the states of the random number generators
    train/state.json          step, seconds, where log.jsonl stood, and on what machine
"""

import json
import shutil
from pathlib import Path
from typing import Any

from regard import config
from regard.generate.model import Transformer
from regard.hub import folder as hub
from regard.train.chance import chances, restore
from regard.train.run import Run

FORMAT = 1


def save(run: Run, path: Path, more: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint, whole or not at all."""
    assert isinstance(run.model, Transformer)
    state = {"format": FORMAT, "step": run.step, "seconds": run.seconds, **(more or {})}

    def add(folder: Path) -> None:
        inner = folder / "train"
        inner.mkdir()
        hub.tensors_to(inner / "optim.safetensors", run.optimizer.state())
        hub.tensors_to(inner / "rng.safetensors", chances(run.device))
        (inner / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf8")

    return hub.write(path, run.model, run.tokenizer, run.settings.context, more=add)


def load(run: Run, path: Path) -> dict[str, Any]:
    """Bring a run to where the checkpoint was; what state.json said."""
    assert isinstance(run.model, Transformer)
    state = state_of(path)
    found = hub.read(path)
    if found.config != run.model.c:
        raise config.DataError(f"{path}: holds another model than the run's config.toml describes; use its own config")
    hub.fill(run.model, found)
    run.optimizer.load(hub.tensors_from(path / "train" / "optim.safetensors"))
    restore(hub.tensors_from(path / "train" / "rng.safetensors"), run.device)
    run.step, run.seconds = int(state["step"]), float(state["seconds"])
    return state


def state_of(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / "train" / "state.json").read_text(encoding="utf8"))
        if state["format"] != FORMAT:
            raise config.DataError(f"{path}: format {state['format']}; this version reads {FORMAT}")
        return dict(state)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        if isinstance(problem, config.DataError):
            raise
        raise config.DataError(f"{path}: no train/state.json that can be read; resume needs a run's own checkpoint, "
                               "`regard generate` needs only the model") from None  # fmt: skip


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest few checkpoints."""
    steps = sorted(path for path in folder.glob("step-*") if path.is_dir() and path.name[5:].isdigit())
    for old in sorted(steps, key=lambda path: int(path.name[5:]))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
