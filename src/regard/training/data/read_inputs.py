"""Images, audio, graphs, series and pixels of a recipe as batches: each record through a processor, stored as tensors.

    one record, one example    the processor of model.embed.kind (inputs/processors.py)

Images as pixel sequences learn a palette from the training data if the recipe names no colours. Data without
independent records (windows of one long series, nodes of one graph) have their own reader, registered in
INPUT_READERS under the kind of the task.
"""

from dataclasses import replace
from typing import Any

from regard import config, data, tasks
from regard.config.errors import ConfigError
from regard.inputs import palette
from regard.inputs.processors import Processor, build_processor
from regard.tasks.columns import with_input_column
from regard.tasks.task import Task
from regard.training.data.read import (
    INPUT_READERS,
    Reporter,
    RunData,
    iterate_records,
    training_batches,
    validation_source,
)
from regard.training.data.resolve_sizes import check_position_table, resolve_head

MOST = 4096  # images from which colours are learned


def read_pixels(recipe: config.Recipe, voice: Reporter) -> RunData:
    """Read images as palette indices; the returned recipe contains the palette."""
    reading, model = read_inputs(recipe, voice), recipe.model
    assert isinstance(model, config.Transformer) and isinstance(
        model.embed, config.PixelEmbedding
    )  # checked by the task
    front = model.embed
    if front.values == "levels" or front.colors:
        return reading
    assert isinstance(reading.train, data.FixedSizeBatches | data.BucketedBatches)
    rows = reading.train.rows
    chance = data.seeded_generator(recipe.train.seed, "palette", 0)
    step = -(-len(rows) // MOST)
    images = [rows[place]["image"] for place in range(0, len(rows), step)]
    embed = replace(front, colors=palette.learn_palette(images, front.palette, chance))
    return read_inputs(replace(recipe, model=replace(model, embed=embed)), Reporter(lambda line: None))


INPUT_READERS["next_pixel"] = read_pixels

FORMAT = 1  # version of stored examples
USUAL = config.Train()
TEXTUAL = {
    "pack": "packs texts",
    "padding_side": "pads texts",
    "loss_chunk": "is for a vocabulary",
    "word_vectors": "sets vectors of words",
}


def read_inputs(recipe: config.Recipe, voice: Reporter) -> RunData:
    """Read the data of a recipe through the processor of its front end."""
    check_no_text_settings(recipe)
    c, front = recipe.train, recipe.model.embed
    reader = build_processor(front, getattr(c, "augment", None))
    tally = data.BadRecordPolicy(recipe.data.on_bad_record)  # bad records are reported once, when examples are made
    recipe = replace(recipe, task=with_input_column(recipe.task, reader))
    recipe = replace(
        recipe, task=tasks.fill_classes(recipe.task, iterate_records(recipe.data, tally), tally.record_bad)
    )
    recipe = resolve_input_head(recipe)
    task = tasks.build_input_task(recipe.task, reader, recipe.model)
    train, validation = data.prepare_tensors(
        recipe.data,
        lambda record: task.examples(record, None),
        inputs_key(recipe, reader, task),
        reader.length,
        notice=voice.notice,
        progress=voice.progress,
    )
    recipe = resolve_row_length(recipe, int(train.lengths().max()))
    return RunData(
        recipe, None, task, training_batches(train, task, c), validation_source(validation, task, c), train.digest
    )


def check_no_text_settings(recipe: config.Recipe) -> None:
    """Refuse text settings, which this data would ignore."""
    kind = recipe.model.embed.kind
    for name, why in TEXTUAL.items():
        if getattr(recipe.train, name) != getattr(USUAL, name):
            raise ConfigError(f"train.{name}: it {why}, and model.embed.kind is {kind!r}; leave it out")
    if recipe.tokenizer != config.CharTokenizer():
        raise ConfigError(f"tokenizer: none reads what model.embed.kind {kind!r} takes; leave it out")
    if recipe.model.encoder is not None:
        raise ConfigError(f"model.encoder: a model that reads {kind!r} alone has one trunk; leave it out")


def resolve_input_head(recipe: config.Recipe) -> config.Recipe:
    """The recipe with an output for every class, and a position for every token."""
    model = recipe.model
    assert isinstance(model, config.Transformer)  # a dual encoder also reads text and does not come here
    check_position_table(model)
    return replace(recipe, model=replace(model, head=resolve_head(model.head, recipe.task)))


def resolve_row_length(recipe: config.Recipe, longest: int) -> config.Recipe:
    """The recipe with the maximum row length, from its front end or from the data."""
    most, said = getattr(recipe.model.embed, "count", None) or longest, recipe.train.context
    if said not in (USUAL.context, most):
        raise ConfigError(f"train.context: {said}, and a row is at most {most} tokens here; leave it out")
    return replace(recipe, train=replace(recipe.train, context=most))


def inputs_key(recipe: config.Recipe, reader: Processor, task: Task) -> dict[str, Any]:
    """The cache key of examples, apart from the records; a processor may depend on part of its front end only."""
    front = getattr(reader, "about", None) or config.to_dict(recipe.model.embed)
    return {"format": FORMAT, "task": config.to_dict(task.c), "front": front}


INPUT_READERS["senses"] = read_inputs
