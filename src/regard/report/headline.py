"""Headline numbers of the report, scores with their meaning, and cost: predicted by `regard.measure` and measured."""

import math
from typing import Any

from regard import config, measure
from regard.files.size_limits import format_bytes
from regard.measure.explain import format_count
from regard.report.curves import score_names
from regard.report.run_data import LoggedRun
from regard.report.task_text import task_wording

Row = tuple[str, str, str, str, str]  # quantity, predicted, measured, difference, remark


def cost_section(run: LoggedRun, model: Any) -> dict[str, Any]:
    """Cost rows, and the parameters by part."""
    parts = {name: count for name, count in measure.count_parameters(model).items() if count}
    if run.recipe is None:
        return {"parts": parts, "rows": [], "absent": "The cost cannot be predicted without config.toml."}
    rows = [*flop_rows(run, model, sum(parts.values())), *step_time_rows(run), *memory_rows(run), *token_rows(run)]
    names = ("what", "predicted", "measured", "difference", "note")
    return {"parts": parts, "rows": [dict(zip(names, row, strict=True)) for row in rows]}


def flop_rows(run: LoggedRun, model: Any, parameters: int) -> list[Row]:
    assert run.recipe is not None
    c, each = run.recipe.train, median_step_time(run)
    rows = c.rows
    whole = measure.count_flops(model, c.context).training_sequence * rows * c.gradient_accumulation
    paid, note = "not timed", "matrix products, forward and backward"
    if run.recipe.task.kind != "next_token":  # the cost of padding rows of various lengths is not predicted
        return [
            ("parameters", f"{parameters:,}", count_unit_of(run), "", ""),
            ("arithmetic of a step", f"at most {format_count(whole)}FLOP", "", "", f"{note}, if every row were full"),
        ]
    if each:
        paid = f"{format_count(whole / each)}FLOP/s reached"
    return [
        ("parameters", f"{parameters:,}", count_unit_of(run), "", ""),
        ("arithmetic of a step", f"{format_count(whole)}FLOP", paid, "", note),
    ]


def count_unit_of(run: LoggedRun) -> str:
    found = run.facts.get("parameters")
    return f"{found:,}" if isinstance(found, int) else "not recorded"


def step_time_rows(run: LoggedRun) -> list[Row]:
    """Predicted and measured step time: by calibration, or the lower bound of the matrix products."""
    promised, took = number_at(run.facts.get("predicted"), "step_seconds"), median_step_time(run)
    if not promised and not took:
        return []
    paid = format_duration_short(took) if took else "not timed"
    if promised and predicted_cost_of(run).get("calibrated") is True:
        return [
            (
                "time of a step",
                format_duration_short(promised),
                paid,
                format_difference(promised, took),
                time_shares(run),
            )
        ]
    least = f"at least {format_duration_short(promised)}" if promised else "not predicted"
    note = f"the matrix products alone would take {100 * promised / took:.0f}% of it; " if promised and took else ""
    return [("time of a step", least, paid, "", f"{note}regard estimate --calibrate makes this a prediction")]


def time_shares(run: LoggedRun) -> str:
    """The predicted time by part, largest first."""
    parts = predicted_cost_of(run).get("parts")
    known = {str(name): number_at(parts, name) or 0.0 for name in parts} if isinstance(parts, dict) else {}
    whole = sum(known.values())
    told = [f"{name} {100 * part / whole:.0f}%" for name, part in sorted(known.items(), key=lambda each: -each[1])
            if part > 0.01 * whole]  # fmt: skip
    return ", ".join(told)


def memory_rows(run: LoggedRun) -> list[Row]:
    """Memory, with the same definition on both sides: on a GPU the peak of tensors, else the whole process."""
    promised = number_at(run.facts.get("predicted"), "memory") if "calibrated" in predicted_cost_of(run) else None
    took = number_at(run.facts.get("measured"), "peak_memory")
    held = format_bytes(promised) if promised else "not predicted"
    paid = f"{format_bytes(took)} at the peak" if took else "not recorded"
    note = "all tensors on the GPU" if run.facts.get("device") == "cuda" else "the whole process, torch itself included"
    return [("memory", held, paid, format_difference(promised, took), note)]


def predicted_cost_of(run: LoggedRun) -> dict[str, Any]:
    """The prediction in run.json; older runs have other quantities under the same names, which are ignored."""
    found = run.facts.get("predicted")
    return found if isinstance(found, dict) else {}


def format_difference(promised: float | None, took: float | None) -> str:
    """The difference between measured and predicted values."""
    return f"{round(100 * (took / promised - 1)):+d}%".replace("+0%", "0%") if promised and took else ""


def token_rows(run: LoggedRun) -> list[Row]:
    read = sum(line["tokens"] for line in run.steps if isinstance(line.get("tokens"), int))
    return [("tokens read", "", f"{read:,}", "", f"in {len(run.steps):,} steps")] if read else []


