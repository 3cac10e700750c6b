"""What was promised and what was paid: the cost that `regard.measure` predicts, beside what the run took."""

from typing import Any

from regard import measure
from regard.measure.explain import big, size
from regard.report.run import Run


def cost(run: Run, model: Any) -> dict[str, Any]:
    """Rows of (what, predicted, measured, a remark), written for people, and where the parameters stand."""
    parts = {name: count for name, count in measure.parameters(model).items() if count}
    if run.recipe is None:
        return {"parts": parts, "rows": [], "absent": "The cost cannot be predicted without config.toml."}
    train = run.recipe.train
    bill = measure.estimate(model.c, batch=train.batch, context=train.context, optimizer=train.optimizer)
    rows = [*arithmetic(run, bill, train.accumulate), *step(run), *memory(run, bill), *tokens(run)]
    names = ("what", "predicted", "measured", "note")
    return {"parts": parts, "rows": [dict(zip(names, row, strict=True)) for row in rows]}


Row = tuple[str, str, str, str]


def arithmetic(run: Run, bill: measure.Estimate, accumulate: int) -> list[Row]:
    whole = bill.step_flops * accumulate
    rows = [("parameters", f"{bill.parameters:,}", counted(run), "")]
    rate = f"{big(whole / each)}FLOP/s reached" if (each := step_seconds(run)) else "not timed"
    return [*rows, ("arithmetic of a step", f"{big(whole)}FLOP", rate, "matrix products, forward and backward")]


def counted(run: Run) -> str:
    found = run.facts.get("parameters")
    return f"{found:,}" if isinstance(found, int) else "not recorded"


def step(run: Run) -> list[Row]:
    """The floor that the matrix products set, beside the time a step took."""
    floor, took = number(run.facts.get("predicted"), "step_seconds"), step_seconds(run)
    if not floor and not took:
        return []
    least = f"at least {brief(floor)}" if floor else "not predicted"
    paid = brief(took) if took else "not timed"
    note = f"the matrix products alone would take {100 * floor / took:.0f}% of it" if floor and took else ""
    return [("time of a step", least, paid, note)]


def memory(run: Run, bill: measure.Estimate) -> list[Row]:
    took = number(run.facts.get("measured"), "peak_memory")
    paid = f"{size(took)} at the peak" if took else "not recorded"
    note = "weights, gradients, optimizer, activations; the process itself comes on top"
    return [("memory", size(bill.memory.total), paid, note)]


def tokens(run: Run) -> list[Row]:
    read = sum(line["tokens"] for line in run.steps if isinstance(line.get("tokens"), int))
    return [("tokens read", "", f"{read:,}", f"in {len(run.steps):,} steps")] if read else []


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
