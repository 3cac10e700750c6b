"""A run: all the state that training has. It exists between steps, and can be saved and loaded there."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from regard import config
from regard.core.masks import mask
from regard.data import Shards, Windows, prepare
from regard.generate.model import Transformer
from regard.tasks import NextToken, Objective
from regard.text import Tokenizer
from regard.train.chance import chances, restore
from regard.train.device import device_of
from regard.train.optim import Optimizer
from regard.train.schedule import Schedule, schedule
from regard.zoo import read_recipe
from regard.zoo.recipes import UNKNOWN


class Batches(Protocol):
    def batch(self, step: int) -> Tensor:
        """The micro-batch of that number: a pure function of it."""


class Run:
    """A model, what is asked of it, the data, the optimizer and its schedule; and how far they have come."""

    def __init__(
        self, model: nn.Module, objective: Objective, data: Batches, optimizer: Optimizer, schedule: Schedule,
        settings: config.Train | None = None,
    ) -> None:  # fmt: skip
        self.model, self.objective, self.data = model, objective, data
        self.optimizer, self.schedule, self.settings = optimizer, schedule, settings or config.Train()
        self.step, self.seconds, self.chance = 0, 0.0, chances(self.device)
        self.recipe: config.Recipe | None = None
        self.tokenizer: Tokenizer | None = None
        self.validation: Shards | None = None

    @classmethod
    def from_recipe(
        cls, recipe: config.Recipe | str | Path, overrides: Iterable[str] = (), *,
        tokenizer: Tokenizer | None = None, notice: Callable[[str], object] = warnings.warn,
    ) -> "Run":  # fmt: skip
        """Everything that a recipe describes: the text read, the tokenizer trained, the model begun from its seed."""
        if not isinstance(recipe, config.Recipe):
            recipe = read_recipe(recipe, overrides)
        prepared = prepare(recipe.data, recipe.text, tokenizer=tokenizer, notice=notice)
        recipe = fitted(recipe, prepared.tokenizer)
        c, device = recipe.train, device_of(recipe.train.device)
        data = Windows(prepared.train, c.context, c.batch, c.seed)
        before = chances(device)
        torch.manual_seed(c.seed)
        model = Transformer(recipe.model)
        model.to(device).train()
        model.tokenizer, model.context = prepared.tokenizer, c.context
        optimizer = Optimizer(model, c.optimizer)
        run = cls(model, NextToken(), data, optimizer, schedule(c.schedule, recipe.model.trunk.dim), c)
        restore(before, device)
        run.recipe, run.tokenizer, run.validation = recipe, prepared.tokenizer, prepared.validation
        return run

    @property
    def prompt(self) -> str:
        """What samples begin with: as the recipe says, or a line break, or how the text begins if it has none."""
        assert self.recipe is not None and self.tokenizer is not None
        if self.recipe.report.prompt is not None:
            return self.recipe.report.prompt
        try:
            self.tokenizer.encode("\n")
        except config.DataError:
            return self.tokenizer.decode(self.data.batch(0)[0, :1].tolist())
        return "\n"

    @property
    def progress(self) -> float:
        """The part of the run that is over: by steps or by minutes, whichever is nearer its end."""
        c = self.settings
        by_steps = self.step / c.steps if c.steps else (0.0 if c.steps is None else 1.0)
        by_clock = self.seconds / (60 * c.minutes) if c.minutes else (0.0 if c.minutes is None else 1.0)
        return min(1.0, max(by_steps, by_clock))

    @property
    def over(self) -> bool:
        return self.progress >= 1.0

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def save(self, path: str | Path) -> Path:
        """A checkpoint: the model's folder, with what training needs to go on exactly."""
        from regard.train import checkpoint  # which holds a Run, as this holds checkpoints

        return checkpoint.save(self, Path(path))

    def load(self, path: str | Path) -> None:
        """Go back to where a checkpoint was saved."""
        from regard.train import checkpoint

        checkpoint.load(self, Path(path))


def fitted(recipe: config.Recipe, tokenizer: Tokenizer) -> config.Recipe:
    """The recipe with the vocabulary filled in, and refused where model and text do not go together."""
    vocab, model, position = recipe.model.embed.vocab, recipe.model, recipe.model.trunk.position
    if not isinstance(model.embed, config.Embed):
        raise config.ConfigError(f"model.embed.kind: {model.embed.kind!r} reads images, and a recipe trains on text; "
                                 "let it be text, or train in a loop of your own")  # fmt: skip
    if vocab == UNKNOWN:
        model = replace(model, embed=replace(model.embed, vocab=len(tokenizer)))
    elif vocab < len(tokenizer):
        raise config.ConfigError(f"model.embed.vocab: {vocab:,}, and the tokenizer has {len(tokenizer):,} tokens; "
                                 "leave it out, or make it larger")  # fmt: skip
    if model.encoder is not None or model.head.kind != "vocabulary":
        raise config.ConfigError("model: the next token is asked of a decoder alone; leave out model.encoder, and "
                                 "let model.head.kind be vocabulary")  # fmt: skip
    if ahead := [text for text in model.trunk.masks if mask(text).ahead]:
        raise config.ConfigError(f"model.trunk.mask: {ahead[0]!r} sees the token it should predict; "
                                 f"write 'causal & {ahead[0]}' or 'causal'")  # fmt: skip
    for name in ("prompt", "sentence"):
        try:
            tokenizer.encode(getattr(recipe.report, name) or "")
        except config.DataError as problem:
            raise config.ConfigError(f"report.{name}: {problem}; set it to something the text could hold") from None
    longest = getattr(position, "length", None) if position.kind in ("learned", "onehot") else None
    if isinstance(longest, int) and longest < recipe.train.context:
        raise config.ConfigError(f"train.context: {recipe.train.context:,} is longer than "
                                 f"model.trunk.position.length {longest:,}; make it shorter")  # fmt: skip
    return replace(recipe, model=model)
