"""Run history: opens a recipe, or a run at its newest checkpoint, and checks the run's log.

The log shows skipped steps, and a validation loss that rises during training.
"""

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from regard import config
from regard.doctor.case import DoctorCase, DoctorFinding, finding_note, finding_ok, finding_problem
from regard.hub import locate, read_folder
from regard.training.run import Run
from regard.zoo.recipe import read_recipe

OFTEN = 0.05  # share of all steps
WORSE = 1.1  # times the best validation loss


def check_history(case: DoctorCase) -> DoctorFinding | None:
    if not case.log:
        return None
    steps = [line for line in case.log if "norm" in line]
    passed = [line for line in steps if "skipped" in line]
    if len(passed) > OFTEN * len(steps):
        return finding_problem(f"{len(passed):,} of {len(steps):,} steps were skipped, the last of them step "
                     f"{passed[-1]['step']:,}: {passed[-1]['skipped']}", "a lower train.optimizer.lr")  # fmt: skip
    # the line marked best repeats an earlier step
    scores = [line for line in case.log if isinstance(line.get("eval_loss"), float) and not line.get("best")]
    best = min(scores, key=lambda line: line["eval_loss"], default=None)
    if best is not None and scores[-1]["eval_loss"] > WORSE * best["eval_loss"]:
        return finding_note(f"validation was {best['eval_loss']:.3f} at step {best['step']:,} and is "
                    f"{scores[-1]['eval_loss']:.3f} at step {scores[-1]['step']:,}: it overfits",
                    f"train.steps={best['step']} or train.keep_best=true")  # fmt: skip
    return finding_ok(f"{len(steps):,} steps, {len(passed):,} skipped{overfit_advice(scores, best)}")


def overfit_advice(scores: list[dict[str, Any]], best: dict[str, Any] | None) -> str:
    return "" if best is None else f"; validation is {scores[-1]['eval_loss']:.3f}, at best {best['eval_loss']:.3f}"


def open_run_or_recipe(
    thing: str | Path, overrides: Iterable[str] = (), notice: Callable[[str], object] = warnings.warn
) -> tuple[Run, list[dict[str, Any]]]:  # fmt: skip
    """The run, and the lines of its log; nothing is written to its folder."""
    path, changes = Path(thing), list(overrides)
    if not (path / "config.toml").is_file():
        return Run.from_recipe(read_recipe(thing, changes), notice=notice), []
    if changes:
        raise config.ConfigError(f"{changes[0]}: a run is examined as it is; `regard doctor {path}/config.toml "
                                 f"{changes[0]}` examines a new one")  # fmt: skip
    recipe = config.read_toml(config.Recipe, path / "config.toml")
    if not locate.list_checkpoints(path):
        return Run.from_recipe(recipe, notice=notice), log_lines(path / "log.jsonl")
    newest = locate.newest_checkpoint(path)
    run = Run.from_recipe(recipe, tokenizer=read_folder.checkpoint_tokenizer(newest), notice=notice, fresh=False)
    run.load(newest)
    return run, log_lines(path / "log.jsonl")


def log_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a log: a run may be writing the last one."""
    found = []
    for line in path.read_text(encoding="utf8").splitlines() if path.is_file() else []:
        try:
            read = json.loads(line)
        except ValueError:
            continue
        found.append(read if isinstance(read, dict) else {})
    return found
