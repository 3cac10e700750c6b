"""Trials of a study: one variant and one seed each, an ordinary run in its own folder, so that each resumes.

They run seed by seed: all variants from the first seed, then all from the second. Temporary slowness of the machine
affects all variants, and a study that is stopped early has a complete table, of fewer seeds.
"""

import json
import os
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import UserError, is_out_of_memory
from regard.files.content_cache import read_json_table
from regard.hub import locate
from regard.studies.study import StudyVariant
from regard.training.api import fit, resume_fit
from regard.training.trainer import FitResult

# A ValueError raised in these packages is a refusal: a setting that cannot work, with the reason in its message.
MEMORY = "out of memory"
FEW = 3  # first steps whose times are excluded as warm-up

TrialReporter = Callable[[str], object]


def no_output(line: str) -> None:
    """The default listener: does nothing."""


@dataclass(frozen=True)
class StudyTrial:
    """A trial: one variant trained from one seed."""

    variant: StudyVariant
    seed: int
    path: Path

    @property
    def recipe(self) -> config.Recipe:
        """The trial's recipe, without final samples, since a study would have too many to read."""
        made = self.variant.recipe
        assert made is not None
        train = replace(made.train, seed=made.train.seed + self.seed)
        return replace(made, train=train, report=replace(made.report, temperatures=()))


def list_trials(variants: list[StudyVariant], seeds: int, out: Path) -> list[StudyTrial]:
    return [StudyTrial(variant, seed, out / f"{variant.folder}-seed{seed}")
            for seed in range(seeds) for variant in variants]  # fmt: skip


def run_trial(member: StudyTrial, command: str = "") -> dict[str, Any] | FitResult:
    """Train a trial to its end, or resume it; returns its results, the reason of a refusal, or how it was
    interrupted."""
    if member.variant.recipe is None:
        return {"refused": str(member.variant.problem)}
    try:
        if (member.path / "config.toml").is_file():
            done = resume_fit(member.path, quiet=True)
        else:
            done = fit(member.recipe, member.path, command=command, quiet=True)
    except Exception as problem:
        said = refusal_sentence(problem)
        if not locate.list_checkpoints(member.path):
            shutil.rmtree(member.path, ignore_errors=True)  # no step was taken
        return {"refused": said} if said else {"refused": bug_sentence(problem), "again": True}  # the others continue
    return done if done.interrupted else trial_results(member.path, done)


def refusal_sentence(problem: BaseException) -> str | None:
    """The reason why a variant could not be trained; None if the variant is not the cause."""
    if isinstance(problem, UserError):
        return str(problem)
    return MEMORY if is_out_of_memory(problem) else None


def bug_sentence(problem: Exception) -> str:
    """An unexpected exception in one line; REGARD_DEBUG=1 shows the traceback."""
    if os.environ.get("REGARD_DEBUG"):
        raise problem
    first = next(iter(str(problem).splitlines()), "")
    return f"this is a bug in regard ({type(problem).__name__}: {first[:120]}); set REGARD_DEBUG=1 to see where"


def trial_results(path: Path, done: FitResult) -> dict[str, Any]:
    """The stored results of a finished run."""
    facts, steps = read_json_table(path / "run.json"), logged_steps(path / "log.jsonl")
    return {
        "parameters": facts.get("parameters"),
        "kernels": facts.get("kernels"),
        "steps": done.steps,
        "tokens": sum(line.get("tokens", 0) for line in steps),
        "loss": done.loss,
        "validation": done.eval_loss,
        "scores": done.scores or {},
        "seconds": done.seconds,
        "step_seconds": median_step_seconds(steps),
    }


def logged_steps(path: Path) -> list[dict[str, Any]]:
    """The steps in a log."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf8").splitlines())
    return [line for line in lines if "loss" in line]


def median_step_seconds(steps: list[dict[str, Any]]) -> float | None:
    """The median time between steps, which neither pauses nor compiling affect."""
    times = [(line["step"], line["seconds"]) for line in steps]
    each = [later - before for (m, before), (n, later) in zip(times, times[1:], strict=False)
            if n == m + 1 and m >= min(FEW, len(times) // 2)]  # fmt: skip
    return statistics.median(each) if each else None