def median_step_time(run: LoggedRun) -> float | None:
    """The median time between logged steps."""
    timed = [(line["step"], line["seconds"]) for line in run.steps if isinstance(line.get("seconds"), float)]
    each = sorted(
        (later - before) / (n - m) for (m, before), (n, later) in zip(timed, timed[1:], strict=False) if n > m
    )
    return each[len(each) // 2] or None if each else None


def number_at(table: Any, name: str) -> float | None:
    found = table.get(name) if isinstance(table, dict) else None
    return float(found) if isinstance(found, int | float) and found > 0 else None


def format_duration_short(seconds: float) -> str:
    """Format a duration: 12.3 ms, 4.56 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


FIRST = 2  # number of scores in the headline
MEANS = {
    "accuracy": "of the predictions are right",
    "token accuracy": "of the next tokens are predicted, given the true ones before",
    "masked accuracy": "of the masked tokens are predicted",
    "next accuracy": "of the pairs are classified right",
    "f1": "harmonic mean of precision and recall",
    "entity f1": "entities found whole, mean of precision and recall",
    "matthews": "1 all right, 0 no better than chance",
    "pearson": "1 on a line, 0 uncorrelated",
    "spearman": "1 in the same order, 0 uncorrelated",
    "exact": "answers that match word for word",
    "bleu": "word n-grams shared with the references, of 100",
    "chrf": "character n-grams shared with the references, of 100",
}


def headline_numbers(run: LoggedRun, model: Any, task: config.Task, speed: float | None) -> list[dict[str, str]]:
    last = run.steps[-1] if run.steps else None
    told = [] if task.kind == "next_token" else score_rows(run, task)[:FIRST]  # its loss says more
    rows = [(each["name"], f"{each['value']:.4g}", each["means"]) for each in told]
    rows += loss_numbers(run, task)
    rows += [("parameters", f"{sum(weight.numel() for weight in model.parameters()):,}", model_shape_text(model))]
    if speed:
        rows += [("tokens a second", f"{speed:,.0f}", str(run.facts.get("device", "")))]
    seconds = run.facts.get("seconds") or (last or {}).get("seconds")
    if isinstance(seconds, int | float):
        rows += [("time", format_duration_short(seconds), f"{len(run.steps):,} steps")]
    return [dict(zip(("name", "value", "note"), row, strict=True)) for row in rows]


def loss_numbers(run: LoggedRun, task: config.Task) -> list[tuple[str, str, str]]:
    """The loss, and its meaning if it is a plain token loss."""
    loss = run.final["eval_loss"] if run.final else run.steps[-1]["loss"] if run.steps else None
    whose = "validation" if run.final else "training"
    if loss is None:
        return []
    if not math.isfinite(loss):
        return [(f"{whose} loss", str(loss), "the run diverged")]
    unit = "squared error" if isinstance(task, config.Regression) else f"nats a {task_wording(run, task).unit}"
    unit += ", smoothed" if getattr(task, "label_smoothing", 0.0) else ""
    if run.final and run.final.get("whole") and run.recipe and run.recipe.train.keep_best:
        unit += f", at step {run.final['step']:,}, the best"
    told = [(f"{whose} loss", f"{loss:.4f}", unit)]
    if not is_plain_loss(task):
        return told
    perplexity = f"{math.exp(loss):,.2f}" if loss < 20 else "over 10⁸"
    return [*told, ("perplexity", perplexity, "equally likely choices"),
            ("bits a token", f"{loss / math.log(2):.3f}", "to write the text down")]  # fmt: skip


def is_plain_loss(task: config.Task) -> bool:
    """Whether the loss is a plain cross-entropy per token."""
    words = is_autoregressive(task) or isinstance(task, config.MaskedLM)
    return words and not getattr(task, "label_smoothing", 0.0) and not getattr(task, "next_sentence", False)


def final_scores(run: LoggedRun) -> dict[str, float]:
    """The scores of the last evaluation."""
    return {} if run.final is None else {name: float(run.final[name]) for name in score_names([run.final])}


def score_rows(run: LoggedRun, task: config.Task) -> list[dict[str, Any]]:
    """The scores with their meaning, for a table."""
    known = MEANS | ({"accuracy": MEANS["token accuracy"]} if is_autoregressive(task) else {})
    return [{"name": name, "value": value, "means": known.get(name, "")} for name, value in final_scores(run).items()]


def is_autoregressive(task: config.Task) -> bool:
    """Whether outputs are generated token by token."""
    return isinstance(
        task, config.NextToken | config.Translation | config.SpanCorruption | config.TextInfilling | config.PrefixLM
    )


def model_shape_text(model: Any) -> str:
    trunk, encoder = model.c.trunk, model.c.encoder
    heads = sorted(set(trunk.heads))
    if not heads:
        return f"{trunk.depth} layers of {trunk.cell}, {trunk.dim} wide"
    layers = f"{trunk.depth}" if encoder is None else f"{encoder.trunk.depth} + {trunk.depth}"
    return f"{layers} layers, {'-'.join(map(str, heads[:: len(heads) - 1 or 1]))} heads, {trunk.dim} wide"
