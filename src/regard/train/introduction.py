"""What a run says of itself before it begins."""

from typing import Any

from regard import config
from regard.train.facts import trained
from regard.train.run import Run


def introduction(run: Run, facts: dict[str, Any]) -> list[str]:
    """Its size, what it reads and where it is; and what of its settings is worth a thought."""
    assert run.recipe is not None
    count = sum(weight.numel() for weight in run.model.parameters())
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    learn = trained(run.model)
    part = "" if learn == count else f", of which {learn:,} learn"
    said = [f"{count:,} parameters{part}, {reads(run.recipe)}, {epoch(run)}; {facts['device']}, {threads}{crowd(run)}"]
    steps, warmup = run.settings.steps, run.settings.schedule.warmup
    if steps is not None and warmup > steps:
        said.append(f"train.schedule.warmup: {warmup:,} steps are longer than the run of {steps:,}; its learning rate "
                    "is never reached, so make it shorter")  # fmt: skip
    return said


def reads(recipe: config.Recipe) -> str:
    """What the model is shown: words, or rows of something else."""
    if recipe.model.embed.vocab:
        return f"{recipe.model.embed.vocab:,} tokens in the vocabulary"
    return f"{recipe.train.context:,} tokens a row at most"


def crowd(run: Run) -> str:
    return f", {run.ranks.size} processes ({run.ranks.way})" if run.ranks.size > 1 else ""


def epoch(run: Run) -> str:
    """How much there is to read."""
    if isinstance(run.task.c, config.NextToken) and run.windowed:
        return f"{getattr(run.data, 'count', 0) * run.settings.context:,} to read an epoch"
    return f"{len(getattr(run.data, 'rows', [])):,} rows an epoch"
