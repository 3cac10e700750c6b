"""What was promised and what was paid: the cost that `regard.measure` predicts, beside what the run took."""

from typing import Any

from regard import measure
from regard.measure.explain import big, size
from regard.report.run import Run

Row = tuple[str, str, str, str, str]  # what, predicted, measured, by how much that is more or less, a remark


def cost(run: Run, model: Any) -> dict[str, Any]:
    """Rows for people, and where the parameters stand."""
    parts = {name: count for name, count in measure.parameters(model).items() if count}
    if run.recipe is None:
        return {"parts": parts, "rows": [], "absent": "The cost cannot be predicted without config.toml."}
    rows = [*arithmetic(run, model, sum(parts.values())), *step(run), *memory(run), *tokens(run)]
    names = ("what", "predicted", "measured", "difference", "note")
    return {"parts": parts, "rows": [dict(zip(names, row, strict=True)) for row in rows]}


def arithmetic(run: Run, model: Any, parameters: int) -> list[Row]:
    assert run.recipe is not None
    c, each = run.recipe.train, step_seconds(run)
    rows = c.rows
    whole = measure.flops(model, c.context).training_sequence * rows * c.accumulate
    paid, note = "not timed", "matrix products, forward and backward"
    if run.recipe.task.kind != "next":  # rows are of many lengths, and what their padding costs is not known
        return [("parameters", f"{parameters:,}", counted(run), "", ""),
                ("arithmetic of a step", f"at most {big(whole)}FLOP", "", "", f"{note}, if every row were full")]
    if each:
        paid = f"{big(whole / each)}FLOP/s reached"
    return [
        ("parameters", f"{parameters:,}", counted(run), "", ""),
        ("arithmetic of a step", f"{big(whole)}FLOP", paid, "", note),
    ]


def counted(run: Run) -> str:
    found = run.facts.get("parameters")
    return f"{found:,}" if isinstance(found, int) else "not recorded"


def step(run: Run) -> list[Row]:
    """What a calibrated machine promised, or the floor that the matrix products set, beside the time a step took."""
    promised, took = number(run.facts.get("predicted"), "step_seconds"), step_seconds(run)
    if not promised and not took:
        return []
    paid = brief(took) if took else "not timed"
    if promised and said(run).get("calibrated") is True:
        return [("time of a step", brief(promised), paid, difference(promised, took), shares(run))]
    least = f"at least {brief(promised)}" if promised else "not predicted"
    note = f"the matrix products alone would take {100 * promised / took:.0f}% of it; " if promised and took else ""
    return [("time of a step", least, paid, "", f"{note}regard estimate --calibrate makes this a prediction")]


def shares(run: Run) -> str:
    """Where the predicted time goes, the most first."""
    parts = said(run).get("parts")
    known = {str(name): number(parts, name) or 0.0 for name in parts} if isinstance(parts, dict) else {}
    whole = sum(known.values())
    told = [f"{name} {100 * part / whole:.0f}%" for name, part in sorted(known.items(), key=lambda each: -each[1])
            if part > 0.01 * whole]  # fmt: skip
    return ", ".join(told)


def memory(run: Run) -> list[Row]:
    """The same thing on both sides: on a GPU what tensors hold at the peak, else the whole process."""
    promised = number(run.facts.get("predicted"), "memory") if "calibrated" in said(run) else None
    took = number(run.facts.get("measured"), "peak_memory")
    held = size(promised) if promised else "not predicted"
    paid = f"{size(took)} at the peak" if took else "not recorded"
    note = "all tensors on the GPU" if run.facts.get("device") == "cuda" else "the whole process, torch itself included"
    return [("memory", held, paid, difference(promised, took), note)]


def said(run: Run) -> dict[str, Any]:
    """What was predicted; a run of before the calibration kept other things under the same names."""
    found = run.facts.get("predicted")
    return found if isinstance(found, dict) else {}


def difference(promised: float | None, took: float | None) -> str:
    """How much more or less came than was predicted."""
    return f"{round(100 * (took / promised - 1)):+d}%".replace("+0%", "0%") if promised and took else ""


def tokens(run: Run) -> list[Row]:
    read = sum(line["tokens"] for line in run.steps if isinstance(line.get("tokens"), int))
    return [("tokens read", "", f"{read:,}", "", f"in {len(run.steps):,} steps")] if read else []


def step_seconds(run: Run) -> float | None:
    """The middle of the times between logged steps."""
    timed = [(line["step"], line["seconds"]) for line in run.steps if isinstance(line.get("seconds"), float)]
    each = sorted(
        (later - before) / (n - m) for (m, before), (n, later) in zip(timed, timed[1:], strict=False) if n > m
    )
    return each[len(each) // 2] or None if each else None


def number(table: Any, name: str) -> float | None:
    found = table.get(name) if isinstance(table, dict) else None
    return float(found) if isinstance(found, int | float) and found > 0 else None


def brief(seconds: float) -> str:
    """A time for people: 12.3 ms, 4.56 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
