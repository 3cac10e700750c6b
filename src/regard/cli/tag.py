"""regard tag: the entities in a text, or a label for every word."""

from typing import Annotated, Any

import typer

from regard.cli.given import File, Lines, Model, Texts, brief, loaded, texts, watched
from regard.cli.output import Specials, as_json, with_torch


def tag(
    checkpoint: Model,
    words: Texts = None,
    *,
    every: Annotated[
        bool, typer.Option("--words", help="Every word with its label, also where words make entities (B-, I-).")
    ] = False,
    file: File = None,
    specials: Specials = "parse",
    json: Lines = False,
) -> None:
    """Tell the names in a text, or what else a model has a label for: words that belong together are one."""
    with_torch()
    from regard.generate.classes import labels
    from regard.generate.tags import entities, tags

    given = texts(words, file)
    said = [record["text"] for record in given]
    with loaded(checkpoint, specials=specials) as model, watched(len(given)) as progress:
        found = tags(model, said, names=[record.where for record in given], progress=progress)
    joined = not every and any(name.startswith(("B-", "I-")) for name in labels(model, model.c.head.out))
    for place, (text, tagged) in enumerate(zip(said, found, strict=True)):
        told = entities(text, tagged) if joined else tagged
        if json:
            as_json({"text": text, "entities" if joined else "words": [each._asdict() for each in told]})
        else:
            if len(said) > 1:
                print(f"{chr(10) if place else ''}{brief(text, 96)}")
            show(told)


def show(told: list[Any]) -> None:
    """Label, text, probability and place in columns."""
    first, second = (max((len(each[place]) for each in told), default=0) for place in (3, 0))
    for each in told:
        print(f"{each.label:<{first}}  {each.text:<{second}}  {each.score:.4f}  {each.start} to {each.stop}")
