"""Evaluation spec: the task and the data of an evaluation, read as the training data were."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import ConfigError
from regard.config.overrides import apply_override, merge_tables
from regard.config.reader import canonical_tree
from regard.core.masks import mask
from regard.inference.model import Model
from regard.inference.objective import number_classes, reads_text
from regard.inputs.processors import build_processor
from regard.tasks.columns import with_input_column
from regard.training.data.read import resolve_text_column


@dataclass(frozen=True, kw_only=True)
class EvalTables:
    """The two tables of a recipe that an evaluation uses."""

    data: config.Data = config.Data()
    task: config.Task = config.NextToken()


@dataclass(frozen=True)
class EvalSpec:
    """The data and the task; `said` are the caller's data settings, without inherited ones."""

    data: config.Data
    task: config.Task
    said: config.Data


def run_folder_of(path: Path) -> Path | None:
    """The run of a path: the path itself, or the run that it is a checkpoint of."""
    places = (path, path.absolute().parent.parent, path.resolve().parent.parent)  # the last one for the link RUN/best
    return next((place for place in places if (place / "config.toml").is_file()), None)


def held_out_spec(name: str, recipe: config.Recipe | None, overrides: Sequence[str] = ()) -> EvalSpec:
    """The spec of a run's validation data, which must be split as in training, so overrides are refused."""
    if recipe is None:
        raise ConfigError(f"{name}: not of a run, so it has no validation data of its own; name a FILE")
    if overrides:
        raise ConfigError(f"{overrides[0]}: settings say how a FILE is read; name one, or leave it out")
    if not recipe.data.validation:
        raise ConfigError(f"{name}: its data.validation is 0, so it kept nothing to validate on; name a FILE")
    return EvalSpec(recipe.data, recipe.task, recipe.data)


def build_eval_spec(
    model: Model, recipe: config.Recipe | None, given: config.Data, overrides: Sequence[str]
) -> EvalSpec:  # fmt: skip
    """The spec of an evaluation of these data: as in training, except for the overrides."""
    changes: dict[str, Any] = {}
    for line in overrides:
        apply_override(changes, line)
    changes = canonical_tree(EvalTables, changes)
    inside = changes.get("data")
    for name in ("source", "validation"):
        if isinstance(inside, dict) and name in inside:
            raise ConfigError(f"data.{name}: what is evaluated is the FILE, all of it; leave this out")
    known = model.task or (None if recipe is None else recipe.task)
    if known is None and "kind" not in changes.get("task", {}):
        known = guess_task(model.c)
    task = {} if known is None else {"task": config.to_dict(known)}
    like = given if recipe is None else inherit_reading(given, recipe.data, isinstance(known, config.NextToken))
    if "input" in changes.get("task", {}):  # another column than in training
        like = replace(like, text_column=given.text_column)
    elif "text_column" in changes.get("data", {}) and isinstance(known, config.NextToken):
        task = {"task": config.to_dict(config.NextToken())}
    made, said = (
        config.from_dict(EvalTables, merge_tables({"data": config.to_dict(data)} | task, changes))
        for data in (like, given)
    )
    asked = number_classes(made.task, model.c)
    if reads_text(model):
        data, asked = resolve_text_column(made.data, asked)
        return EvalSpec(data, asked, said.data)
    return EvalSpec(made.data, with_input_column(asked, build_processor(model.c.embed)), said.data)


DATA_SETTINGS = ("text_column", "on_bad_record", "column_names", "blank_line_ends_document")


def inherit_reading(given: config.Data, before: config.Data, text: bool) -> config.Data:
    """Data settings that are not given are those of training; a text has no columns."""
    names, usual = ("text_column", "on_bad_record") if text else DATA_SETTINGS, config.Data()
    left_out = [name for name in names if getattr(given, name) == getattr(usual, name)]
    return replace(given, **{name: getattr(before, name) for name in left_out})


def guess_task(c: config.Transformer) -> config.Task:
    """The task of a published model without a task, if it has an LM head."""
    if c.head.kind != "lm":
        raise ConfigError(f"task.kind: the model does not say what its head, {c.head.kind!r}, was trained for; say it, "
                          "as in task.kind=classification task.input=review")  # fmt: skip
    if c.encoder is not None:
        return config.Translation()
    return config.MaskedLM() if any(mask(text).ahead for text in c.trunk.masks) else config.NextToken()
