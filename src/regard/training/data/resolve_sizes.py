"""Model sizes that the data determine: the vocabulary, and the outputs of the head."""

import math
from dataclasses import replace

from regard import config
from regard.text.tokenizer import Tokenizer
from regard.zoo.recipe import UNKNOWN_VOCAB


def resolve_sizes(recipe: config.Recipe, tokenizer: Tokenizer) -> config.Recipe:
    """The recipe with open sizes filled in; raises if model and data do not match."""
    model = recipe.model
    assert isinstance(model, config.Transformer) and isinstance(
        model.embed, config.TextEmbedding
    )  # other modalities have their own readers
    grows = recipe.train.init_from is not None  # special tokens may extend a pretrained vocabulary
    model = replace(
        model, embed=resolve_vocab(model.embed, tokenizer, "embed", grows), head=resolve_head(model.head, recipe.task)
    )
    if model.encoder is not None and isinstance(model.encoder.embed, config.TextEmbedding):
        embed = resolve_vocab(model.encoder.embed, tokenizer, "encoder.embed", grows)
        model = replace(model, encoder=replace(model.encoder, embed=embed))
    if isinstance(recipe.task, config.NextToken):
        check_report_text(recipe.report, tokenizer)
    for where, trunk in named_trunks(model):
        check_length(trunk.position, where, recipe.train.context)
    return replace(recipe, model=model)


def resolve_vocab(
    embed: config.TextEmbedding, tokenizer: Tokenizer, where: str, grows: bool, colours: int = 0
) -> config.TextEmbedding:
    """Set the vocabulary from the tokenizer, and that of image colours for text-to-image."""
    count = len(tokenizer) + colours
    if embed.vocab == UNKNOWN_VOCAB or (grows and embed.vocab < count):
        return replace(embed, vocab=count)
    if embed.vocab < count:
        more = f", and there are {colours:,} colours" if colours else ""
        raise config.ConfigError(f"model.{where}.vocab: {embed.vocab:,}, and the tokenizer has {len(tokenizer):,} "
                                 f"tokens{more}; leave it out, or make it larger")  # fmt: skip
    return embed


def resolve_head(head: config.Head, task: config.Task) -> config.Head:
    """Set the outputs of the head to the number of classes, where the recipe leaves it open."""
    if (
        isinstance(head, config.PoolingHead)
        and head.out is None
        and isinstance(task, config.Classification | config.Regression)
    ):
        return replace(head, out=len(task.classes) if isinstance(task, config.Classification) else 1)
    if (
        isinstance(head, config.TokenHead)
        and head.out == UNKNOWN_VOCAB
        and isinstance(task, config.TokenClassification | config.QuestionAnswering)
    ):
        return replace(head, out=len(task.classes) if isinstance(task, config.TokenClassification) else 2)
    return head


def check_report_text(report: config.Report, tokenizer: Tokenizer) -> None:
    for name in ("prompt", "sentence"):
        try:
            tokenizer.encode(getattr(report, name) or "")
        except config.DataError as problem:
            raise config.ConfigError(f"report.{name}: {problem}; set it to something the text could hold") from None


def named_trunks(model: config.Transformer) -> list[tuple[str, config.Trunk | config.RecurrentStack]]:
    return [("trunk", model.trunk), *([] if model.encoder is None else [("encoder.trunk", model.encoder.trunk)])]


def check_position_table(model: config.Transformer) -> None:
    """Check that a learned position table has an entry for every token of the front end."""
    count, position = getattr(model.embed, "count", None), model.trunk.position
    length = getattr(position, "length", None) if position.kind in ("learned", "onehot") else None
    grid = getattr(model.embed, "raster", None)
    if grid is not None and position.kind == "learned" and not isinstance(length, tuple):
        raise config.ConfigError(f"model.trunk.position.length: {length}, and the front end's tokens form a grid; "
                                 f"set it to {list(grid)}")  # fmt: skip
    there = math.prod(length) if isinstance(length, tuple) else length
    if count is not None and there is not None and there < count:
        raise config.ConfigError(f"model.trunk.position.length: {there:,}, and the front end makes {count:,} tokens; "
                                 f"set it to {count}")  # fmt: skip


def check_length(position: config.Position, where: str, context: int) -> None:
    longest = getattr(position, "length", None) if position.kind in ("learned", "onehot") else None
    if isinstance(longest, int) and longest < context:
        raise config.ConfigError(f"train.context: {context:,} is longer than model.{where}.position.length "
                                 f"{longest:,}; make it shorter")  # fmt: skip
