"""What a run says of itself before it begins."""

from typing import Any

import torch

from regard import config
from regard.core.layers import product_dtype
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
    said += precision(run)
    steps, warmup = run.settings.steps, run.settings.schedule.warmup
    if steps is not None and warmup > steps:
        said.append(f"train.schedule.warmup: {warmup:,} steps are longer than the run of {steps:,}; its learning rate "
                    "is never reached, so make it shorter")  # fmt: skip
    return said


def precision(run: Run) -> list[str]:
    """What 16-bit precision comes to on a CPU that has no such products of its own."""
    emulated = product_dtype(run.device.type) == torch.float32
    if run.settings.precision == "bf16" and emulated:
        return ["train.precision: bf16, which this CPU has no instructions for and emulates, many times slower; mixed "
                "or fp32 is faster here"]  # fmt: skip
    if run.settings.precision != "mixed" or run.device.type != "cpu":
        return []
    if run.products == torch.float32:
        why = "which has no bf16 instructions" if emulated else "as the run began, on a CPU without bf16 instructions"
        return [f"train.precision: mixed, which is fp32 on this CPU, {why}"]
    if emulated:
        return ["train.precision: mixed, in bf16 as the run began; this CPU emulates it, many times slower: go on "
                "where it began, or begin a new run with --init-from"]  # fmt: skip
    return []


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
