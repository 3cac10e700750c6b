"""Run files, read tolerantly: a report must not fail because the run did.

A line truncated by a crash is skipped and counted; a missing file is empty. `missing` collects notes for the reader of
the report.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard import config

WORDS = ("nan", "inf", "-inf")


@dataclass
class LoggedRun:
    """A run's folder: its recipe, log, samples and facts."""

    path: Path
    recipe: config.Recipe | None = None
    settings: str = ""  # config.toml verbatim
    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    looks: list[dict[str, Any]] = field(default_factory=list)  # training diagnostics
    samples: list[dict[str, Any]] = field(default_factory=list)
    translations: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def final(self) -> dict[str, Any] | None:
        """The last evaluation, preferably over the whole validation data; with train.keep_best that of the best step,
        which is logged last."""
        whole = [line for line in self.evaluations if line.get("whole")] or self.evaluations
        return whole[-1] if whole else None

    @property
    def last_samples(self) -> list[dict[str, Any]]:
        return last_step_lines(self.samples)

    @property
    def last_translations(self) -> list[dict[str, Any]]:
        return last_step_lines(self.translations)


def last_step_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the last step."""
    return [line for line in lines if line["step"] == lines[-1]["step"]]


def read_logged_run(path: Path) -> LoggedRun:
    if not path.is_dir():
        raise config.DataError(f"{path}: no such run; name the folder that `regard train` wrote, such as runs/lab")
    run = LoggedRun(path)
    run.recipe, run.settings = read_recipe_of(path / "config.toml", run.missing)
    log = [restore_numbers(line) for line in json_lines(path / "log.jsonl", run.missing)]
    run.steps = [line for line in log if has_numbers(line, "step", "loss")]
    run.evaluations = [line for line in log if has_numbers(line, "step", "eval_loss")]
    run.looks = [line for line in log if has_numbers(line, "step") and isinstance(line.get("health"), dict)]
    said = list(json_lines(path / "samples.jsonl", run.missing))
    run.samples = [line for line in said if is_sample(line)]
    run.translations = [line for line in said if is_translation(line)]
    run.facts = read_run_facts(path / "run.json", run.missing)
    return run


def read_recipe_of(path: Path, missing: list[str]) -> tuple[config.Recipe | None, str]:
    try:
        written = path.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError):
        missing.append("config.toml could not be read")
        return None, ""
    try:
        return config.read_toml(config.Recipe, path), written
    except config.ConfigError as problem:
        missing.append(f"config.toml is not a recipe that this version reads ({problem})")
        return None, written


def json_lines(path: Path, missing: list[str]) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file."""
    try:
        written = path.read_bytes().decode("utf8", errors="replace")
    except OSError:
        missing.append(f"{path.name} is not there")
        return
    torn = 0
    for line in written.split("\n"):  # not splitlines: a text may contain other line separators
        found = parse_json(line)
        if isinstance(found, dict):
            yield found
        elif line.strip():
            torn += 1
    if torn:
        missing.append(f"{path.name}: {torn} {'line' if torn == 1 else 'lines'} could not be read")


def parse_json(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        return None


def restore_numbers(line: dict[str, Any]) -> dict[str, Any]:
    """A log line with numbers in place of strings such as "nan", which JSON lacks."""
    return {name: float(value) if value in WORDS else value for name, value in line.items()}


def has_numbers(line: dict[str, Any], *names: str) -> bool:
    """Whether a line has a number under each name; `true` is not one."""
    return all(isinstance(line.get(name), int | float) and not isinstance(line[name], bool) for name in names)


def is_sample(line: dict[str, Any]) -> bool:
    known = has_numbers(line, "step", "temperature") and math.isfinite(line["temperature"])
    return known and isinstance(line.get("text"), str) and isinstance(line.get("prompt", ""), str)


def is_translation(line: dict[str, Any]) -> bool:
    return has_numbers(line, "step") and all(isinstance(line.get(name), str) for name in ("source", "text", "target"))


def read_run_facts(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        found = parse_json(path.read_text(encoding="utf8"))
    except (OSError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        missing.append("run.json could not be read")
        return {}
    return found
