"""regard likelihood: the log-likelihood of a text, token by token."""

from typing import Annotated, Any

import typer

from regard.cli.bad_lines import Cut, Skip
from regard.cli.output import Dtype, Specials, WeightsOption, import_torch, print_json, print_rows
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


def likelihood(
    model: ModelArgument,
    words: TextArguments = None,
    *,
    file: FileOption = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show every token with its log-probability.")] = False,
    skip: Skip = False,
    cut: Cut = False,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonLinesOption = False,
) -> int:
    """Score texts by log-probability, and by perplexity per token."""
    given = read_text_batch(words, file, skip=skip)
    said, bad = [record["text"] for record in given.records], given.bad
    import_torch()
    from regard.inference.likelihood import score_texts

    with open_model(model, weights, dtype, specials) as asked, show_progress(len(said)) as told:
        found = score_texts(asked, said, told, names=given.names if given.from_file else None,
                            refuse=bad.refuse(given.lines), cut=bad.cut(given.lines) if cut else None)  # fmt: skip
    for line, place in bad.merge_lines(given.lines):
        if place is None:
            bad.show(line, json)
            continue
        one = found[place]
        pieces = [asked.output_tokenizer.token_text(id) for id in one.ids]
        if json:
            print_json({**given.line(line), **likelihood_record(one, pieces)})
        else:
            show_likelihood(one, pieces, tokens, given.total > 1)
    return bad.tell(given.total)


def likelihood_record(one: Any, pieces: list[str]) -> dict[str, Any]:
    each = [{"token": piece, "id": id, "log": log} for piece, id, log in zip(pieces, one.ids, one.logs, strict=True)]
    return {"text": one.text, "log": one.total, "perplexity": one.perplexity, "tokens": each}


def show_likelihood(one: Any, pieces: list[str], tokens: bool, several: bool) -> None:
    said = f"log p {one.total:.4f}   perplexity {one.perplexity:.4f}   {len(one.scored)} tokens"
    print(f"{shorten(one.text)}   {said}" if several else said)
    if tokens:
        print_rows((piece, "" if log is None else f"{log:9.4f}") for piece, log in zip(pieces, one.logs, strict=True))
