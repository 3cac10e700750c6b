"""Extending a run: how new settings change its learning rate, and the record of it in run.json."""

import json
import os
from pathlib import Path
from typing import Any

from regard.training.run import Run

TAIL = 1 << 16  # bytes at the end of a log that contain the last steps
ALIKE = 0.05  # relative difference below which learning rates count as equal


def describe_rate_change(run: Run, log: Path) -> list[str]:
    """A sentence if the learning rate jumps because the schedule follows the new length of the run."""
    before = last_rate(log)
    if before is None or run.is_over or run.step < run.settings.schedule.warmup:  # during warmup it rises anyway
        return []
    now = run.optimizer.base[-1] * run.schedule(run.step + 1, run.progress)
    if abs(now - before) <= ALIKE * max(now, before):
        return []
    way = "rises" if now > before else "falls"
    return [f"the learning rate {way} from {before:.3g} to {now:.3g}: train.schedule {run.settings.schedule.kind} "
            f"follows the new length of the run, of which {run.progress:.0%} are done"]  # fmt: skip


def last_rate(log: Path) -> float | None:
    """The learning rate of the last step in a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and isinstance(told.get("lr"), float):
            return float(told["lr"])
    return None


def record_resumption(facts: dict[str, Any], step: int, changes: list[str]) -> dict[str, Any]:
    """Record a resumption in the facts of run.json: after which step, with which changed settings."""
    return {**facts, "resumed": [*facts.get("resumed", []), {"step": step, "changes": changes}]} if changes else facts
