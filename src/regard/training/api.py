"""A whole run in its folder: train, log, evaluate, sample, save, and go on with it another day.

    runs/lab/  config.toml  run.json  log.jsonl  samples.jsonl  checkpoints/step-NNNNNN/
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
from regard.config.errors import unwritable
from regard.core.layers import product_dtype
from regard.hub import folder as hub
from regard.train import board, checkpoint
from regard.train.alone import alone
from regard.train.device import differences, surroundings
from regard.train.display import Counting
from regard.train.extension import add_resumption, describe_rate_change
from regard.train.facts import described, read_facts, write_text
from regard.train.fitting import Fitting, Result
from regard.train.log import cut
from regard.train.parallel import Ranks, together
from regard.train.run import Run


def fit(recipe: config.Recipe, out: str | Path, *, command: str = "", quiet: bool = False) -> Result:
    """Train what a recipe describes, in a folder of its own; of many processes the first one holds it, and writes."""
    out = Path(out)
    with together(recipe.train) as ranks, holding(out, ranks, new=True):
        if ranks.leads and any((out / name).exists() for name in ("config.toml", "log.jsonl", "checkpoints")):
            raise config.ConfigError(f"{out}: there is a run already; resume it, or choose another folder")
        check_spoken(recipe, ranks)
        if recipe.train.board:
            board.check()
        notes: list[str] = []
        with Counting(quiet or not ranks.leads) as counting:
            run = Run.from_recipe(recipe, notice=notes.append, progress=counting, ranks=ranks)
        assert run.recipe is not None
        facts = {"format": 1, **around(run), **(described(run) if ranks.leads else {}), "command": command}
        if ranks.leads:
            write_text(out / "config.toml", reader.text(run.recipe))  # first: from here on it can be resumed
            make_folder(out / "checkpoints")
        return Fitting(run, out, facts, notes, quiet=quiet).go()


def holding(out: Path, ranks: Ranks, new: bool = False) -> AbstractContextManager[None]:
    """Of many processes one holds the folder for all."""
    return alone(out, new) if ranks.leads else nullcontext()


def check_spoken(recipe: config.Recipe, ranks: Ranks) -> None:
    if ranks.size > 1 and spoken(recipe):
        raise config.ConfigError(f"data.source: standard input, which {ranks.size} processes cannot all read; write "
                                 "the text to a file")  # fmt: skip


def spoken(recipe: config.Recipe) -> bool:
    """Whether a text comes from standard input."""
    return any(name == "-" or name.startswith("-.") for name in recipe.data.sources)


def around(run: Run) -> dict[str, Any]:
    return {**surroundings(run.device), "ranks": run.ranks.size, "parallel": run.ranks.way}


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(path, problem) from None


def resume(out: str | Path, overrides: Iterable[str] = (), *, quiet: bool = False) -> Result:
    """Go on with a run from its newest whole checkpoint, or from its beginning, as if nothing had happened."""
    out, changes = Path(out), list(overrides)
    for name in (line.partition("=")[0].strip() for line in changes):
        if name not in config.MAY_CHANGE:
            raise config.ConfigError(f"{name}: a run goes on as it began, only {', '.join(config.MAY_CHANGE)} may "
                                     "change; begin a new run for the rest")  # fmt: skip
    with together(settings(out, changes)) as ranks, holding(out, ranks):
        found = ranks.told(lambda: last(out))
        newest = Path(found) if found else None
        with Counting(quiet or not ranks.leads) as counting:
            back = restored(out, newest, changes, counting, ranks)
        return Fitting(*back, quiet=quiet, resumed=newest is not None).go()


def settings(out: Path, changes: list[str]) -> config.Train:
    """How a run is trained; of one that is not there or not as it should be the usual ones, until that is told."""
    try:
        return config.read(config.Recipe, out / "config.toml", changes).train
    except (config.ConfigError, config.DataError):
        return config.Train()


def last(out: Path) -> str:
    """The newest whole checkpoint, or nothing if none was saved yet."""
    hub.sweep(out / "checkpoints")
    return "" if unsaved(out) else str(hub.newest(out))


def unsaved(out: Path) -> bool:
    """Whether a run was stopped before its first checkpoint; one that ended has lost them, and is not begun again."""
    known = (out / "config.toml").is_file() and not hub.steps(out)
    return known and "measured" not in read_facts(out / "run.json")


def restored(
    out: Path, newest: Path | None, changes: list[str], counting: Counting, ranks: Ranks
) -> tuple[Run, Path, dict[str, Any], list[str], dict[str, Any]]:
    """The run as a checkpoint has it, or as its config begins it, what is to be said, and the checkpoint's state."""
    recipe = config.read(config.Recipe, out / "config.toml", changes)
    check_spoken(recipe, ranks)
    if spoken(recipe) and (sys.stdin is None or sys.stdin.isatty()):
        raise config.DataError(f"{out}: its text came from standard input; pipe the same text in again to resume")
    notes: list[str] = []
    tokenizer = None if newest is None else hub.words(newest)
    run = Run.from_recipe(recipe, tokenizer=tokenizer, notice=notes.append, progress=counting, fresh=newest is None,
                          ranks=ranks)  # fmt: skip
    now = around(run)
    start: dict[str, Any] = {"log": 0, "samples": 0, "surroundings": now}
    state = start if newest is None else checkpoint.load(run, newest)
    if run.products != torch.float32 == product_dtype(run.device.type) and has_lstm(run.model):
        run.multiply_in(torch.float32)
        notes.append("its LSTM cannot be computed in bf16 on this CPU: in fp32 from here on, so the bits differ")
    if changes and run.ended:  # by train.patience, and it is asked to go on
        run.ended, state["waited"] = False, 0
    if recipe.train.steps is not None and recipe.train.steps < run.step:
        raise config.ConfigError(f"train.steps: {recipe.train.steps:,}, and {out} has done {run.step:,}; "
                                 "ask for more, or begin a new run")  # fmt: skip
    if not ranks.leads:
        return run, out, now, [], state
    make_folder(out / "checkpoints")
    best = (state.get("best") or {}).get("step")
    if recipe.train.best:
        checkpoint.point_back(out, best)
    checkpoint.prune(out / "checkpoints", recipe.train.keep, newest, best)  # it may have been stopped before it could
    notes += [gap for name in ("log", "samples") if (gap := cut(out / f"{name}.jsonl", state[name]))]
    notes += [f"{each}: the bits may differ from here on" for each in differences(state["surroundings"], now)]
    if (before := state["surroundings"].get("ranks", 1)) != ranks.size:
        notes.append(f"ranks were {before} and are {ranks.size}: the same batches, summed in another order")
    end = "is finished; train.steps or train.minutes makes it longer" if run.over else "goes on"
    notes.append(f"{out}: {f'{end}, after step {run.step:,}' if newest else 'nothing was saved, so it begins again'}")
    if changes:
        notes += describe_rate_change(run, out / "log.jsonl")
        write_text(out / "config.toml", reader.text(recipe))
    known = read_facts(out / "run.json") or {"format": 1, **described(run), "started": now["started"]}
    facts = {**known, **{key: now[key] for key in now if key != "started"}}
    return run, out, add_resumption(facts, run.step, changes), notes, state


def has_lstm(model: nn.Module) -> bool:
    """torch has no emulation of a bf16 LSTM, where it has one of all other layers."""
    return any(isinstance(part, nn.LSTM) for part in model.modules())
