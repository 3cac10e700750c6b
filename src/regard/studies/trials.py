"""Trials of a study: one variant and one seed each, an ordinary run in its own folder, so that each resumes.

They go seed by seed: all variants from the first seed, then all from the second. Whatever slows the machine for a
while slows all of them, and a study that is stopped early has a whole table, of fewer seeds.
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

# A ValueError that these rooms raise is a refusal: a setting asks for what cannot be done, and the sentence says which.
MEMORY = "out of memory"
FEW = 3  # steps at the beginning whose times tell of warming up

TrialReporter = Callable[[str], object]


def no_output(line: str) -> None:
    """The default listener: does nothing."""


@dataclass(frozen=True)
class StudyTrial:
    """One variant from one seed."""

    variant: StudyVariant
    seed: int
    path: Path

    @property
    def recipe(self) -> config.Recipe:
        """As it is trained. Texts are not sampled at the end: they would not all be read."""
        made = self.variant.recipe
        assert made is not None
        train = replace(made.train, seed=made.train.seed + self.seed)
        return replace(made, train=train, report=replace(made.report, temperatures=()))


def list_trials(variants: list[StudyVariant], seeds: int, out: Path) -> list[StudyTrial]:
    return [StudyTrial(variant, seed, out / f"{variant.folder}-seed{seed}")
            for seed in range(seeds) for variant in variants]  # fmt: skip


def run_trial(member: StudyTrial, command: str = "") -> dict[str, Any] | FitResult:
    """Train a member to its end, or go on with it; what it found, why it was refused, or how it was interrupted."""
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
            shutil.rmtree(member.path, ignore_errors=True)  # it never was a run
        return {"refused": said} if said else {"refused": bug_sentence(problem), "again": True}  # the others go on
    return done if done.interrupted else trial_results(member.path, done)


def refusal_sentence(problem: BaseException) -> str | None:
    """What to say of a variant that could not be trained; nothing where it is no fault of the variant."""
    if isinstance(problem, UserError):
        return str(problem)
    return MEMORY if is_out_of_memory(problem) else None


def bug_sentence(problem: Exception) -> str:
    """An unexpected exception, in one line; REGARD_DEBUG=1 shows where."""
    if os.environ.get("REGARD_DEBUG"):
        raise problem
    first = next(iter(str(problem).splitlines()), "")
    return f"this is a bug in regard ({type(problem).__name__}: {first[:120]}); set REGARD_DEBUG=1 to see where"


def trial_results(path: Path, done: FitResult) -> dict[str, Any]:
    """What a run that came to its end is remembered by."""
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
    """The median of the times between steps: neither a pause nor the compiler moves it."""
    times = [(line["step"], line["seconds"]) for line in steps]
    each = [later - before for (m, before), (n, later) in zip(times, times[1:], strict=False)
            if n == m + 1 and m >= min(FEW, len(times) // 2)]  # fmt: skip
    return statistics.median(each) if each else None
