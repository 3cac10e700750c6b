"""A run: all the state that training has. It exists between steps, and can be saved and loaded there."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from regard import config, data
from regard.core import model as core
from regard.core.layers import product_dtype
from regard.data import Ahead, Arrays, Fixed, Packed, Progress
from regard.efficient.recompute import recompute
from regard.generate.model import Transformer, build
from regard.generate.towers import Towers
from regard.tasks import Objective, Task
from regard.tasks.translate import Paired
from regard.text import Tokenizer
from regard.train import begin, lora, vectors
from regard.train.average import Average
from regard.train.carry import Carry
from regard.train.chance import chances, restore, steadied
from regard.train.device import device_of
from regard.train.frozen import freeze
from regard.train.guard import Guard
from regard.train.muon import Muon
from regard.train.optim import Optimizer
from regard.train.parallel.models import shard
from regard.train.parallel.ranks import ALONE, Ranks
from regard.train.reading import Batches, Reading, Validation, Voice, read
from regard.train.schedule import Schedule, schedule
from regard.zoo import read_recipe


class Run:
    """A model, what is asked of it, the data, the optimizer and its schedule; and how far they have come."""

    def __init__(
        self, model: nn.Module, objective: Objective, data: Batches, optimizer: Optimizer, schedule: Schedule,
        settings: config.Train | None = None,
    ) -> None:  # fmt: skip
        self.model, self.objective, self.data = model, objective, data
        self.optimizer, self.schedule, self.settings = optimizer, schedule, settings or config.Train()
        self.step, self.seconds, self.chance = 0, 0.0, chances(self.device)
        self.guard = Guard(self.settings.guard, self.device)
        self.average = None if self.settings.average is None else Average(model, self.settings.average)
        self.carry: Carry | None = None  # what the model remembers from step to step
        self.ended = False  # early, since it became no better
        self.recipe: config.Recipe | None = None
        self.tokenizer: Tokenizer | None = None
        self.validation: Validation | None = None
        self.digest = ""  # of the data
        self.ranks = ALONE
        self.compile_seconds = 0.0  # which `seconds` do not count
        self.multiply_in(product_dtype(self.device.type))

    def multiply_in(self, products: torch.dtype) -> None:
        """The type of 16-bit products, or fp32: as the device has it when a run begins, and so until its end."""
        self.products = products
        for part in (*self.model.modules(), *self.optimizer.parts):
            if isinstance(part, core.Transformer | Muon):
                part.products = products

    @classmethod
    def from_recipe(
        cls, recipe: config.Recipe | str | Path, overrides: Iterable[str] = (), *, tokenizer: Tokenizer | None = None,
        notice: Callable[[str], object] = warnings.warn, progress: Progress = data.quiet, fresh: bool = True,
        ranks: Ranks = ALONE,
    ) -> "Run":  # fmt: skip
        """Everything that a recipe describes: the data read, the tokenizer trained, the model begun from its seed.

        A run that will be loaded from a checkpoint is not `fresh`: it needs no weights from elsewhere. `ranks` are the
        processes that train it (`regard.train.together`); what is kept of the data is made by the first of them.
        """
        if not isinstance(recipe, config.Recipe):
            recipe = read_recipe(recipe, overrides)
        voice, source = Voice(notice, progress), None
        if recipe.train.init_from is not None and fresh:
            source = begin.source(recipe.train.init_from)
            recipe, tokenizer = begin.inherited(recipe, source, tokenizer)
        reading = ranks.in_turn(lambda: read(recipe, tokenizer, voice))
        device = device_of(recipe.train.device)
        steadied(recipe.train, device)
        before = chances(device)
        torch.manual_seed(recipe.train.seed)
        model = built(reading)
        if source is not None and isinstance(model, Transformer):
            taken = begin.take(model, source)
            notice(begin.told(taken))
            reading = lora.settled(reading, model, taken)
        if recipe.train.vectors is not None and fresh:
            assert reading.tokenizer is not None  # others have refused it
            notice(vectors.told(vectors.into(reader(model), reading.tokenizer, recipe.train.vectors)))
        model = model if ranks.sharded else model.to(device)  # in parts it goes there part by part
        run = cls.of(model.train(), reading, ranks)
        restore(before, device)
        return run

    @classmethod
    def of(cls, model: Transformer | Towers, reading: Reading, ranks: Ranks = ALONE) -> "Run":
        """A run of this model on these data."""
        recipe, c = reading.recipe, reading.recipe.train
        lora.begin(model, c.lora, ranks)
        freeze(model, c.freeze)
        recompute(model, c.recompute)
        if ranks.sharded:
            shard(model, ranks, device_of(c.device))
        optimizer = Optimizer(model, c.optimizer)
        run = cls(model, reading.task, reading.train, optimizer, schedule(c.schedule, recipe.model.trunk.dim), c)
        run.recipe, run.tokenizer, run.validation = recipe, reading.tokenizer, reading.validation
        run.digest, run.ranks = reading.digest, ranks
        if c.carry and ranks.size > 1:
            raise config.ConfigError(f"train.carry: {ranks.size} processes would each need the states of their rows; "
                                     "train in one, with train.parallel=none")  # fmt: skip
        run.carry = Carry(model, c) if c.carry and isinstance(model, Transformer) else None
        return run

    @property
    def task(self) -> Task:
        """What is asked, if it is one of the ten."""
        assert isinstance(self.objective, Task)
        return self.objective

    @property
    def steady(self) -> bool:
        """Whether all batches are of one shape, so that a step can be compiled once."""
        return self.constant or isinstance(inner(self.data), Packed)

    @property
    def constant(self) -> bool:
        """Whether batches are also asked as often: windows of a text, rows that are all alike, or data that say so."""
        made = inner(self.data)
        alike = isinstance(made, Fixed) and isinstance(made.rows, Arrays) and made.rows.alike
        return self.windowed or alike or bool(getattr(made, "constant", False))

    @property
    def windowed(self) -> bool:
        """Whether batches are ids alone, as many in each."""
        return isinstance(inner(self.data).batch(0), Tensor)

    @property
    def prompt(self) -> str:
        """What samples begin with: as the recipe says, or a line break, or how the text begins if it has none."""
        assert self.recipe is not None and self.tokenizer is not None
        if self.recipe.report.prompt is not None:
            return self.recipe.report.prompt
        try:
            self.tokenizer.encode("\n")
        except config.DataError:
            first = self.data.batch(0)
            ids = first["ids"] if isinstance(first, dict) else first
            return self.tokenizer.decode(ids[0, :1].tolist())
        return "\n"

    @property
    def progress(self) -> float:
        """The part of the run that is over: by steps, epochs or minutes, whichever is nearest its end."""
        c = self.settings
        reads = (self.epochs, c.epochs), (self.step, c.steps), (self.seconds / 60, c.minutes)
        return min(1.0, max(part(done, all) for done, all in reads))

    @property
    def epochs(self) -> float:
        """How often the data have been read."""
        if self.settings.epochs is None and not hasattr(self.data, "epochs"):  # somebody's own, who has not said
            return 0.0
        return float(self.data.epochs(self.step * self.settings.accumulate))  # type: ignore[attr-defined]

    @property
    def over(self) -> bool:
        return self.ended or self.progress >= 1.0

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


def inner(batches: Batches) -> Batches:
    """Who makes the batches, here or in other processes."""
    return batches.data if isinstance(batches, Ahead) else batches


def part(done: float, all: float | None) -> float:
    return 0.0 if all is None else done / all if all else 1.0


def reader(model: Transformer | Towers) -> core.Transformer:
    """The model, or of towers the one that reads text."""
    return model if isinstance(model, Transformer) else model.towers[-1]


def built(reading: Reading) -> Transformer | Towers:
    """A fresh model that knows what it will be asked, and in which words."""
    model, task = build(reading.recipe.model), reading.task
    model.tokenizer, model.task = reading.tokenizer, reading.recipe.task
    model.context = None if reading.tokenizer is None else reading.recipe.train.context
    if isinstance(task, Paired):
        model.begin = task.target.begin(task.c.begin)
    return model
