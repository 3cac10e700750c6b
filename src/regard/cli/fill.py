"""regard fill: the likeliest words for the blanks in a text."""

from typing import Annotated, Any

import typer

from regard import config
from regard.cli.bad_lines import Skip
from regard.cli.given import File, Lines, Model, Texts, batch, brief, loaded, watched
from regard.cli.output import Dtype, Specials, Weights, as_json, with_torch


def fill(
    checkpoint: Model,
    words: Texts = None,
    *,
    best: Annotated[int, typer.Option(help="How many words for each blank.")] = 5,
    file: File = None,
    skip: Skip = False,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: Lines = False,
) -> int:
    """Tell which words may stand where a text has [MASK], and how likely each is."""
    if best < 1:
        raise config.ConfigError(f"--best: {best} leaves nothing to tell; choose one or more")
    with_torch()
    from regard.generate.fill import fill as filled

    given = batch(words, file, skip=skip)
    said, bad = [record["text"] for record in given.records], given.bad
    with loaded(checkpoint, weights, dtype, specials) as model, watched(len(said)) as progress:
        found = filled(model, said, best, names=given.names, progress=progress, refuse=bad.refuse(given.lines))
    for line, place in bad.merged(given.lines):
        if place is None:
            bad.show(line, json)
        elif json:
            blanks = [[guess._asdict() for guess in blank] for blank in found[place]]
            as_json({**given.line(line), "text": said[place], "blanks": blanks})
        else:
            show(said[place], found[place], given.total > 1)
    return bad.tell(given.total)


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
