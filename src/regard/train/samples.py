"""What a model says on the way: a text that goes on, or some translations beside what was meant."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from regard import config
from regard.generate.model import Transformer
from regard.tasks import NextToken, Translate
from regard.train.run import Run

WARM, SHORT = 0.8, 200  # temperature and length of the samples on the way
SOME = 3  # translations that are shown
Until = Callable[[Iterable[Any]], Iterator[Any]]


def samples(run: Run, whole: bool, until: Until, say: Callable[[str], object]) -> Iterator[dict[str, Any]]:
    """Lines for samples.jsonl; `until` ends early when a signal comes. Some objectives have nothing to say."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings(action="ignore"):  # a window may slide
        try:
            if isinstance(run.task, NextToken):
                yield from texts(run, whole, until)
            elif isinstance(run.task, Translate) and run.validation is not None:
                yield from translations(run, until)
        except (config.RunError, config.ConfigError) as problem:  # it has diverged, or cannot write step by step
            say(f"no sample: {problem}")


def texts(run: Run, whole: bool, until: Until) -> Iterator[dict[str, Any]]:
    assert run.recipe is not None and isinstance(run.model, Transformer)
    prompt, report = run.prompt, run.recipe.report
    for temperature in report.temperatures if whole else (WARM,):
        new = report.new if whole else SHORT
        text = "".join(until(run.model.stream(prompt, new=new, temperature=temperature, seed=run.settings.seed)))
        yield {"step": run.step, "temperature": temperature, "prompt": prompt, "text": text}


def translations(run: Run, until: Until) -> Iterator[dict[str, Any]]:
    """Of the first examples that are validated on; greedy, which is quick."""
    assert isinstance(run.model, Transformer) and run.tokenizer is not None
    for example in until(some(run)):
        source, meant = run.tokenizer.decode(example["source"]), run.tokenizer.decode(example["target"])
        yield {"step": run.step, "source": source, "text": run.model.translate(source, beams=1), "target": meant}


def some(run: Run) -> Iterator[dict[str, Any]]:
    rows = getattr(run.validation, "rows", ())
    return (rows[place * (len(rows) // SOME)] for place in range(min(SOME, len(rows))))
