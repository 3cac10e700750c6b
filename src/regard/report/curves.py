"""Curves that stay small: a long log becomes a few hundred points that look the same.

A curve is thinned by keeping the lowest and the highest point of every stretch, so that no spike is lost, and its
ends. The smooth line is made from all points before any is dropped.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from regard.report.run import Run

POINTS = 1200  # of one curve, at most
SPEEDS = 160  # stretches that the speed is measured over

KNOWN = {"step", "eval_loss", "eval_tokens", "seconds", "whole", "best"}  # of an evaluation; the rest are scores

Curve = dict[str, list[float | None]]


def curves(run: Run) -> dict[str, Any]:
    """Everything that is drawn over steps or seconds, with the numbers themselves."""
    steps = run.steps
    return {
        "loss": curve(steps, "loss", smooth=True),
        "validation": curve([line for line in run.evaluations if not line.get("whole")], "eval_loss"),
        "final": curve(sorted((line for line in run.evaluations if line.get("whole")), key=lambda line: line["step"]),
                       "eval_loss"),
        "scores": {name: curve([line for line in run.evaluations if not line.get("best")], name)
                   for name in scores(run.evaluations)},
        "lr": curve(steps, "lr"),
        "norm": curve(steps, "norm", smooth=True),
        "speed": speed(steps),
        "clipped": clipped(steps),
        "skipped": skipped(steps),
        "clip": None if run.recipe is None else run.recipe.train.clip,
    }  # fmt: skip


def curve(lines: list[dict[str, Any]], name: str, smooth: bool = False) -> Curve:
    """Steps, seconds and values of one number in the log; what is not finite is a gap."""
    lines = [line for line in lines if number(line.get(name))]
    values = [float(line[name]) for line in lines]
    keep = thinned(values, POINTS)
    found = {
        "step": [lines[i]["step"] for i in keep],
        "seconds": [lines[i].get("seconds") for i in keep],
        "value": [figures(values[i]) for i in keep],
    }
    if smooth:
        even = smoothed(values)
        found["smooth"] = [figures(even[i]) for i in keep]
    return found


def thinned(values: list[float], most: int) -> list[int]:
    """Indices of at most `most` values: the ends, and the extremes of every stretch between."""
    if len(values) <= most:
        return list(range(len(values)))
    stretches = (most - 2) // 2
    keep = {0, len(values) - 1}
    for i in range(stretches):
        part = range(i * len(values) // stretches, (i + 1) * len(values) // stretches)
        order: Callable[[int], tuple[bool, float]] = lambda j: (not math.isfinite(values[j]), values[j])  # noqa: E731
        keep |= {min(part, key=order), max(part, key=lambda j: (math.isfinite(values[j]), values[j]))}
    return sorted(keep)


def smoothed(values: list[float]) -> list[float]:
    """The mean over a stretch around each value, a fiftieth of the curve wide; what is not finite is passed over."""
    radius = len(values) // 100
    known = [(value, 1) if math.isfinite(value) else (0.0, 0) for value in values]
    sums = [0.0, *accumulate(value for value, _ in known)]
    counts = [0, *accumulate(one for _, one in known)]
    found = []
    for i in range(len(values)):
        reach = min(radius, i)  # as far on both sides, so that a slope stays one; the last values lean on those before
        start, stop = i - reach, min(i + reach, len(values) - 1) + 1
        found.append((sums[stop] - sums[start]) / max(counts[stop] - counts[start], 1))
    return found


def speed(steps: list[dict[str, Any]]) -> Curve:
    """Tokens a second, over stretches of the run."""
    timed = [line for line in steps if isinstance(line.get("tokens"), int) and isinstance(line.get("seconds"), float)]
    found: Curve = {"step": [], "seconds": [], "value": []}
    width = max(1, len(timed) // SPEEDS)
    for start in range(0, len(timed) - width, width):
        before, after = timed[start], timed[start + width]
        tokens = sum(line["tokens"] for line in timed[start + 1 : start + width + 1])
        if after["seconds"] > before["seconds"]:
            found["step"].append(after["step"])
            found["seconds"].append(after["seconds"])
            found["value"].append(figures(tokens / (after["seconds"] - before["seconds"])))
    return found


def typical(curve: Curve) -> float | None:
    """The value in the middle: a pause does not move it."""
    values = sorted(value for value in curve["value"] if value is not None)
    return values[len(values) // 2] if values else None


def clipped(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """How often the gradient was clipped, and where: as many steps as can be told apart in a picture."""
    where = [line["step"] for line in steps if line.get("clipped") is True]
    every = max(1, len(where) // 300)
    return {"count": len(where), "of": len(steps), "step": where[::every]}


def skipped(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The steps that were not taken, in full by their reasons, and some of them where they were."""
    lines = [line for line in steps if isinstance(line.get("skipped"), str)]
    every = max(1, len(lines) // 300)
    return {
        "why": {why: [line["step"] for line in lines if line["skipped"] == why]
                for why in dict.fromkeys(line["skipped"] for line in lines)},
        "marks": [{"step": line["step"], "seconds": line.get("seconds"), "why": line["skipped"]}
                  for line in lines[::every]],
    }  # fmt: skip


def scores(evaluations: list[dict[str, Any]]) -> list[str]:
    """The names of the scores that evaluations have, in their order."""
    names = dict.fromkeys(name for line in evaluations for name in line)
    return [name for name in names if name not in KNOWN and any(number(line.get(name)) for line in evaluations)]


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def figures(value: float) -> float | None:
    """Five figures are more than an eye can see."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
