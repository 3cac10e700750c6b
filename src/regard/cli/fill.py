"""regard fill: the likeliest words for the blanks in a text."""

from typing import Annotated, Any

import typer

from regard import config
from regard.cli.given import File, Lines, Model, Texts, brief, loaded, texts, watched
from regard.cli.output import Specials, as_json, with_torch


def fill(
    checkpoint: Model,
    words: Texts = None,
    *,
    best: Annotated[int, typer.Option(help="How many words for each blank.")] = 5,
    file: File = None,
    specials: Specials = "parse",
    json: Lines = False,
) -> None:
    """Tell which words may stand where a text has [MASK], and how likely each is."""
    if best < 1:
        raise config.ConfigError(f"--best: {best} leaves nothing to tell; choose one or more")
    with_torch()
    from regard.generate.fill import fill as filled

    given = texts(words, file)
    said = [record["text"] for record in given]
    with loaded(checkpoint, specials=specials) as model, watched(len(given)) as progress:
        found = filled(model, said, best, names=[record.where for record in given], progress=progress)
    for text, blanks in zip(said, found, strict=True):
        if json:
            as_json({"text": text, "blanks": [[guess._asdict() for guess in blank] for blank in blanks]})
        else:
            show(text, blanks, len(said) > 1)


def show(text: str, blanks: list[list[Any]], several: bool) -> None:
    """A line for each word; several blanks are numbered, and several texts are told a line for each blank."""
    for place, blank in enumerate(blanks, 1):
        if several:
            print(f"{brief(text):<48}", *(f" {guess.word} {guess.probability:.4f}" for guess in blank))
            continue
        if len(blanks) > 1:
            print(f"{'' if place == 1 else chr(10)}blank {place}")
        wide = max(len(guess.word) for guess in blank)
        for guess in blank:
            print(f"{guess.word:<{wide}}  {guess.probability:.4f}")
