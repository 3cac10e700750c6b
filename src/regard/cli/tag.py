"""regard tag: the entities in a text, or a label for every word."""

from typing import Annotated, Any

import typer

from regard.cli.bad_lines import Skip
from regard.cli.given import File, Lines, Model, Texts, batch, brief, loaded, watched
from regard.cli.output import Dtype, Specials, Weights, as_json, with_torch


def tag(
    checkpoint: Model,
    words: Texts = None,
    *,
    every: Annotated[
        bool, typer.Option("--words", help="Every word with its label, also where words make entities (B-, I-).")
    ] = False,
    file: File = None,
    skip: Skip = False,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: Lines = False,
) -> int:
    """Tell the names in a text, or what else a model has a label for: words that belong together are one."""
    with_torch()
    from regard.generate.classes import labels
    from regard.generate.tags import entities, tags

    given = batch(words, file, skip=skip)
    said, bad = [record["text"] for record in given.records], given.bad
    with loaded(checkpoint, weights, dtype, specials) as model, watched(len(said)) as progress:
        found = tags(model, said, names=given.names, progress=progress, refuse=bad.refuse(given.lines))
    joined = not every and any(name.startswith(("B-", "I-")) for name in labels(model, model.c.head.out))
    for at, (line, place) in enumerate(bad.merged(given.lines)):
        if place is None:
            bad.show(line, json)
            continue
        told = entities(said[place], found[place]) if joined else found[place]
        if json:
            tagged = {"entities" if joined else "words": [each._asdict() for each in told]}
            as_json({**given.line(line), "text": said[place], **tagged})
        else:
            if given.total > 1:
                print(f"{chr(10) if at else ''}{brief(said[place], 96)}")
            show(told)
    return bad.tell(given.total)


def show(told: list[Any]) -> None:
    """Label, text, probability and place in columns."""
    first, second = (max((len(each[place]) for each in told), default=0) for place in (3, 0))
    for each in told:
        print(f"{each.label:<{first}}  {each.text:<{second}}  {each.score:.4f}  {each.start} to {each.stop}")
