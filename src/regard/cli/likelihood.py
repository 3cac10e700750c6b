"""regard likelihood: how likely a model finds a text, token by token."""

from typing import Annotated, Any

import typer

from regard.cli.given import File, Lines, Model, Texts, brief, loaded, texts, watched
from regard.cli.output import Specials, as_json, as_rows, with_torch


def likelihood(
    model: Model,
    words: Texts = None,
    *,
    file: File = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show every token with its log-probability.")] = False,
    specials: Specials = "parse",
    json: Lines = False,
) -> None:
    """Tell how likely texts are: log-probability, and perplexity a token."""
    records = texts(words, file)
    with_torch()
    from regard.generate.likelihood import likelihoods

    with loaded(model, specials=specials) as found, watched(len(records)) as told:
        for one in likelihoods(found, [record["text"] for record in records], told):
            pieces = [found.speaks.piece(id) for id in one.ids]
            if json:
                as_json(whole(one, pieces))
            else:
                show(one, pieces, tokens, len(records) > 1)


def whole(one: Any, pieces: list[str]) -> dict[str, Any]:
    each = [{"token": piece, "id": id, "log": log} for piece, id, log in zip(pieces, one.ids, one.logs, strict=True)]
    return {"text": one.text, "log": one.total, "perplexity": one.perplexity, "tokens": each}


def show(one: Any, pieces: list[str], tokens: bool, several: bool) -> None:
    said = f"log p {one.total:.4f}   perplexity {one.perplexity:.4f}   {len(one.scored)} tokens"
    print(f"{brief(one.text)}   {said}" if several else said)
    if tokens:
        as_rows((piece, "" if log is None else f"{log:9.4f}") for piece, log in zip(pieces, one.logs, strict=True))
