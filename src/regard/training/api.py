"""fit and resume_fit: train a run in its folder, from the recipe to the last checkpoint, and resume it later.

runs/lab/  config.toml  run.json  log.jsonl  samples.jsonl  checkpoints/step-NNNNNN/  snapshots/step-NNNNNN/
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import config
from regard.config import reader
from regard.config.errors import unwritable_error
from regard.core.layers import product_dtype
from regard.files import atomic
from regard.files.atomic import write_text
from regard.files.content_cache import read_json_table
from regard.files.folder_lock import lock_folder
from regard.hub import locate, read_folder
from regard.training import checkpoint, snapshots, tensorboard
from regard.training.extend_run import describe_rate_change, record_resumption
from regard.training.parallel.process_group import join_process_group
from regard.training.parallel.ranks import ProcessRanks
from regard.training.progress import DataProgress
from regard.training.reproducibility import describe_environment, environment_differences
from regard.training.run import Run
from regard.training.run_files import describe_run, truncate_log
from regard.training.trainer import FitResult, Trainer


def fit(recipe: config.Recipe, out: str | Path, *, command: str = "", quiet: bool = False) -> FitResult:
    """Train a recipe in a folder of its own; with several processes rank 0 locks the folder and writes."""
    out = Path(out)
    with join_process_group(recipe.train) as ranks, hold_folder(out, ranks, new=True):
        files = ("config.toml", "log.jsonl", "checkpoints", "snapshots")
        if ranks.is_main and any((out / name).exists() for name in files):
            raise config.ConfigError(f"{out}: there is a run already; resume it, or choose another folder")
        check_stdin(recipe, ranks)
        if recipe.train.tensorboard:
            tensorboard.check_tensorboard()
        notes: list[str] = []
        with DataProgress(quiet or not ranks.is_main) as counting:
            run = Run.from_recipe(recipe, notice=notes.append, progress=counting, ranks=ranks)
        assert run.recipe is not None
        facts = {
            "format": 1,
            **run_environment(run),
            **(describe_run(run) if ranks.is_main else {}),
            "command": command,
        }
        if ranks.is_main:
            notes += snapshots.disk_notes(run, out)
            write_text(out / "config.toml", reader.to_toml(run.recipe))  # first: from here on the run can be resumed
            create_folder(out / "checkpoints")
        return Trainer(run, out, facts, notes, quiet=quiet).train()


def hold_folder(out: Path, ranks: ProcessRanks, new: bool = False) -> AbstractContextManager[None]:
    """Lock the run folder; with several processes only rank 0 holds the lock."""
    return lock_folder(out, new) if ranks.is_main else nullcontext()


def check_stdin(recipe: config.Recipe, ranks: ProcessRanks) -> None:
    if ranks.size > 1 and reads_stdin(recipe):
        raise config.ConfigError(f"data.source: standard input, which {ranks.size} processes cannot all read; write "
                                 "the text to a file")  # fmt: skip


def reads_stdin(recipe: config.Recipe) -> bool:
    """Whether a text is read from standard input."""
    return any(name == "-" or name.startswith("-.") for name in recipe.data.sources)


def run_environment(run: Run) -> dict[str, Any]:
    return {**describe_environment(run.device), "ranks": run.ranks.size, "parallel": run.ranks.strategy}


def create_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable_error(path, problem) from None


def resume_fit(out: str | Path, overrides: Iterable[str] = (), *, quiet: bool = False) -> FitResult:
    """Resume a run from its newest complete checkpoint, or from the start if there is none, with identical results."""
    out, changes = Path(out), list(overrides)
    for name in (line.partition("=")[0].strip() for line in changes):
        if name not in config.RESUMABLE_SETTINGS:
            raise config.ConfigError(f"{name}: a run keeps its settings, only {', '.join(config.RESUMABLE_SETTINGS)} "
                                     "may "
                                     "change; start a new run for the others")  # fmt: skip
    with join_process_group(read_train_settings(out, changes)) as ranks, hold_folder(out, ranks):
        found = ranks.broadcast(lambda: newest_or_none(out))
        newest = Path(found) if found else None
        with DataProgress(quiet or not ranks.is_main) as counting:
            back = restore_run(out, newest, changes, counting, ranks)
        return Trainer(*back, quiet=quiet, resumed=newest is not None).train()


def read_train_settings(out: Path, changes: list[str]) -> config.Train:
    """The training settings of a run; defaults if its config is missing or invalid, which is reported later."""
    try:
        return config.read_toml(config.Recipe, out / "config.toml", changes).train
    except (config.ConfigError, config.DataError):
        return config.Train()


def newest_or_none(out: Path) -> str:
    """The newest complete checkpoint, or "" if none was saved yet."""
    atomic.recover_folders(out / "checkpoints")
    return "" if has_no_checkpoint(out) else str(locate.newest_checkpoint(out))


def has_no_checkpoint(out: Path) -> bool:
    """Whether a run stopped before its first checkpoint. A finished run without checkpoints is not restarted."""
    known = (out / "config.toml").is_file() and not locate.list_checkpoints(out)
    return known and "measured" not in read_json_table(out / "run.json")


def restore_run(
    out: Path, newest: Path | None, changes: list[str], counting: DataProgress, ranks: ProcessRanks
) -> tuple[Run, Path, dict[str, Any], list[str], dict[str, Any]]:
    """The run from a checkpoint or from its config, its folder, facts for run.json, notices, and the checkpoint's
    state."""
    recipe = config.read_toml(config.Recipe, out / "config.toml", changes)
    check_stdin(recipe, ranks)
    if reads_stdin(recipe) and (sys.stdin is None or sys.stdin.isatty()):
        raise config.DataError(f"{out}: its text came from standard input; pipe the same text in again to resume")
    notes: list[str] = []
    tokenizer = None if newest is None else read_folder.checkpoint_tokenizer(newest)
    run = Run.from_recipe(recipe, tokenizer=tokenizer, notice=notes.append, progress=counting, fresh=newest is None,
                          ranks=ranks)  # fmt: skip
    now = run_environment(run)
    start: dict[str, Any] = {"log": 0, "samples": 0, "surroundings": now}
    state = start if newest is None else checkpoint.load_checkpoint(run, newest)
    if run.products != torch.float32 == product_dtype(run.device.type) and has_lstm(run.model):
        run.multiply_in(torch.float32)
        notes.append("its LSTM cannot be computed in bf16 on this CPU: in fp32 from here on, so the bits differ")
    longer = [line for line in changes if line.partition("=")[0].strip() != "train.snapshots"]
    if longer and run.ended:  # it ended by train.patience, and the user asks for more
        run.ended, state["waited"] = False, 0
    if recipe.train.steps is not None and recipe.train.steps < run.step:
        raise config.ConfigError(f"train.steps: {recipe.train.steps:,}, and {out} has done {run.step:,}; "
                                 "set more, or begin a new run")  # fmt: skip
    if not ranks.is_main:
        return run, out, now, [], state
    create_folder(out / "checkpoints")
    best = (state.get("best") or {}).get("step")
    if recipe.train.keep_best:
        checkpoint.restore_best_link(out, best)
    checkpoint.prune_checkpoints(
        out / "checkpoints", recipe.train.keep_checkpoints, newest, best
    )  # a kill may have come before the last pruning
    snapshots.forget_later_snapshots(out, -1 if newest is None else run.step)
    notes += snapshots.disk_notes(run, out)
    notes += [gap for name in ("log", "samples") if (gap := truncate_log(out / f"{name}.jsonl", state[name]))]
    notes += [
        f"{each}: the bits may differ from here on" for each in environment_differences(state["surroundings"], now)
    ]
    if (before := state["surroundings"].get("ranks", 1)) != ranks.size:
        notes.append(f"ranks were {before} and are {ranks.size}: the same batches, summed in another order")
    end = "is finished; train.steps or train.minutes makes it longer" if run.is_over else "resumes"
    notes.append(f"{out}: {f'{end}, after step {run.step:,}' if newest else 'nothing was saved, so it starts again'}")
    if changes:
        notes += describe_rate_change(run, out / "log.jsonl")
        write_text(out / "config.toml", reader.to_toml(recipe))
    known = read_json_table(out / "run.json") or {"format": 1, **describe_run(run), "started": now["started"]}
    facts = {**known, **{key: now[key] for key in now if key != "started"}}
    return run, out, record_resumption(facts, run.step, changes), notes, state


def has_lstm(model: nn.Module) -> bool:
    """Whether a model has an LSTM: torch cannot emulate a bf16 LSTM, unlike all other layers."""
    return any(isinstance(part, nn.LSTM) for part in model.modules())
