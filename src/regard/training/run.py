"""Run: all the state of a training (model, task, data, optimizer, schedule), saved and loaded between steps."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard import config, data
from regard.core import model as core
from regard.core.layers import product_dtype
from regard.data.batching import FixedSizeBatches
from regard.data.packing import PackedBatches
from regard.data.prefetch import Prefetcher
from regard.data.tensor_store import TensorRows
from regard.data.token_shards import Progress
from regard.inference.dual_encoder_model import DualEncoderModel
from regard.inference.model import Model, build_model
from regard.models.checkpointing import set_checkpointing
from regard.tasks.task import Objective, Task
from regard.tasks.translation import Seq2SeqTask
from regard.text.tokenizer import Tokenizer
from regard.training.carry_state import CarriedState
from regard.training.data.read import BatchSource, Reporter, RunData, ValidationSource, read_run_data
from regard.training.init import pretrained, trainable, word_vectors
from regard.training.init.trainable import freeze_parameters
from regard.training.optim.ema import ModelEMA
from regard.training.optim.guard import StepGuard
from regard.training.optim.muon import Muon
from regard.training.optim.optimizer import OptimizerGroup
from regard.training.optim.schedule import LRSchedule, build_schedule
from regard.training.parallel.ranks import SINGLE_PROCESS, ProcessRanks
from regard.training.parallel.wrap import wrap_fsdp
from regard.training.reproducibility import configure_determinism, get_rng_states, set_rng_states, training_device
from regard.zoo.recipe import read_recipe


class Run:
    """A training run: a model, its objective, the data, the optimizer and schedule, and how far they have come."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        data: BatchSource,
        optimizer: OptimizerGroup,
        schedule: LRSchedule,
        settings: config.Train | None = None,
    ) -> None:
        self.model, self.objective, self.data = model, objective, data
        self.optimizer, self.schedule, self.settings = optimizer, schedule, settings or config.Train()
        self.step, self.seconds, self.rng_state = 0, 0.0, get_rng_states(self.device)
        self.guard = StepGuard(self.settings.guard, self.device)
        self.ema = None if self.settings.ema_decay is None else ModelEMA(model, self.settings.ema_decay)
        self.carried_state: CarriedState | None = None  # recurrent state or segment memory between steps
        self.ended = False  # early stopping by train.patience
        self.recipe: config.Recipe | None = None
        self.tokenizer: Tokenizer | None = None
        self.validation: ValidationSource | None = None
        self.digest = ""  # digest of the data
        self.ranks = SINGLE_PROCESS
        self.compile_seconds = 0.0  # not included in `seconds`
        self.multiply_in(product_dtype(self.device.type))

    def multiply_in(self, products: torch.dtype) -> None:
        """Set the product dtype, 16-bit or fp32: the device's at the start of a run, and unchanged until its end."""
        self.products = products
        for part in (*self.model.modules(), *self.optimizer.parts):
            if isinstance(part, core.Transformer | Muon):
                part.products = products

    @classmethod
    def from_recipe(
        cls, recipe: config.Recipe | str | Path, overrides: Iterable[str] = (), *, tokenizer: Tokenizer | None = None,
        notice: Callable[[str], object] = warnings.warn, progress: Progress = data.no_progress, fresh: bool = True,
        ranks: ProcessRanks = SINGLE_PROCESS,
    ) -> "Run":  # fmt: skip
        """Build a run from a recipe: read the data, train the tokenizer, initialise the model from its seed.

        A run that will be loaded from a checkpoint is not `fresh`: it loads no pretrained weights. `ranks` are the
        processes that train it (`join_process_group`); rank 0 creates cached data.
        """
        if not isinstance(recipe, config.Recipe):
            recipe = read_recipe(recipe, overrides)
        voice, source = Reporter(notice, progress), None
        if recipe.train.init_from is not None and fresh:
            source = pretrained.read_source(recipe.train.init_from)
            recipe, tokenizer = pretrained.inherit_model(recipe, source, tokenizer)
        reading = ranks.main_first(lambda: read_run_data(recipe, tokenizer, voice))
        device = training_device(recipe.train.device)
        configure_determinism(recipe.train, device)
        before = get_rng_states(device)
        torch.manual_seed(recipe.train.seed)
        model = build_run_model(reading)
        if source is not None and isinstance(model, Model):
            taken = pretrained.transfer_weights(model, source)
            notice(pretrained.describe_transfer(taken))
            reading = trainable.resolve_lora(reading, model, taken)
        if recipe.train.word_vectors is not None and fresh:
            assert reading.tokenizer is not None  # the others were refused
            notice(
                word_vectors.describe_match(
                    word_vectors.load_word_vectors(text_model(model), reading.tokenizer, recipe.train.word_vectors)
                )
            )
        model = model if ranks.is_sharded else model.to(device)  # a sharded model moves shard by shard
        run = cls.from_data(model.train(), reading, ranks)
        set_rng_states(before, device)
        return run

    @classmethod
    def from_data(
        cls, model: Model | DualEncoderModel, reading: RunData, ranks: ProcessRanks = SINGLE_PROCESS
    ) -> "Run":
        """A run of this model on these data."""
        recipe, c = reading.recipe, reading.recipe.train
        if c.lora is not None:
            trainable.start_lora(model, c.lora, ranks)
        if c.freeze:
            freeze_parameters(model, c.freeze)
        set_checkpointing(model, c.activation_checkpointing)
        if ranks.is_sharded:
            wrap_fsdp(model, ranks, training_device(c.device))
        optimizer = OptimizerGroup(model, c.optimizer)
        run = cls(model, reading.task, reading.train, optimizer, build_schedule(c.schedule, recipe.model.trunk.dim), c)
        run.recipe, run.tokenizer, run.validation = recipe, reading.tokenizer, reading.validation
        run.digest, run.ranks = reading.digest, ranks
        if c.carry_state and ranks.size > 1:
            raise config.ConfigError(f"train.carry_state: {ranks.size} processes would each need the states of their "
                                     "rows; train in one, with train.parallel=none")  # fmt: skip
        run.carried_state = CarriedState(model, c) if c.carry_state and isinstance(model, Model) else None
        return run

    @property
    def task(self) -> Task:
        """The task, if the objective is one of the built-in tasks."""
        assert isinstance(self.objective, Task)
        return self.objective

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether all batches have one shape, so that a step is compiled once."""
        return self.has_fixed_counts or isinstance(unwrap_prefetch(self.data), PackedBatches)

    @property
    def has_fixed_counts(self) -> bool:
        """Whether batches also have equal label counts: text windows, rows that are all alike, or data that say so."""
        made = unwrap_prefetch(self.data)
        alike = isinstance(made, FixedSizeBatches) and isinstance(made.rows, TensorRows) and made.rows.alike
        return self.is_windowed or alike or bool(getattr(made, "constant", False))

    @property
    def is_windowed(self) -> bool:
        """Whether batches are only ids, of equal number."""
        return isinstance(unwrap_prefetch(self.data).batch(0), Tensor)

    @property
    def prompt(self) -> str:
        """The prompt of samples: the recipe's, else a line break, or the start of the text if it has none."""
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
        """The fraction of the run that is done: by steps, epochs or minutes, whichever limit is nearest."""
        c = self.settings
        reads = (self.epochs, c.epochs), (self.step, c.steps), (self.seconds / 60, c.minutes)
        return min(1.0, max(fraction_done(done, all) for done, all in reads))

    @property
    def epochs(self) -> float:
        """The number of epochs read so far."""
        source: Any = unwrap_prefetch(self.data)
        if self.settings.epochs is None and not hasattr(source, "epochs"):  # a custom source without epochs
            return 0.0
        return float(source.epochs(self.step * self.settings.gradient_accumulation))

    @property
    def is_over(self) -> bool:
        return self.ended or self.progress >= 1.0

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint: the model's folder, with what training needs to resume exactly."""
        from regard.training import checkpoint  # circular: checkpoint imports Run

        return checkpoint.save_checkpoint(self, Path(path))

    def load(self, path: str | Path) -> None:
        """Restore the state of a checkpoint."""
        from regard.training import checkpoint

        checkpoint.load_checkpoint(self, Path(path))


def unwrap_prefetch(batches: BatchSource) -> BatchSource:
    """The source of batches, without the prefetching wrapper."""
    return batches.data if isinstance(batches, Prefetcher) else batches


def fraction_done(done: float, all: float | None) -> float:
    return 0.0 if all is None else done / all if all else 1.0


def text_model(model: Model | DualEncoderModel) -> core.Transformer:
    """The model, or the text tower of a dual encoder."""
    return model if isinstance(model, Model) else model.towers[-1]


def build_run_model(reading: RunData) -> Model | DualEncoderModel:
    """A newly initialised model with its task and tokenizer."""
    model, task = build_model(reading.recipe.model), reading.task
    model.tokenizer, model.task = reading.tokenizer, reading.recipe.task
    model.context = None if reading.tokenizer is None else reading.recipe.train.context
    if isinstance(task, Seq2SeqTask):
        model.decoder_start_id = task.target.begin(task.c.decoder_start)
    return model
