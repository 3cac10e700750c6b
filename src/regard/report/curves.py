"""Training curves and diagnostics of the report: a long log is downsampled to a few hundred points of the same shape.

Downsampling keeps the minimum and maximum of every interval, so that no spike is lost, and both ends. The smoothed line
is computed from all points first.

Diagnostics (gradients and updates by layer, entropy of every head) have a column for each measurement; a layer or head
without a value is a gap.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from regard.report import attention_section
from regard.report.run_data import LoggedRun

MAX_POINTS = 1200  # most points of a curve
SPEEDS = 160  # intervals over which the speed is measured

KNOWN = {"step", "eval_loss", "eval_tokens", "seconds", "whole", "best"}  # fields of an evaluation; the rest are scores

Curve = dict[str, list[float | None]]


def training_curves(run: LoggedRun) -> dict[str, Any]:
    """All curves over steps or seconds, with their numbers."""
    steps = run.steps
    return {
        "loss": log_curve(steps, "loss", smooth=True),
        "validation": log_curve([line for line in run.evaluations if not line.get("whole")], "eval_loss"),
        "final": log_curve(
            sorted((line for line in run.evaluations if line.get("whole")), key=lambda line: line["step"]), "eval_loss"
        ),
        "scores": {name: log_curve([line for line in run.evaluations if not line.get("best")], name)
                   for name in score_names(run.evaluations)},
        "lr": log_curve(steps, "lr"),
        "norm": log_curve(steps, "norm", smooth=True),
        "speed": speed_curve(steps),
        "clipped": clip_events(steps),
        "skipped": skip_events(steps),
        "clip": None if run.recipe is None else run.recipe.train.max_grad_norm,
    }  # fmt: skip


def log_curve(lines: list[dict[str, Any]], name: str, smooth: bool = False) -> Curve:
    """Steps, seconds and values of one quantity in the log; non-finite values are gaps."""
    lines = [line for line in lines if is_number(line.get(name))]
    values = [float(line[name]) for line in lines]
    keep = downsample(values, MAX_POINTS)
    found = {
        "step": [lines[i]["step"] for i in keep],
        "seconds": [lines[i].get("seconds") for i in keep],
        "value": [round_figures_5(values[i]) for i in keep],
    }
    if smooth:
        even = smooth_values(values)
        found["smooth"] = [round_figures_5(even[i]) for i in keep]
    return found


def downsample(values: list[float], most: int) -> list[int]:
    """Indices of at most `most` values: the ends, and the extremes of every interval between."""
    if len(values) <= most:
        return list(range(len(values)))
    stretches = (most - 2) // 2
    keep = {0, len(values) - 1}
    for i in range(stretches):
        part = range(i * len(values) // stretches, (i + 1) * len(values) // stretches)
        order: Callable[[int], tuple[bool, float]] = lambda j: (not math.isfinite(values[j]), values[j])  # noqa: E731
        keep |= {min(part, key=order), max(part, key=lambda j: (math.isfinite(values[j]), values[j]))}
    return sorted(keep)


def smooth_values(values: list[float]) -> list[float]:
    """Moving average over a fiftieth of the curve; non-finite values are skipped."""
    radius = len(values) // 100
    known = [(value, 1) if math.isfinite(value) else (0.0, 0) for value in values]
    sums = [0.0, *accumulate(value for value, _ in known)]
    counts = [0, *accumulate(one for _, one in known)]
    found = []
    for i in range(len(values)):
        reach = min(radius, i)  # symmetric, so that slopes are preserved; the last values average only earlier ones
        start, stop = i - reach, min(i + reach, len(values) - 1) + 1
        found.append((sums[stop] - sums[start]) / max(counts[stop] - counts[start], 1))
    return found


def speed_curve(steps: list[dict[str, Any]]) -> Curve:
    """Tokens per second, over intervals of the run."""
    timed = [line for line in steps if isinstance(line.get("tokens"), int) and isinstance(line.get("seconds"), float)]
    found: Curve = {"step": [], "seconds": [], "value": []}
    width = max(1, len(timed) // SPEEDS)
    for start in range(0, len(timed) - width, width):
        before, after = timed[start], timed[start + width]
        tokens = sum(line["tokens"] for line in timed[start + 1 : start + width + 1])
        if after["seconds"] > before["seconds"]:
            found["step"].append(after["step"])
            found["seconds"].append(after["seconds"])
            found["value"].append(round_figures_5(tokens / (after["seconds"] - before["seconds"])))
    return found


def median_value(curve: Curve) -> float | None:
    """The median value, which pauses do not affect."""
    values = sorted(value for value in curve["value"] if value is not None)
    return values[len(values) // 2] if values else None


def clip_events(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of clipped steps, and some of them, as many as a picture can show."""
    where = [line["step"] for line in steps if line.get("clipped") is True]
    every = max(1, len(where) // 300)
    return {"count": len(where), "of": len(steps), "step": where[::every]}


def skip_events(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Skipped steps: all counts by reason, and the positions of some."""
    lines = [line for line in steps if isinstance(line.get("skipped"), str)]
    every = max(1, len(lines) // 300)
    return {
        "why": {why: [line["step"] for line in lines if line["skipped"] == why]
                for why in dict.fromkeys(line["skipped"] for line in lines)},
        "marks": [{"step": line["step"], "seconds": line.get("seconds"), "why": line["skipped"]}
                  for line in lines[::every]],
    }  # fmt: skip


def score_names(evaluations: list[dict[str, Any]]) -> list[str]:
    """The names of the scores in evaluations, in order."""
    names = dict.fromkeys(name for line in evaluations for name in line)
    return [name for name in names if name not in KNOWN and any(is_number(line.get(name)) for line in evaluations)]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def round_figures_5(value: float) -> float | None:
    """Round to five digits, more than a plot can show."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


LOOKS = 96  # most columns
PARTS = ("encoder_embed", "embed", "encoder", "trunk", "head")  # in the order of computation


def diagnostics_section(run: LoggedRun) -> dict[str, Any]:
    """Tables of diagnostics with row names; empty if none were measured."""
    every = -(-len(run.looks) // LOOKS)
    looks = run.looks[::-1][:: every or 1][::-1]  # the last measurement is always included
    told = [look["health"] for look in looks]
    layers = sorted({name for look in told for name in named_table(look, "layers")}, key=layer_order)
    heads = sorted({(where, head) for look in told for where, some in named_table(look, "heads").items()
                    for head in range(len(some) if isinstance(some, list) and where.count(".") > 1 else 0)},
                   key=head_order)  # fmt: skip
    if not layers:
        return {}
    several = len({where.split(".")[0] for where, _ in heads}) > 1
    return {
        "step": [look["step"] for look in looks],
        "layers": layers,
        **{
            what: [
                [round_or_none(named_table(named_table(look, "layers"), name).get(what)) for look in told]
                for name in layers
            ]
            for what in ("gradient", "update")
        },
        "heads": [attention_section.head_label(where, head, several) for where, head in heads],
        "entropy": [
            [round_or_none(entry_at(named_table(look, "heads").get(where), head)) for look in told]
            for where, head in heads
        ],
    }


def named_table(outer: dict[str, Any], name: str) -> dict[str, Any]:
    found = outer.get(name)
    return found if isinstance(found, dict) else {}


def entry_at(some: Any, place: int) -> Any:
    return some[place] if isinstance(some, list) and place < len(some) else None


def round_or_none(value: Any) -> float | None:
    """A number, or None for a non-finite one, which the log writes as a string."""
    return round_figures_5(float(value)) if is_number(value) else None


def head_order(head: tuple[str, int]) -> tuple[int, int, int]:
    """Sort key of heads: by stack, then layer."""
    whose, layer = attention_section.stack_of(head[0]), head[0].rsplit(".", 2)[1]
    return (
        attention_section.STACK_ORDER.index(whose) if whose in attention_section.STACK_ORDER else 0,
        int(layer) if layer.isdecimal() else 0,
        head[1],
    )


def layer_order(name: str) -> tuple[int, int, str]:
    """Sort key of layers in the order of computation."""
    part, _, rest = name.partition(".")
    layer = rest.partition(".")[0]
    order = PARTS.index(part) if part in PARTS else len(PARTS)
    return order, int(layer) if layer.isdecimal() else 1 << 30, rest
