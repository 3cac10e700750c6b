"""regard tag: token classification; the entities in a text, or a label for every word."""

from typing import Annotated, Any

import typer

from regard.cli.bad_lines import Skip
from regard.cli.output import Dtype, Specials, WeightsOption, import_torch, print_json
from regard.cli.text_args import (
    FileOption,
    JsonLinesOption,
    ModelArgument,
    TextArguments,
    open_model,
    read_text_batch,
    shorten,
    show_progress,
)


def tag(
    checkpoint: ModelArgument,
    words: TextArguments = None,
    *,
    every: Annotated[
        bool, typer.Option("--all-words", help="Every word with its label, also where words make entities (B-, I-).")
    ] = False,
    file: FileOption = None,
    skip: Skip = False,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonLinesOption = False,
) -> int:
    """Find the entities in a text, or label its words; the words of an entity are joined."""
    import_torch()
    from regard.inference.token_classification import tag_texts, uses_entity_labels

    given = read_text_batch(words, file, skip=skip)
    said, bad = [record["text"] for record in given.records], given.bad
    with open_model(checkpoint, weights, dtype, specials) as model, show_progress(len(said)) as progress:
        joined = not every and uses_entity_labels(model)
        found = tag_texts(
            model, said, entities=joined, names=given.names, progress=progress, refuse=bad.refuse(given.lines)
        )
    for at, (line, place) in enumerate(bad.merge_lines(given.lines)):
        if place is None:
            bad.show(line, json)
            continue
        told = found[place]
        if json:
            tagged = {"entities" if joined else "words": [each._asdict() for each in told]}
            print_json({**given.line(line), "text": said[place], **tagged})
        else:
            if given.total > 1:
                print(f"{chr(10) if at else ''}{shorten(said[place], 96)}")
            show_tags(told)
    return bad.tell(given.total)


def show_tags(tags: list[Any]) -> None:
    """Label, text, probability and position in columns."""
    first, second = (max((len(each[place]) for each in tags), default=0) for place in (3, 0))
    for each in tags:
        print(f"{each.label:<{first}}  {each.text:<{second}}  {each.score:.4f}  {each.start} to {each.stop}")
