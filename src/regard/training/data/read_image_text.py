"""Image-text pairs of a recipe as batches: the image through its processor, the text through a tokenizer.

contrastive      the processors of two towers      captioning   of the encoder, or of the front end's first part
text_to_image    the palette of the task, whose colours are learned from the training images
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from regard import config, data, tasks
from regard.config.errors import ConfigError
from regard.data.prepare import cached_tokenizer
from regard.data.records import Document, TextColumn
from regard.data.token_shards import tokenizer_key
from regard.files import content_cache
from regard.inputs import palette
from regard.inputs.processors import Processor, build_processor
from regard.tasks.captioning import vision_front_end
from regard.tasks.collate import RowPadding
from regard.tasks.contrastive import fill_contrastive_classes, refuse_accumulation
from regard.tasks.image_text import normalize_phrases, reads_phrases
from regard.tasks.task import Task
from regard.text.tokenizer import Tokenizer
from regard.training.data.read import (
    IMAGE_TEXT_READERS,
    LENGTH_MULTIPLE,
    Reporter,
    RunData,
    iterate_records,
    training_batches,
    validation_source,
)
from regard.training.data.resolve_sizes import check_length, resolve_vocab

FORMAT = 1  # version of stored examples


def read_image_text(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Reporter) -> RunData:
    """Read the image-text pairs of a recipe."""
    c = recipe.train
    check_settings(recipe)
    recipe = replace(recipe, task=resolve_task(recipe))
    reader = build_processor(vision_config(recipe), c.augment)
    tokenizer = tokenizer or train_text_tokenizer(recipe)
    tokenizer = tasks.add_task_tokens(recipe.task, tokenizer)
    recipe = replace(recipe, model=resolve_text_vocab(recipe, tokenizer))
    rows = RowPadding(c.context, c.padding_side, 1 if c.batch_tokens is None else LENGTH_MULTIPLE)
    how = {"cross": recipe.model.encoder is not None} if isinstance(recipe.task, config.Captioning) else {}
    task = tasks.build_task(recipe.task, tokenizer, recipe.model, rows=rows, chunk=c.loss_chunk, sense=reader, **how)
    words = tokenizer
    train, validation = data.prepare_tensors(recipe.data, lambda record: task.examples(record, words),
                                   image_text_key(recipe, reader, task, tokenizer), task.length, notice=voice.notice,
                                   progress=voice.progress)  # fmt: skip
    return RunData(
        recipe, tokenizer, task, training_batches(train, task, c), validation_source(validation, task, c), train.digest
    )


class PhraseColumn(TextColumn):
    """A column of text lists, each text read separately."""

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key([super().digest, "listed"])

    def documents(self, tally: data.BadRecordPolicy) -> Iterator[Document]:
        for document in super().documents(tally):
            yield replace(document, text=normalize_phrases(document.text))


def train_text_tokenizer(recipe: config.Recipe) -> Tokenizer:
    """The tokenizer of a recipe, trained on the texts as they will be read."""
    if not reads_phrases(recipe.task):
        return data.tokenizer_from_records(recipe.data, recipe.tokenizer, tasks.text_columns(recipe.task))
    tables = data.find_records(recipe.data.sources, recipe.data)
    lists = [
        PhraseColumn(table, column, recipe.data.on_bad_record)
        for table in tables
        for column in tasks.text_columns(recipe.task)
    ]
    return cached_tokenizer(recipe.tokenizer, lists, content_cache.cache_dir(None))


def check_settings(recipe: config.Recipe) -> None:
    """Refuse settings that image-text data would ignore or cannot satisfy."""
    c, kind = recipe.train, recipe.task.kind
    if c.pack:
        raise ConfigError(f"train.pack: task {kind!r} takes each pair as a row of its own; leave it out")
    if kind == "contrastive":
        refuse_accumulation(c.gradient_accumulation)
        if c.parallel == "fsdp":
            raise ConfigError("train.parallel: fsdp shards every weight, and the scale between towers is one "
                              "number; set it to ddp")  # fmt: skip
        if c.loss_chunk is not None:
            raise ConfigError("train.loss_chunk: task 'contrastive' has no vocabulary logits; leave it out")
    if c.augment is not None and (c.augment.mixup or c.augment.cutmix):
        raise ConfigError(f"train.augment: mixup and cutmix mix the labels too, and task {kind!r} has one text for a "
                          "picture; leave them out")  # fmt: skip


def vision_config(recipe: config.Recipe) -> Any:
    """The config of the vision front end."""
    task, model = recipe.task, recipe.model
    if isinstance(task, config.TextToImage):
        return task.pixels
    if isinstance(model, config.DualEncoder):
        return next(
            (tower.embed for tower in model.towers if not isinstance(tower.embed, config.TextEmbedding)), model.embed
        )
    return vision_front_end(model) or model.embed


def resolve_task(recipe: config.Recipe) -> config.Task:
    """The task with what the training data determine: classes, or palette colours."""
    task, tally = (
        recipe.task,
        data.BadRecordPolicy(recipe.data.on_bad_record),
    )  # bad records are reported once, when examples are made
    if isinstance(task, config.Contrastive):
        return fill_contrastive_classes(task, iterate_records(recipe.data, tally), tally.record_bad)
    if isinstance(task, config.TextToImage) and task.pixels.values == "colors" and not task.pixels.colors:
        chance = data.seeded_generator(recipe.train.seed, "palette", 0)
        colours = palette.learn_palette(training_images(recipe, tally), task.pixels.palette, chance)
        return replace(task, pixels=replace(task.pixels, colors=colours))
    return task


def training_images(recipe: config.Recipe, tally: data.BadRecordPolicy) -> Iterator[Tensor]:
    assert isinstance(recipe.task, config.TextToImage)
    reader = build_processor(recipe.task.pixels)
    for record in iterate_records(recipe.data, tally):
        try:
            yield reader.example(record, recipe.task.image)["image"]
        except config.DataError as problem:
            tally.record_bad(problem)


def resolve_text_vocab(recipe: config.Recipe, tokenizer: Tokenizer) -> config.Model:
    """The model with the tokenizer's vocabulary size, where the recipe leaves it open."""
    model, grows, context = recipe.model, recipe.train.init_from is not None, recipe.train.context
    if isinstance(model, config.DualEncoder):
        towers = [
            replace(tower, embed=resolve_vocab(tower.embed, tokenizer, f"towers[{place}].embed", grows))
            if isinstance(tower.embed, config.TextEmbedding)
            else tower
            for place, tower in enumerate(model.towers)
        ]
        check_length(model.trunk.position, "text.trunk", context)
        return replace(model, towers=tuple(towers))
    if isinstance(model.embed, config.MultimodalEmbedding):
        text = resolve_vocab(model.embed.text, tokenizer, "embed.text", grows)
        check_length(model.trunk.position, "trunk", context + getattr(model.embed.prefix, "count", 0))
        return replace(model, embed=replace(model.embed, text=text))
    if isinstance(model.embed, config.TextEmbedding):
        if model.encoder is not None and model.encoder.embed is not None:
            check_encoder_positions(model.encoder)
        colours = recipe.task.pixels.palette if isinstance(recipe.task, config.TextToImage) else 0
        check_length(model.trunk.position, "trunk", context)
        return replace(model, embed=resolve_vocab(model.embed, tokenizer, "embed", grows, colours))
    return model


def check_encoder_positions(encoder: config.Encoder) -> None:
    """Check that the encoder has a position for every token of an image."""
    length, count = getattr(encoder.trunk.position, "length", None), getattr(encoder.embed, "count", 0)
    if isinstance(length, int) and length < count:
        raise ConfigError(f"model.encoder.trunk.position.length: {length:,}, and the front end makes {count:,} tokens; "
                          f"set it to {count}")  # fmt: skip


def image_text_key(recipe: config.Recipe, reader: Processor, task: Task, tokenizer: Tokenizer) -> dict[str, Any]:
    """The cache key of examples, apart from the records."""
    seen = getattr(reader, "about", None) or config.to_dict(vision_config(recipe))
    kept = {
        name: value for name, value in config.to_dict(recipe.task).items() if name not in ("label_smoothing", "prompt")
    }
    return {"mixture": FORMAT, "task": kept, "front": seen, "tokenizer": tokenizer_key(tokenizer),
            "length": task.rows.length}  # fmt: skip


IMAGE_TEXT_READERS.update(contrastive=read_image_text, captioning=read_image_text, text_to_image=read_image_text)
