"""Checkpoints of a run: the model's folder, and under train/ what is needed to resume exactly.

train/optim.safetensors   the optimizer's tensors, by the name of their weight
train/rng.safetensors     the states of the run's random number generators
train/guard.safetensors   the step guard's statistics of losses and norms
train/carry.safetensors   the carried state of a recurrent model before the next step
train/average.safetensors the EMA in full and the weights themselves, where the folder holds the EMA
train/lora.safetensors    adapters and the weights beneath them, where the folder holds them merged
adapter/                  the trained part of such a run, as `peft` reads it
train/state.json          step, seconds, length of log.jsonl, digest of the data, and the machine
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.files import atomic
from regard.files.manifest import MANIFEST_NAME
from regard.hub import locate, peft_save, read_folder, weights, write_folder
from regard.inference.dual_encoder_model import DualEncoderModel
from regard.inference.model import Model
from regard.training.init import trainable
from regard.training.run import Run, unwrap_prefetch

FORMAT = 1
NEEDED = {"step": int, "seconds": float, "log": int, "samples": int, "text": str, "recipe": str, "surroundings": dict}


def save_checkpoint(run: Run, path: Path, more: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint atomically. All ranks take part, and rank 0 writes."""
    state = {
        "format": FORMAT,
        "step": run.step,
        "seconds": run.seconds,
        "log": 0,
        "samples": 0,
        "text": run.digest,
        "recipe": recipe_digest(run),
        "regard": config.VERSION,
        "surroundings": {},
        "ended": run.ended,
        "products": str(run.products).removeprefix("torch."),
        "compile_seconds": run.compile_seconds,
        **(more or {}),
    }

    with gather_run_state(run, path) as (gathered, tables, adapter):

        def add(folder: Path) -> None:
            inner = folder / "train"
            inner.mkdir()
            for name, table in tables.items():
                weights.save_tensors(inner / f"{name}.safetensors", table)
            (inner / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf8")
            if adapter is not None:
                peft_save.write_adapter_files(folder / "adapter", adapter)

        write_model(run, path, gathered, add)
    run.ranks.barrier()
    return path


def write_model(run: Run, path: Path, gathered: Any, more: Callable[[Path], object] | None = None) -> None:
    """Rank 0 writes the model's folder; `more` adds files to it before its manifest is written."""
    model = check_savable(run)
    if run.ranks.is_main:
        write_folder.save_model(
            path,
            gathered,
            run.tokenizer,
            run.settings.context,
            more,
            begin=model.decoder_start_id,
            task=model.task,
            base=run.settings.init_from,
        )


@contextmanager
def gather_run_state(
    run: Run, path: Path, weights_only: bool = False
) -> Iterator[tuple[Any, dict[str, dict[str, Tensor]], peft_save.PeftAdapter | None]]:
    """The model to be saved (with EMA weights if there are any), the tensors that training needs, and the adapters."""
    tables: dict[str, dict[str, Tensor]] = {}
    if not weights_only:
        tables |= {"optim": run.optimizer.state(), "rng": run.rng_state, "guard": run.guard.state()}
    if run.carried_state is not None and not weights_only:
        tables["carry"] = run.carried_state.state()
    with nullcontext() if run.ema is None else run.ema.applied():
        if run.ema is not None and not weights_only:
            tables["average"] = run.ema.state()
        lora = run.settings.lora is not None and not weights_only
        if lora:
            tables["lora"] = trainable.lora_state(run.model)
        if not run.ranks.is_sharded:
            adapter = peft_save.collect_adapter(check_savable(run), run.settings.init_from) if lora else None
            yield run.model, tables, adapter
            return
        from regard.training.parallel import sharded_checkpoint  # importing it takes as long as half of torch

        weights = {name: weight.detach() for name, weight in run.model.named_parameters()}
        with sharded_checkpoint.gather_tables(run.ranks, tables | {"weights": weights}, path) as made:
            weights = made.pop("weights")
            yield sharded_checkpoint.unshard_model(run.model, weights) if weights else None, made, None


def load_checkpoint(run: Run, path: Path) -> dict[str, Any]:
    """Restore a run from a checkpoint; returns the contents of state.json."""
    model, state, found = check_savable(run), read_state(path), read_folder.read_model_folder(path)
    if found.config != model.c:
        raise config.DataError(f"{path}: has another model than the run's config.toml describes; use its own config")
    if state["recipe"] != recipe_digest(run):
        where, wrote = path.parent.parent / "config.toml", state.get("regard", "an earlier version")
        if wrote != config.VERSION:
            raise config.ConfigError(f"{where}: saved by {wrote}, whose settings are not those of {config.VERSION}; "
                                     f"resume it there, or begin a new run with --init-from {path}")  # fmt: skip
        raise config.ConfigError(f"{where}: its settings are not those of the saved run; restore it, or begin a "
                                 "new run from it")  # fmt: skip
    if state["text"] != run.digest:
        source = unwrap_prefetch(run.data)
        name = getattr(getattr(source, "shards", None) or getattr(source, "rows", None), "name", "the data")
        what = "the data" if run.tokenizer is None else "the text"
        raise config.DataError(f"{name}: not {what} that {path} was trained on; bring it back, or begin a new run")
    fill: Callable[[Any, Any], object] = read_folder.load_weights
    parted: Callable[[Path, Any], dict[str, Tensor]] = lambda path, slots: weights.load_tensors_lazy(path)  # noqa: E731
    if run.ranks.is_sharded:
        from regard.training.parallel import sharded_checkpoint

        fill, parted = sharded_checkpoint.load_sharded, sharded_checkpoint.read_local_part
    fill(model, found)
    inner = path / "train"
    if run.settings.lora is not None:
        trainable.load_lora_state(model, weights.load_tensors_lazy(inner / "lora.safetensors"))
    run.optimizer.load(parted(inner / "optim.safetensors", run.optimizer.state()))
    run.rng_state.update(weights.load_tensors_lazy(inner / "rng.safetensors"))
    run.guard.load(weights.load_tensors_lazy(inner / "guard.safetensors"))
    if run.ema is not None:
        run.ema.load(parted(inner / "average.safetensors", run.ema.state()))
    if run.carried_state is not None:
        run.carried_state.load(weights.load_tensors_lazy(inner / "carry.safetensors"))
    run.step, run.seconds, run.ended = state["step"], state["seconds"], bool(state.get("ended"))
    run.compile_seconds = float(state.get("compile_seconds") or 0.0)
    run.multiply_in(torch.float32 if state.get("products") == "float32" else torch.bfloat16)
    return state


def check_savable(run: Run) -> Model | DualEncoderModel:
    if not isinstance(run.model, Model | DualEncoderModel):
        raise TypeError(f"a run of a {type(run.model).__name__} cannot be saved; build its model with regard.build")
    return run.model


def recipe_digest(run: Run) -> str:
    """A digest of the recipe without the settings that may change when a run resumes."""
    if run.recipe is None:
        return ""
    train = {name: value for name, value in config.to_dict(run.recipe.train).items()
             if f"train.{name}" not in config.RESUMABLE_SETTINGS}  # fmt: skip
    return sha256(json.dumps({**config.to_dict(run.recipe), "train": train}).encode()).hexdigest()


def read_state(path: Path) -> dict[str, Any]:
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


def prune_checkpoints(folder: Path, keep: int, last: Path | None = None, best: int | None = None) -> None:
    """Remove all but the newest few complete checkpoints and that of step `best`, and the remains of others.

    Checkpoints after `last`, the newest valid one, do not count: resuming skipped them as damaged.
    """
    atomic.recover_folders(folder)
    whole = [path for path in locate.list_checkpoints(folder.parent) if (path / MANIFEST_NAME).is_file()]
    upto = whole.index(last) + 1 if last in whole else len(whole)
    for old in whole[: max(0, upto - keep)]:
        if best is None or old.name != f"step-{best:06d}":
            with suppress(OSError):  # a leftover costs disk space and does no harm
                atomic.remove_folder(old)


def restore_best_link(out: Path, best: int | None) -> None:
    """Point the link `best` to the best step during training: a finished run may link its last step, to be pruned."""
    if best is not None:
        link_checkpoint(out / "best", out / "checkpoints" / f"step-{best:06d}")
    else:
        with suppress(OSError):
            (out / "best").unlink(missing_ok=True)


def link_checkpoint(link: Path, folder: Path) -> None:
    """Link to a checkpoint beside it, replaced atomically; without a link if the file system has none."""
    with suppress(OSError):
        atomic.replace_link(link, folder.relative_to(link.parent))
