"""regard fill: the most likely words for the masks in a text."""

from typing import Annotated, Any

import typer

from regard import config
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


def fill(
    checkpoint: ModelArgument,
    words: TextArguments = None,
    *,
    top_k: Annotated[int, typer.Option(help="How many words for each blank.")] = 5,
    file: FileOption = None,
    skip: Skip = False,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonLinesOption = False,
) -> int:
    """Fill the masks in a text: the most likely words for each [MASK], with their probabilities."""
    if top_k < 1:
        raise config.ConfigError(f"--top-k: {top_k} returns no word; choose one or more")
    import_torch()
    from regard.inference.fill_mask import fill_masks as filled

    given = read_text_batch(words, file, skip=skip)
    said, bad = [record["text"] for record in given.records], given.bad
    with open_model(checkpoint, weights, dtype, specials) as model, show_progress(len(said)) as progress:
        found = filled(model, said, top_k, names=given.names, progress=progress, refuse=bad.refuse(given.lines))
    for line, place in bad.merge_lines(given.lines):
        if place is None:
            bad.show(line, json)
        elif json:
            blanks = [[guess._asdict() for guess in blank] for blank in found[place]]
            print_json({**given.line(line), "text": said[place], "blanks": blanks})
        else:
            show_predictions(said[place], found[place], given.total > 1)
    return bad.tell(given.total)


def show_predictions(text: str, blanks: list[list[Any]], several: bool) -> None:
    """One line per word; several masks are numbered, and several texts get one line per mask."""
    for place, blank in enumerate(blanks, 1):
        if several:
            print(f"{shorten(text):<48}", *(f" {guess.word} {guess.probability:.4f}" for guess in blank))
            continue
        if len(blanks) > 1:
            print(f"{'' if place == 1 else chr(10)}blank {place}")
        wide = max(len(guess.word) for guess in blank)
        for guess in blank:
            print(f"{guess.word:<{wide}}  {guess.probability:.4f}")
