"""The few numbers that everybody asks for first, and the scores with what they mean."""

import math
from typing import Any

from regard import config
from regard.report.asks import asks
from regard.report.cost import brief
from regard.report.curves import scores
from regard.report.run import Run

FIRST = 2  # scores that stand at the top
MEANS = {
    "accuracy": "of its answers are right",
    "token accuracy": "of the tokens are told, each after the right ones",
    "masked accuracy": "of the hidden tokens are told",
    "next accuracy": "of the pairs are told to follow or not",
    "f1": "precision and recall in one",
    "entity f1": "names found whole, precision and recall in one",
    "matthews": "1 all right, 0 no better than chance",
    "pearson": "1 on a line, 0 no line at all",
    "spearman": "1 in the same order, 0 in any",
    "exact": "answers that are right word for word",
    "bleu": "runs of words that people wrote too, of 100",
    "chrf": "runs of letters that people wrote too, of 100",
}


def headline(run: Run, model: Any, task: config.Task, speed: float | None) -> list[dict[str, str]]:
    last = run.steps[-1] if run.steps else None
    told = [] if task.kind == "next" else marks(run, task)[:FIRST]  # of a text the loss says more
    rows = [(each["name"], f"{each['value']:.4g}", each["means"]) for each in told]
    rows += losses(run, task)
    rows += [("parameters", f"{sum(weight.numel() for weight in model.parameters()):,}", shape(model))]
    if speed:
        rows += [("tokens a second", f"{speed:,.0f}", str(run.facts.get("device", "")))]
    seconds = run.facts.get("seconds") or (last or {}).get("seconds")
    if isinstance(seconds, int | float):
        rows += [("time", brief(seconds), f"{len(run.steps):,} steps")]
    return [dict(zip(("name", "value", "note"), row, strict=True)) for row in rows]


def losses(run: Run, task: config.Task) -> list[tuple[str, str, str]]:
    """The loss, and what it means where it is nothing but the surprise at a token."""
    loss = run.final["eval_loss"] if run.final else run.steps[-1]["loss"] if run.steps else None
    whose = "validation" if run.final else "training"
    if loss is None:
        return []
    if not math.isfinite(loss):
        return [(f"{whose} loss", str(loss), "the run diverged")]
    unit = "error squared" if isinstance(task, config.Regress) else f"nats a {asks(run, task).unit}"
    unit += ", smoothed" if getattr(task, "smoothing", 0.0) else ""
    if run.final and run.final.get("whole") and run.recipe and run.recipe.train.best:
        unit += f", at step {run.final['step']:,}, the best"
    told = [(f"{whose} loss", f"{loss:.4f}", unit)]
    if not plain(task):
        return told
    perplexity = f"{math.exp(loss):,.2f}" if loss < 20 else "over 10⁸"
    return [*told, ("perplexity", perplexity, "equally likely choices"),
            ("bits a token", f"{loss / math.log(2):.3f}", "to write the text down")]  # fmt: skip


def plain(task: config.Task) -> bool:
    """Whether a loss is the surprise at a token, and nothing else is in it."""
    words = told_in_turn(task) or isinstance(task, config.Masked)
    return words and not getattr(task, "smoothing", 0.0) and not getattr(task, "next_sentence", False)


def final(run: Run) -> dict[str, float]:
    """The scores of the last evaluation."""
    return {} if run.final is None else {name: float(run.final[name]) for name in scores([run.final])}


def marks(run: Run, task: config.Task) -> list[dict[str, Any]]:
    """The same with what they mean, for a table."""
    known = MEANS | ({"accuracy": MEANS["token accuracy"]} if told_in_turn(task) else {})
    return [{"name": name, "value": value, "means": known.get(name, "")} for name, value in final(run).items()]


def told_in_turn(task: config.Task) -> bool:
    """Whether answers are words, one after the other."""
    return isinstance(task, config.NextToken | config.Translate | config.Spans | config.Infill | config.Prefix)


def shape(model: Any) -> str:
    trunk, encoder = model.c.trunk, model.c.encoder
    heads = sorted(set(trunk.heads))
    if not heads:
        return f"{trunk.depth} layers of {trunk.cell}, {trunk.dim} wide"
    layers = f"{trunk.depth}" if encoder is None else f"{encoder.trunk.depth} + {trunk.depth}"
    return f"{layers} layers, {'-'.join(map(str, heads[:: len(heads) - 1 or 1]))} heads, {trunk.dim} wide"
