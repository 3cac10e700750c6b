"""Reading what is no text: each record through a sense, kept as tensors, in batches by step as everything else.

    images, sounds, graphs, series    one record, one example    the sense of model.embed.kind (inputs/senses.py)

Data that are no independent records (the windows of one long series, the nodes of one graph) have a reader of their
own: it is entered in READERS under the kind of its task.
"""

from dataclasses import replace
from typing import Any

from regard import config, data, tasks
from regard.config import ConfigError
from regard.inputs.senses import Sense, sense
from regard.tasks import Task
from regard.train.fitted import answering, check_places
from regard.train.reading import READERS, Reading, Voice, batches, checked, records

FORMAT = 1  # of the examples that are kept
USUAL = config.Train()
TEXTUAL = {"pack": "packs texts", "padding": "pads texts", "chunk": "is for words", "vectors": "gives vectors to words"}


def read_sensed(recipe: config.Recipe, voice: Voice) -> Reading:
    """The data of a recipe through the sense of its front end."""
    without_text(recipe)
    c, front = recipe.train, recipe.model.embed
    reader = sense(front, getattr(c, "augment", None))
    tally = data.Tally(recipe.data.bad)  # what is bad is told of once, where examples are made
    recipe = replace(recipe, task=seen_in(recipe.task, reader))
    recipe = replace(recipe, task=tasks.discovered(recipe.task, records(recipe.data, tally), tally.bad))
    recipe = answered(recipe)
    task = tasks.build_sensed(recipe.task, reader, recipe.model)
    train, validation = data.sense(recipe.data, lambda record: task.examples(record, None), about(recipe, reader, task),
                                   reader.length, notice=voice.notice, progress=voice.progress)  # fmt: skip
    recipe = long_enough(recipe, int(train.lengths().max()))
    return Reading(recipe, None, task, batches(train, task, c), checked(validation, task, c), train.digest)


def without_text(recipe: config.Recipe) -> None:
    """No setting for texts is passed over in silence."""
    kind = recipe.model.embed.kind
    for name, why in TEXTUAL.items():
        if getattr(recipe.train, name) != getattr(USUAL, name):
            raise ConfigError(f"train.{name}: it {why}, and model.embed.kind is {kind!r}; leave it out")
    if recipe.text != config.Characters():
        raise ConfigError(f"text: no tokenizer reads what model.embed.kind {kind!r} takes; leave it out")
    if recipe.model.encoder is not None:
        raise ConfigError(f"model.encoder: a model that reads {kind!r} alone has one trunk; leave it out")


def seen_in(task: config.Task, reader: Sense) -> config.Task:
    """The task with the sense's own column, where the recipe names none."""
    if getattr(task, "pair", None) is not None:
        raise ConfigError("task.pair: a second text, and here is none; leave it out")
    unsaid = getattr(task, "text", None) == "text"
    return replace(task, text=reader.column) if unsaid else task  # type: ignore[arg-type]


def answered(recipe: config.Recipe) -> config.Recipe:
    """The recipe with a head as wide as there are answers, and places for all tokens."""
    model = recipe.model
    assert isinstance(model, config.Transformer)  # of towers one reads text, so they are no matter for a sense alone
    check_places(model)
    return replace(recipe, model=replace(model, head=answering(model.head, recipe.task)))


def long_enough(recipe: config.Recipe, longest: int) -> config.Recipe:
    """The recipe with how many tokens a row has at most: as its front end says, or as the data have it."""
    most, said = getattr(recipe.model.embed, "count", None) or longest, recipe.train.context
    if said not in (USUAL.context, most):
        raise ConfigError(f"train.context: {said}, and a row is at most {most} tokens here; leave it out")
    return replace(recipe, train=replace(recipe.train, context=most))


def about(recipe: config.Recipe, reader: Sense, task: Task) -> dict[str, Any]:
    """What examples depend on beside the records; a sense may say that less of its front end matters."""
    front = getattr(reader, "about", None) or config.tree(recipe.model.embed)
    return {"format": FORMAT, "task": config.tree(task.c), "front": front}


READERS["senses"] = read_sensed
