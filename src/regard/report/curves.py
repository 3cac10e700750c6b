"""The report's curves and training diagnostics: a long log becomes a few hundred points that look the same.

A curve is thinned by keeping the lowest and the highest point of every stretch, so that no spike is lost, and its
ends. The smooth line is made from all points before any is dropped.

Diagnostics (gradients and updates by layer, entropy of every head) have a column for each time they were taken; a layer
or head that is missing at one time is a gap.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from regard.report import attention_section
from regard.report.run_data import LoggedRun

MAX_POINTS = 1200  # of one curve, at most
SPEEDS = 160  # stretches that the speed is measured over

KNOWN = {"step", "eval_loss", "eval_tokens", "seconds", "whole", "best"}  # of an evaluation; the rest are scores

Curve = dict[str, list[float | None]]


def training_curves(run: LoggedRun) -> dict[str, Any]:
    """Everything that is drawn over steps or seconds, with the numbers themselves."""
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
    """Steps, seconds and values of one number in the log; what is not finite is a gap."""
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


def smooth_values(values: list[float]) -> list[float]:
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


def speed_curve(steps: list[dict[str, Any]]) -> Curve:
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
            found["value"].append(round_figures_5(tokens / (after["seconds"] - before["seconds"])))
    return found


def median_value(curve: Curve) -> float | None:
    """The value in the middle: a pause does not move it."""
    values = sorted(value for value in curve["value"] if value is not None)
    return values[len(values) // 2] if values else None


def clip_events(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """How often the gradient was clipped, and where: as many steps as can be told apart in a picture."""
    where = [line["step"] for line in steps if line.get("clipped") is True]
    every = max(1, len(where) // 300)
    return {"count": len(where), "of": len(steps), "step": where[::every]}


def skip_events(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The steps that were not taken, in full by their reasons, and some of them where they were."""
    lines = [line for line in steps if isinstance(line.get("skipped"), str)]
    every = max(1, len(lines) // 300)
    return {
        "why": {why: [line["step"] for line in lines if line["skipped"] == why]
                for why in dict.fromkeys(line["skipped"] for line in lines)},
        "marks": [{"step": line["step"], "seconds": line.get("seconds"), "why": line["skipped"]}
                  for line in lines[::every]],
    }  # fmt: skip


def score_names(evaluations: list[dict[str, Any]]) -> list[str]:
    """The names of the scores that evaluations have, in their order."""
    names = dict.fromkeys(name for line in evaluations for name in line)
    return [name for name in names if name not in KNOWN and any(is_number(line.get(name)) for line in evaluations)]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def round_figures_5(value: float) -> float | None:
    """Five figures are more than an eye can see."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


LOOKS = 96  # columns, at most
PARTS = ("encoder_embed", "embed", "encoder", "trunk", "head")  # as they follow each other


def diagnostics_section(run: LoggedRun) -> dict[str, Any]:
    """Tables of numbers with the names of their rows; empty where none were taken."""
    every = -(-len(run.looks) // LOOKS)
    looks = run.looks[::-1][:: every or 1][::-1]  # the last one is always among them
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
    """What is not finite is written as a word, and drawn as a gap."""
    return round_figures_5(float(value)) if is_number(value) else None


def head_order(head: tuple[str, int]) -> tuple[int, int, int]:
    """Heads by whose they are, then layer by layer."""
    whose, layer = attention_section.stack_of(head[0]), head[0].rsplit(".", 2)[1]
    return (
        attention_section.STACK_ORDER.index(whose) if whose in attention_section.STACK_ORDER else 0,
        int(layer) if layer.isdecimal() else 0,
        head[1],
    )


def layer_order(name: str) -> tuple[int, int, str]:
    """Layers in the order in which a token meets them."""
    part, _, rest = name.partition(".")
    layer = rest.partition(".")[0]
    order = PARTS.index(part) if part in PARTS else len(PARTS)
    return order, int(layer) if layer.isdecimal() else 1 << 30, rest
