"""regard likelihood: how likely a model finds a text, token by token."""

from typing import Annotated, Any

import typer

from regard.cli.bad_lines import Cut, Skip
from regard.cli.given import File, Lines, Model, Texts, batch, brief, loaded, watched
from regard.cli.output import Dtype, Specials, Weights, as_json, as_rows, with_torch


def likelihood(
    model: Model,
    words: Texts = None,
    *,
    file: File = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show every token with its log-probability.")] = False,
    skip: Skip = False,
    cut: Cut = False,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: Lines = False,
) -> int:
    """Tell how likely texts are: log-probability, and perplexity a token."""
    given = batch(words, file, skip=skip)
    said, bad = [record["text"] for record in given.records], given.bad
    with_torch()
    from regard.generate.likelihood import likelihoods

    with loaded(model, weights, dtype, specials) as asked, watched(len(said)) as told:
        found = likelihoods(asked, said, told, names=given.names if given.from_file else None,
                            refuse=bad.refuse(given.lines), cut=bad.cut(given.lines) if cut else None)  # fmt: skip
    for line, place in bad.merged(given.lines):
        if place is None:
            bad.show(line, json)
            continue
        one = found[place]
        pieces = [asked.speaks.piece(id) for id in one.ids]
        if json:
            as_json({**given.line(line), **whole(one, pieces)})
        else:
            show(one, pieces, tokens, given.total > 1)
    return bad.tell(given.total)


def whole(one: Any, pieces: list[str]) -> dict[str, Any]:
    each = [{"token": piece, "id": id, "log": log} for piece, id, log in zip(pieces, one.ids, one.logs, strict=True)]
    return {"text": one.text, "log": one.total, "perplexity": one.perplexity, "tokens": each}


def show(one: Any, pieces: list[str], tokens: bool, several: bool) -> None:
    said = f"log p {one.total:.4f}   perplexity {one.perplexity:.4f}   {len(one.scored)} tokens"
    print(f"{brief(one.text)}   {said}" if several else said)
    if tokens:
        as_rows((piece, "" if log is None else f"{log:9.4f}") for piece, log in zip(pieces, one.logs, strict=True))
