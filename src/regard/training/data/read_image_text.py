"""Reading pairs of what is seen and a text: the one through its sense, the other through a tokenizer.

    contrast    the senses of two towers          caption    of the encoder, or of the front end's first part
    draw        the palette of the task, whose colours are learned from the training pictures
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from regard import config, data, tasks
from regard.config import ConfigError
from regard.data import store
from regard.data.columns import Column, Document
from regard.data.prepared import trained
from regard.data.shards import tokenizer_key
from regard.inputs import palette
from regard.inputs.senses import Sense, sense
from regard.tasks import Rows, Task
from regard.tasks.caption import front_of
from regard.tasks.contrast import classes, whole_batches
from regard.tasks.phrases import listed
from regard.tasks.pictured import phrased
from regard.text import Tokenizer
from regard.train.fitted import check_length
from regard.train.reading import MIXTURES, ROUND, Reading, Voice, batches, checked, records
from regard.zoo.recipes import UNKNOWN

FORMAT = 1  # of the examples that are kept


def read_mixture(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Voice) -> Reading:
    """The pairs of a recipe."""
    c = recipe.train
    agreed(recipe)
    recipe = replace(recipe, task=discovered(recipe))
    reader = sense(front(recipe), c.augment)
    tokenizer = tokenizer or learned(recipe)
    tokenizer = tasks.equip(recipe.task, tokenizer)
    recipe = replace(recipe, model=worded(recipe, tokenizer))
    rows = Rows(c.context, c.padding, 1 if c.tokens is None else ROUND)
    how = {"cross": recipe.model.encoder is not None} if isinstance(recipe.task, config.Caption) else {}
    task = tasks.build(recipe.task, tokenizer, recipe.model, rows=rows, chunk=c.chunk, sense=reader, **how)
    words = tokenizer
    train, validation = data.sense(recipe.data, lambda record: task.examples(record, words),
                                   about(recipe, reader, task, tokenizer), task.length, notice=voice.notice,
                                   progress=voice.progress)  # fmt: skip
    return Reading(recipe, tokenizer, task, batches(train, task, c), checked(validation, task, c), train.digest)


class Listed(Column):
    """The lists in one column, each as it is read."""

    @cached_property
    def digest(self) -> str:
        return store.key([super().digest, "listed"])

    def documents(self, tally: data.Tally) -> Iterator[Document]:
        for document in super().documents(tally):
            yield replace(document, text=listed(document.text))


def learned(recipe: config.Recipe) -> Tokenizer:
    """The tokenizer of a recipe, from texts as they will be read."""
    if not phrased(recipe.task):
        return data.learned(recipe.data, recipe.text, tasks.spoken(recipe.task))
    tables = data.tables(recipe.data.sources, recipe.data)
    lists = [Listed(table, column, recipe.data.bad) for table in tables for column in tasks.spoken(recipe.task)]
    return trained(recipe.text, lists, store.place(None))


def agreed(recipe: config.Recipe) -> None:
    """No setting is passed over in silence, and none asks for something else than it says."""
    c, kind = recipe.train, recipe.task.kind
    if c.pack:
        raise ConfigError(f"train.pack: task {kind!r} asks of each pair by itself; leave it out")
    if kind == "contrast":
        whole_batches(c.accumulate)
        if c.parallel == "fsdp":
            raise ConfigError("train.parallel: fsdp cuts every weight in parts, and the scale between towers is one "
                              "number; let it be ddp")  # fmt: skip
        if c.chunk is not None:
            raise ConfigError("train.chunk: task 'contrast' answers in no vocabulary; leave it out")
    if c.augment is not None and (c.augment.mixup or c.augment.cutmix):
        raise ConfigError(f"train.augment: mixup and cutmix mix the answers too, and task {kind!r} has one text for a "
                          "picture; leave them out")  # fmt: skip


def front(recipe: config.Recipe) -> Any:
    """The setting of the front end that sees."""
    task, model = recipe.task, recipe.model
    if isinstance(task, config.Draw):
        return task.pixels
    if isinstance(model, config.Towers):
        return next((tower.embed for tower in model.towers if not isinstance(tower.embed, config.Embed)), model.embed)
    return front_of(model) or model.embed


def discovered(recipe: config.Recipe) -> config.Task:
    """The task with what the training data settle of it: classes, or colours."""
    task, tally = recipe.task, data.Tally(recipe.data.bad)  # what is bad is told of once, where examples are made
    if isinstance(task, config.Contrast):
        return classes(task, records(recipe.data, tally), tally.bad)
    if isinstance(task, config.Draw) and task.pixels.values == "colours" and not task.pixels.colours:
        chance = data.chance(recipe.train.seed, "palette", 0)
        colours = palette.learned(pictures(recipe, tally), task.pixels.palette, chance)
        return replace(task, pixels=replace(task.pixels, colours=colours))
    return task


def pictures(recipe: config.Recipe, tally: data.Tally) -> Iterator[Tensor]:
    assert isinstance(recipe.task, config.Draw)
    reader = sense(recipe.task.pixels)
    for record in records(recipe.data, tally):
        try:
            yield reader.example(record, recipe.task.image)["image"]
        except config.DataError as problem:
            tally.bad(problem)


def worded(recipe: config.Recipe, tokenizer: Tokenizer) -> config.Model:
    """The model with as many words as there are, where the recipe does not say how many."""
    model, grows, context = recipe.model, recipe.train.init_from is not None, recipe.train.context
    if isinstance(model, config.Towers):
        towers = [replace(tower, embed=sized(tower.embed, len(tokenizer), f"towers[{place}].embed", grows))
                  if isinstance(tower.embed, config.Embed) else tower
                  for place, tower in enumerate(model.towers)]  # fmt: skip
        check_length(model.trunk.position, "text.trunk", context)
        return replace(model, towers=tuple(towers))
    if isinstance(model.embed, config.Mixed):
        text = sized(model.embed.text, len(tokenizer), "embed.text", grows)
        check_length(model.trunk.position, "trunk", context + getattr(model.embed.seen, "count", 0))
        return replace(model, embed=replace(model.embed, text=text))
    if isinstance(model.embed, config.Embed):
        if model.encoder is not None and model.encoder.embed is not None:
            check_seen(model.encoder)
        colours = recipe.task.pixels.palette if isinstance(recipe.task, config.Draw) else 0
        check_length(model.trunk.position, "trunk", context)
        return replace(model, embed=sized(model.embed, len(tokenizer) + colours, "embed", grows))
    return model


def check_seen(encoder: config.Encoder) -> None:
    """An encoder has a place for every token of what it sees."""
    length, count = getattr(encoder.trunk.position, "length", None), getattr(encoder.embed, "count", 0)
    if isinstance(length, int) and length < count:
        raise ConfigError(f"model.encoder.trunk.position.length: {length:,}, and the front end makes {count:,} tokens; "
                          f"set it to {count}")  # fmt: skip


def sized(embed: config.Embed, count: int, where: str, grows: bool) -> config.Embed:
    if embed.vocab == UNKNOWN or (grows and embed.vocab < count):
        return replace(embed, vocab=count)
    if embed.vocab < count:
        raise ConfigError(f"model.{where}.vocab: {embed.vocab:,}, and there are {count:,} to tell apart; leave it out, "
                          "or make it larger")  # fmt: skip
    return embed


def about(recipe: config.Recipe, reader: Sense, task: Task, tokenizer: Tokenizer) -> dict[str, Any]:
    """What examples depend on beside the records."""
    seen = getattr(reader, "about", None) or config.tree(front(recipe))
    kept = {name: value for name, value in config.tree(recipe.task).items() if name not in ("smoothing", "prompt")}
    return {"mixture": FORMAT, "task": kept, "front": seen, "tokenizer": tokenizer_key(tokenizer),
            "length": task.rows.length}  # fmt: skip


MIXTURES.update(contrast=read_mixture, caption=read_mixture, draw=read_mixture)
