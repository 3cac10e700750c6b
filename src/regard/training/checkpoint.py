"""Checkpoints of a run: the model's folder, and under train/ what is needed to go on exactly.

    train/optim.safetensors   the optimizer's tensors, by the name of their weight
    train/rng.safetensors     the states of the run's random number generators
    train/guard.safetensors   what the guard knows of losses and norms
    train/carry.safetensors   what a recurrent model remembers of the text before the next step
    train/average.safetensors the running mean in full and the weights themselves, where the folder holds the mean
    train/lora.safetensors    adapters and the weights beneath them, where the folder holds them merged
    adapter/                  what of such a run has learned, as `peft` reads it
    train/state.json          step, seconds, where log.jsonl stood, which text, and on what machine
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.generate.model import Transformer
from regard.generate.towers import Towers
from regard.hub import adapters
from regard.hub import folder as hub
from regard.hub.manifest import NAME
from regard.lora import aside, merged
from regard.train import lora
from regard.train.run import Run

FORMAT = 1
NEEDED = {"step": int, "seconds": float, "log": int, "samples": int, "text": str, "recipe": str, "surroundings": dict}


def save(run: Run, path: Path, more: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint, whole or not at all. All ranks take part, and the first one writes."""
    state = {"format": FORMAT, "step": run.step, "seconds": run.seconds, "log": 0, "samples": 0,
             "text": run.digest, "recipe": said(run), "regard": config.VERSION, "surroundings": {}, "ended": run.ended,
             "products": str(run.products).removeprefix("torch."), "compile_seconds": run.compile_seconds,
             **(more or {})}  # fmt: skip

    model = savable(run)
    with whole(run, path) as (weights, tables, adapter):

        def add(folder: Path) -> None:
            inner = folder / "train"
            inner.mkdir()
            for name, table in tables.items():
                hub.tensors_to(inner / f"{name}.safetensors", table)
            (inner / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf8")
            if adapter is not None:
                adapters.write_files(folder / "adapter", adapter)

        if run.ranks.leads:
            hub.write(path, weights, run.tokenizer, run.settings.context, add, begin=model.begin, task=model.task,
                      base=run.settings.init_from)  # fmt: skip
    run.ranks.meet()
    return path


@contextmanager
def whole(run: Run, path: Path) -> Iterator[tuple[Any, dict[str, dict[str, Tensor]], adapters.Adapter | None]]:
    """The model that the folder will hold, which is the running mean if there is one and has its adapters merged; what
    training needs; and the adapters by themselves."""
    tables = {"optim": run.optimizer.state(), "rng": run.chance, "guard": run.guard.state()}
    if run.carry is not None:
        tables["carry"] = run.carry.state()
    with nullcontext() if run.average is None else run.average.worn():
        if run.average is not None:
            tables["average"] = run.average.state()
        if run.settings.lora is not None:
            tables["lora"] = lora.kept(run.model)
        if not run.ranks.sharded:
            adapter = adapters.gathered(savable(run), run.settings.init_from) if run.settings.lora else None
            with merged(run.model):
                yield run.model, tables, adapter
            return
        from regard.train.parallel import shards  # takes as long as half of torch

        weights = {name: weight.detach() for name, weight in run.model.named_parameters()}
        with shards.gathered(run.ranks, tables | {"weights": weights}, path) as made:
            weights = made.pop("weights")
            yield shards.whole(run.model, weights) if weights else None, made, None


def load(run: Run, path: Path) -> dict[str, Any]:
    """Bring a run to where the checkpoint was; what state.json said."""
    model, state, found = savable(run), state_of(path), hub.read(path)
    if found.config != model.c:
        raise config.DataError(f"{path}: holds another model than the run's config.toml describes; use its own config")
    if state["recipe"] != said(run):
        where, wrote = path.parent.parent / "config.toml", state.get("regard", "an earlier version")
        if wrote != config.VERSION:
            raise config.ConfigError(f"{where}: saved by {wrote}, whose settings are not those of {config.VERSION}; "
                                     f"resume it there, or begin a new run with --init-from {path}")  # fmt: skip
        raise config.ConfigError(f"{where}: says other things than when the run was saved; put it back, or begin a "
                                 "new run from it")  # fmt: skip
    if state["text"] != run.digest:
        shards = getattr(run.data, "shards", None)
        name = getattr(shards or getattr(run.data, "rows", None), "name", "the data")
        what = "the data" if run.tokenizer is None else "the text"
        raise config.DataError(f"{name}: not {what} that {path} was trained on; bring it back, or begin a new run")
    if run.ranks.sharded:
        from regard.train.parallel.shards import fill, parted
    else:
        fill, parted = hub.fill, lambda path, slots: hub.tensors_from(path)
    with aside(model):
        fill(model, found)
    inner = path / "train"
    if run.settings.lora is not None:
        lora.load(model, hub.tensors_from(inner / "lora.safetensors"))
    run.optimizer.load(parted(inner / "optim.safetensors", run.optimizer.state()))
    run.chance.update(hub.tensors_from(inner / "rng.safetensors"))
    run.guard.load(hub.tensors_from(inner / "guard.safetensors"))
    if run.average is not None:
        run.average.load(parted(inner / "average.safetensors", run.average.state()))
    if run.carry is not None:
        run.carry.load(hub.tensors_from(inner / "carry.safetensors"))
    run.step, run.seconds, run.ended = state["step"], state["seconds"], bool(state.get("ended"))
    run.compile_seconds = float(state.get("compile_seconds") or 0.0)
    run.multiply_in(torch.float32 if state.get("products") == "float32" else torch.bfloat16)
    return state


def savable(run: Run) -> Transformer | Towers:
    if not isinstance(run.model, Transformer | Towers):
        raise TypeError(f"a run of a {type(run.model).__name__} cannot be saved; build its model with regard.build")
    return run.model


def said(run: Run) -> str:
    """A digest of the recipe, but for what a run that goes on may have otherwise."""
    if run.recipe is None:
        return ""
    train = {name: value for name, value in config.tree(run.recipe.train).items()
             if f"train.{name}" not in config.MAY_CHANGE}  # fmt: skip
    return sha256(json.dumps({**config.tree(run.recipe), "train": train}).encode()).hexdigest()


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


def prune(folder: Path, keep: int, last: Path | None = None, best: int | None = None) -> None:
    """Remove all but the newest few whole checkpoints and that of the step `best`, and what is left of others.

    Later ones than `last`, which is known to be good, are not counted: a run that had to go back passed them over.
    """
    hub.sweep(folder)
    whole = [path for path in hub.steps(folder.parent) if (path / NAME).is_file()]
    upto = whole.index(last) + 1 if last in whole else len(whole)
    for old in whole[: max(0, upto - keep)]:
        if best is None or old.name != f"step-{best:06d}":
            with suppress(OSError):  # it takes room, and does no harm
                hub.remove(old)


def point_back(out: Path, best: int | None) -> None:
    """The link `best` as it was on the way: when a run ended it may have been the last step, which will be pruned."""
    if best is not None:
        point(out / "best", out / "checkpoints" / f"step-{best:06d}")
    else:
        with suppress(OSError):
            (out / "best").unlink(missing_ok=True)


def point(link: Path, folder: Path) -> None:
    """A link to a checkpoint beside it, put there in one go; where links cannot be, there is none."""
    aside = link.with_name(f".{link.name}.part")
    with suppress(OSError):
        aside.unlink(missing_ok=True)
        aside.symlink_to(folder.relative_to(link.parent))
        aside.replace(link)
