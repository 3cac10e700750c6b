"""Variant probes besides its loss: the memory of a step, the speed of generation, the loss on longer contexts.

Each is measured on the model of the first seed. A measurement that a variant does not support is left out, or replaced
by the reason.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard import config
from regard.hub import locate
from regard.measure.peak_memory import peak_tensor_bytes
from regard.studies.trials import no_output, refusal_sentence
from regard.text.tokenizer import Tokenizer
from regard.training.data.read import TextWindows
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate

WRITTEN, BEFORE, ROUNDS = 64, 8, 3  # most tokens generated, warm-up tokens, rounds
T = TypeVar("T")
Prompt = tuple[torch.Tensor, dict[str, Any]]
EVAL_TOKENS, FEW_TOKENS = 65_536, 2048  # tokens evaluated at each length, and in a probe batch


def or_none(call: Callable[[], T]) -> T | None:
    """The result of a call; None if it is refused."""
    try:
        return call()
    except Exception as problem:
        if refusal_sentence(problem) is None:
            raise
        return None


def load_trial(path: Path) -> Run:
    """The run of a folder at the checkpoint of its scores."""
    kept = locate.default_checkpoint(path)
    tokenizer = Tokenizer.load(kept) if (kept / "tokenizer.json").is_file() else None
    recipe = config.read_toml(config.Recipe, path / "config.toml")
    run = Run.from_recipe(recipe, tokenizer=tokenizer, notice=no_output, fresh=False)
    run.load(kept)
    run.model.eval()
    return run


def probe_batch(run: Run) -> Any:
    """A probe batch: from the validation data, if there are any."""
    return run.data.batch(0) if run.validation is None else next(iter(run.validation.batches(FEW_TOKENS)))


# ---------------------------------------------------------------- memory


def step_memory(recipe: config.Recipe) -> int:
    """Peak memory of tensors in a training step, weights and optimizer state included.

    The second step is measured, eagerly: the first one allocates the optimizer state.
    """
    settings = replace(recipe.train, steps=2, epochs=None, minutes=None, compile=False, workers=0)
    run = Run.from_recipe(replace(recipe, train=settings), notice=no_output)
    steps = train_steps(run, no_output)
    next(steps)
    held = {id(each): each.nbytes for each in (*run.model.parameters(), *run.optimizer.state().values())}
    held |= {id(each.grad): each.grad.nbytes for each in run.model.parameters() if each.grad is not None}
    return sum(held.values()) + peak_tensor_bytes(lambda: next(steps), run.device)


# ---------------------------------------------------------------- generation speed


def generation_speeds(runs: dict[str, Run]) -> dict[str, float]:
    """Tokens per second of each model, one text at a time; in interleaved rounds, so that all have the same
    conditions."""
    prompts = {name: prompt for name, run in runs.items() if (prompt := generation_prompt(run)) is not None}
    for name, prompt in list(prompts.items()):
        if or_none(partial(seconds_per_token, runs[name], prompt, BEFORE)) is None:  # not causal, or without a cache
            del prompts[name]
    times: dict[str, list[float]] = {name: [] for name in prompts}
    for _ in range(ROUNDS):
        for name, prompt in prompts.items():
            room = max(BEFORE, min(WRITTEN, runs[name].settings.context - prompt[0].shape[1]))
            times[name].append(seconds_per_token(runs[name], prompt, room))
    return {name: 1 / statistics.median(each) for name, each in times.items()}


def seconds_per_token(run: Run, prompt: Prompt, new: int) -> float:
    """Seconds per token."""
    model: Any = run.model
    start = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):  # a very short context slides
        made = model.generate(prompt[0], max_new_tokens=new, temperature=0.0, **prompt[1])
    return (time.perf_counter() - start) / int(made.shape[-1])


def generation_prompt(run: Run) -> Prompt | None:
    """A prompt and its inputs; None for models that generate no text."""
    assert run.recipe is not None
    if run.recipe.model.head.kind != "lm" or run.tokenizer is None:
        return None
    batch = probe_batch(run)
    read = batch if isinstance(batch, dict) else {"ids": batch}
    given = {name: read[name][:1].to(run.device) for name in ("source", "source_real") if name in read}
    return read["ids"][:1, : 1 if given else min(BEFORE, run.settings.context // 2)].to(run.device), given


# ---------------------------------------------------------------- longer contexts


def longer_context_losses(run: Run, factors: tuple[int, ...]) -> dict[str, float | str]:
    """The loss on texts so many times as long as in training, by length; or the reason why there is none."""
    assert run.recipe is not None
    if not isinstance(run.validation, TextWindows):
        return {}
    found: dict[str, float | str] = {}
    for factor in factors:
        text = replace(run.validation, context=factor * run.recipe.train.context)
        try:
            found[str(text.context)] = validate(run.model, text.batches(EVAL_TOKENS), run.task).loss
        except Exception as problem:
            if (said := refusal_sentence(problem)) is None:
                raise
            found[str(text.context)] = said
    return found
