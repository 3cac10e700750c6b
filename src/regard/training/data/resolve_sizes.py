"""What the data settle of a model: the size of its vocabulary, and how wide its answers are."""

import math
from dataclasses import replace

from regard import config
from regard.text import Tokenizer
from regard.zoo.recipes import UNKNOWN


def fitted(recipe: config.Recipe, tokenizer: Tokenizer) -> config.Recipe:
    """The recipe with what was left open filled in, and refused where model and data do not go together."""
    model = recipe.model
    assert isinstance(model, config.Transformer) and isinstance(model.embed, config.Embed)  # others have their readers
    grows = recipe.train.init_from is not None  # a tokenizer with more special tokens than the weights know
    model = replace(model, embed=sized(model.embed, tokenizer, "embed", grows), head=answering(model.head, recipe.task))
    if model.encoder is not None and isinstance(model.encoder.embed, config.Embed):
        embed = sized(model.encoder.embed, tokenizer, "encoder.embed", grows)
        model = replace(model, encoder=replace(model.encoder, embed=embed))
    if isinstance(recipe.task, config.NextToken):
        check_report(recipe.report, tokenizer)
    for where, trunk in trunks(model):
        check_length(trunk.position, where, recipe.train.context)
    return replace(recipe, model=model)


def sized(embed: config.Embed, tokenizer: Tokenizer, where: str, grows: bool) -> config.Embed:
    if embed.vocab == UNKNOWN or (grows and embed.vocab < len(tokenizer)):
        return replace(embed, vocab=len(tokenizer))
    if embed.vocab < len(tokenizer):
        raise config.ConfigError(f"model.{where}.vocab: {embed.vocab:,}, and the tokenizer has {len(tokenizer):,} "
                                 "tokens; leave it out, or make it larger")  # fmt: skip
    return embed


def answering(head: config.Head, task: config.Task) -> config.Head:
    """A head that is as wide as there are answers, where the recipe does not say how wide."""
    if isinstance(head, config.Pooled) and head.out is None and isinstance(task, config.Classify | config.Regress):
        return replace(head, out=len(task.classes) if isinstance(task, config.Classify) else 1)
    if isinstance(head, config.Each) and head.out == UNKNOWN and isinstance(task, config.Tag | config.Answer):
        return replace(head, out=len(task.classes) if isinstance(task, config.Tag) else 2)
    return head


def check_report(report: config.Report, tokenizer: Tokenizer) -> None:
    for name in ("prompt", "sentence"):
        try:
            tokenizer.encode(getattr(report, name) or "")
        except config.DataError as problem:
            raise config.ConfigError(f"report.{name}: {problem}; set it to something the text could hold") from None


def trunks(model: config.Transformer) -> list[tuple[str, config.Trunk | config.Recurrent]]:
    return [("trunk", model.trunk), *([] if model.encoder is None else [("encoder.trunk", model.encoder.trunk)])]


def check_places(model: config.Transformer) -> None:
    """A table of learned places has one for every token that the front end makes."""
    count, position = getattr(model.embed, "count", None), model.trunk.position
    length = getattr(position, "length", None) if position.kind in ("learned", "onehot") else None
    grid = getattr(model.embed, "raster", None)
    if grid is not None and position.kind == "learned" and not isinstance(length, tuple):
        raise config.ConfigError(f"model.trunk.position.length: {length}, and the front end's tokens stand on a grid; "
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
