"""Validation during training: loss and scores over held-out data, and sampled texts or translations.

Losses are sums and counts; every held-out row counts once.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from regard import config
from regard.data.batching import batch_to_device
from regard.generation.session import inference_mode
from regard.inference.model import Model
from regard.tasks.next_token import NextToken
from regard.tasks.task import LossPart, Objective, Task, rank_arguments, score_outputs
from regard.tasks.translation import Translation
from regard.training.parallel.ranks import SINGLE_PROCESS, ProcessRanks
from regard.training.parallel.wrap import reshard
from regard.training.run import Run

WARM, SHORT = 0.8, 200  # temperature and length of samples during training
SOME = 3  # number of sample translations
Until = Callable[[Iterable[Any]], Iterator[Any]]


def sample_outputs(run: Run, whole: bool, until: Until, say: Callable[[str], object]) -> Iterator[dict[str, Any]]:
    """Lines for samples.jsonl; `until` stops early at a signal. Objectives without text output yield nothing."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings(action="ignore"):  # shapes may change
        try:
            if isinstance(run.task, NextToken):
                yield from sample_texts(run, whole, until)
            elif isinstance(run.task, Translation) and run.validation is not None:
                yield from sample_translations(run, until)
        except (config.RunError, config.ConfigError) as problem:  # diverged, or cannot decode by steps
            say(f"no sample: {problem}")


def sample_texts(run: Run, whole: bool, until: Until) -> Iterator[dict[str, Any]]:
    assert run.recipe is not None and isinstance(run.model, Model)
    prompt, report = run.prompt, run.recipe.report
    for temperature in report.temperatures if whole else (WARM,):
        new = report.max_new_tokens if whole else SHORT
        text = "".join(
            until(run.model.stream(prompt, max_new_tokens=new, temperature=temperature, seed=run.settings.seed))
        )
        yield {"step": run.step, "temperature": temperature, "prompt": prompt, "text": text}


def sample_translations(run: Run, until: Until) -> Iterator[dict[str, Any]]:
    """Greedy translations of the first validation examples."""
    assert isinstance(run.model, Model) and run.tokenizer is not None
    for example in until(first_examples(run)):
        source, meant = run.tokenizer.decode(example["source"]), run.tokenizer.decode(example["target"])
        yield {"step": run.step, "source": source, "text": run.model.translate(source, num_beams=1), "target": meant}


def first_examples(run: Run) -> Iterator[dict[str, Any]]:
    rows = getattr(run.validation, "rows", ())
    return (rows[place * (len(rows) // SOME)] for place in range(min(SOME, len(rows))))


@dataclass(frozen=True)
class ValidationScore:
    """Validation loss in nats: the sum over all labels, and their number.

    An objective with several `parts` has a sum and a count for each, and its loss is their weighted sum. `scores` are
    metrics of the predictions, by name.
    """

    sum: float
    count: int
    parts: Mapping[str, tuple[float, LossPart]] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        if len(self.parts) > 1:
            return math.fsum(part.weight * sum / max(1, part.count) for sum, part in self.parts.values())
        return self.sum / max(1, self.count)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))  #: S084

    @property
    def bits(self) -> float:
        """Bits per token."""
        return self.loss / math.log(2)


def validate(
    model: nn.Module, batches: Iterable[Any], objective: Objective | None = None, scores: bool = False,
    ranks: ProcessRanks = SINGLE_PROCESS,
) -> ValidationScore:  # fmt: skip
    """Validation score over batches of the objective, for next-token prediction blocks of ids (B, N + 1).

    `scores` adds metrics of the predictions. Every module keeps its train or eval mode; compiled parts run eagerly,
    since a smaller last batch would be compiled again. With several `ranks` each takes its rows of every batch.
    """
    device, task = next(model.parameters()).device, objective or NextToken()
    exact = torch.float64 if device.type != "mps" else torch.float32
    sums, counts, marked = dict[str, list[torch.Tensor]](), dict[str, LossPart](), list[Any]()
    across = rank_arguments(task, ranks.size)
    with torch.compiler.set_stance("force_eager"), inference_mode(list(model.modules())):
        for batch in batches:
            mine, counted = ranks.rows(batch)
            there = batch_to_device(mine, device)
            for name, part in task.count_parts(batch).items():
                counts[name] = LossPart(part.count + (counts[name].count if name in counts else 0), part.weight)
            for name, sum in task.loss_sums(model, there, **across).items():
                sums.setdefault(name, []).append(sum.to(exact) * counted)
            if scores and isinstance(task, Task):
                marks = task.answers(model, there), task.expected_answers(mine)
                marked += [marks] if counted else []
    reshard(model)
    parts = {name: (float(ranks.sum(torch.stack(some).sum())), counts[name]) for name, some in sums.items()}
    first, part = next(iter(parts.values()), (0.0, LossPart(0)))
    marked = ranks.gather_lists(marked)
    found = dict(score_outputs(task, marked)) if marked and isinstance(task, Task) else {}
    return ValidationScore(first, part.count, parts if len(parts) > 1 else {}, found)
