"""Inference objective: rebuilds the task of a loaded model's training from its config."""

from dataclasses import replace
from typing import Any

from regard import config, tasks
from regard.config.tasks import DecoderStart
from regard.generation.limits import context_window, trunk_context
from regard.inference.model import Model
from regard.inputs.processors import build_processor
from regard.tasks.collate import RowPadding
from regard.tasks.task import Task

DEFAULT_LENGTH = 512  # tokens of a row, for a model without a context length
START_ROLES: tuple[DecoderStart, ...] = ("bos", "pad", "eos")  # special tokens that may start a target


def reads_text(model: Any) -> bool:
    return isinstance(getattr(model.c, "embed", None), config.TextEmbedding)  # a dual encoder has an embedding a tower


def number_classes(task: config.Task, c: config.Transformer) -> config.Task:
    """Name unnamed classes by number."""
    if not isinstance(task, config.Classification | config.TokenClassification) or task.classes:
        return task
    return replace(task, classes=tuple(map(str, range(getattr(c.head, "out", None) or 0))))


def build_objective(model: Model, c: config.Task) -> Task:
    """The objective of the model's training, for evaluation: label smoothing is off."""
    if not reads_text(model):
        return tasks.build_input_task(c, build_processor(model.c.embed), model.c)
    assert model.tokenizer is not None
    if isinstance(c, config.Translation):
        c = replace(c, label_smoothing=0.0)
    roles = {} if model.output_tokenizer is None else model.output_tokenizer.special_ids
    role = next(
        (
            role
            for role in START_ROLES
            if model.decoder_start_id is not None and roles.get(role) == model.decoder_start_id
        ),
        None,
    )
    if role is not None and isinstance(
        c, config.Translation | config.SpanCorruption | config.TextInfilling | config.PrefixLM
    ):
        c = replace(c, decoder_start=role)
    other: dict[str, Any] = {"target": model.target_tokenizer} if isinstance(c, config.Translation) else {}
    return tasks.build_task(c, model.tokenizer, model.c, rows=RowPadding(max(4, max_length(model))), **other)


def max_length(model: Model) -> int:
    """The largest number of tokens that both encoder and decoder can process."""
    sides = [context_window(model, model.generation_limits)]
    sides += [] if model.c.encoder is None else [trunk_context(model.c.encoder.trunk, model.generation_limits)]
    return min((side for side in sides if side is not None), default=DEFAULT_LENGTH)
