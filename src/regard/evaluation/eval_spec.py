"""What a model is asked in an exam: what it was trained for, of data that are read as its training data were."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import config, tasks
from regard.config import ConfigError
from regard.config.reader import override
from regard.config.tasks import Begin
from regard.core.masks import mask
from regard.generate.limits import reach, window
from regard.generate.model import Transformer
from regard.inputs.senses import sense
from regard.tasks import Rows, Task
from regard.train.reading import one_column
from regard.train.sensing import seen_in
from regard.zoo.presets import laid_over

LENGTH = 512  # of rows, for a model that does not say how much it reads at once
BEGIN: tuple[Begin, ...] = ("start", "pad", "end")  # the roles of a token that a target may begin with


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The two tables of a recipe that an exam reads."""

    data: config.Data = config.Data()
    task: config.Task = config.NextToken()


@dataclass(frozen=True)
class Question:
    """The data and what is asked of them; `said` are the data as the caller said them, without what is inherited."""

    data: config.Data
    task: config.Task
    said: config.Data


def run_of(path: Path) -> Path | None:
    """The run that a path is, or is a checkpoint of."""
    places = (path, path.absolute().parent.parent, path.resolve().parent.parent)  # the last for RUN/best, a link
    return next((place for place in places if (place / "config.toml").is_file()), None)


def kept_back(name: str, recipe: config.Recipe | None, overrides: Sequence[str] = ()) -> Question:
    """What a run kept back to validate on; read in another way it would not be what was kept back."""
    if recipe is None:
        raise ConfigError(f"{name}: not of a run, so it has no validation data of its own; name a FILE")
    if overrides:
        raise ConfigError(f"{overrides[0]}: settings say how a FILE is read; name one, or leave it out")
    if not recipe.data.validation:
        raise ConfigError(f"{name}: its data.validation is 0, so it kept nothing to validate on; name a FILE")
    return Question(recipe.data, recipe.task, recipe.data)


def question(
    model: Transformer, recipe: config.Recipe | None, given: config.Data, overrides: Sequence[str]
) -> Question:  # fmt: skip
    """What is asked of these data: as in training, but for the overrides."""
    changes: dict[str, Any] = {}
    for line in overrides:
        override(changes, line)
    inside = changes.get("data")
    for name in ("source", "validation"):
        if isinstance(inside, dict) and name in inside:
            raise ConfigError(f"data.{name}: what is evaluated is the FILE, all of it; leave this out")
    known = model.task or (None if recipe is None else recipe.task)
    if known is None and "kind" not in changes.get("task", {}):
        known = guessed(model.c)
    task = {} if known is None else {"task": config.tree(known)}
    like = given if recipe is None else inherited(given, recipe.data, isinstance(known, config.NextToken))
    if "text" in changes.get("task", {}):  # another column than that of training
        like = replace(like, column=given.column)
    elif "column" in changes.get("data", {}) and isinstance(known, config.NextToken):
        task = {"task": config.tree(config.NextToken())}
    made, said = (config.make(Asked, laid_over({"data": config.tree(data)} | task, changes)) for data in (like, given))
    asked = classed(made.task, model.c)
    if reads_text(model):
        data, asked = one_column(made.data, asked)
        return Question(data, asked, said.data)
    return Question(made.data, seen_in(asked, sense(model.c.embed)), said.data)


def reads_text(model: Transformer) -> bool:
    return isinstance(model.c.embed, config.Embed)


def inherited(given: config.Data, before: config.Data, text: bool) -> config.Data:
    """Files like those of training are read like them; a text has no columns to name."""
    names, usual = ("column", "bad") if text else ("column", "bad", "columns", "documents"), config.Data()
    left_out = [name for name in names if getattr(given, name) == getattr(usual, name)]
    return replace(given, **{name: getattr(before, name) for name in left_out})


def guessed(c: config.Transformer) -> config.Task:
    """What a model can be asked that does not say so, a published one: if it is words."""
    if c.head.kind != "vocabulary":
        raise ConfigError(f"task.kind: the model does not say what its head, {c.head.kind!r}, was trained for; say it, "
                          "as in task.kind=classify task.text=review")  # fmt: skip
    if c.encoder is not None:
        return config.Translate()
    return config.Masked() if any(mask(text).ahead for text in c.trunk.masks) else config.NextToken()


def classed(task: config.Task, c: config.Transformer) -> config.Task:
    """Classes without names are numbers."""
    if not isinstance(task, config.Classify | config.Tag) or task.classes:
        return task
    return replace(task, classes=tuple(map(str, range(getattr(c.head, "out", None) or 0))))


def built(model: Transformer, c: config.Task) -> Task:
    """The objective, as the model has learnt it; a loss is of words and not of smoothed ones."""
    if not reads_text(model):
        return tasks.build_sensed(c, sense(model.c.embed), model.c)
    assert model.tokenizer is not None
    if isinstance(c, config.Translate):
        c = replace(c, smoothing=0.0)
    roles = {} if model.speaks is None else model.speaks.roles
    role = next((role for role in BEGIN if model.begin is not None and roles.get(role) == model.begin), None)
    if role is not None and isinstance(c, config.Translate | config.Spans | config.Infill | config.Prefix):
        c = replace(c, begin=role)
    other: dict[str, Any] = {"target": model.target_tokenizer} if isinstance(c, config.Translate) else {}
    return tasks.build(c, model.tokenizer, model.c, rows=Rows(max(4, length(model))), **other)


def length(model: Transformer) -> int:
    """Tokens that a model reads at once, on either side."""
    sides = [window(model, model.limits)]
    sides += [] if model.c.encoder is None else [reach(model.c.encoder.trunk, model.limits)]
    return min((side for side in sides if side is not None), default=LENGTH)
