"""regard answer: the part of a text that answers a question."""

import os
from typing import Annotated

import typer

from regard import config
from regard.cli.bad_lines import Skip
from regard.cli.given import Batch, Lines, Model, batch, brief, filed_batch, loaded, watched
from regard.cli.output import Dtype, Specials, Weights, as_json, spoken, text_in, with_torch


def answer(
    checkpoint: Model,
    question: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="One question or more; - reads standard input.")
    ] = None,
    *,
    context: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="Where the answer stands; - reads standard input.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Questions, a line each, or records with the columns question and context "
                     "(.jsonl, .csv, ...)."),
    ] = None,
    skip: Skip = False,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: Lines = False,
) -> int:  # fmt: skip
    """Find the answer to a question in a text: the words, how likely, and from which character to which."""
    if context == "-" and (file == "-" or question == ["-"]):
        raise config.ConfigError("--context -: standard input has the questions; give the context in a file")
    with_torch()
    from regard.generate.spans import answers

    given = asked(question, file, context, skip)
    records, bad = given.records, given.bad
    pairs = [(record["question"], record["context"]) for record in records]
    with loaded(checkpoint, weights, dtype, specials) as model, watched(len(pairs)) as progress:
        found = answers(model, pairs, names=given.names, progress=progress, refuse=bad.refuse(given.lines))
    for line, place in bad.merged(given.lines):
        if place is None:
            bad.show(line, json)
            continue
        asks, span = records[place]["question"], found[place]
        if json:
            told = {"answer": span.text or None, "start": span.start, "stop": span.stop, "score": span.score}
            as_json({**given.line(line), "question": asks, **told})
        else:
            where = f"  characters {span.start} to {span.stop}" if span.text else ""
            before = f"{brief(asks):<48}  " if given.total > 1 else ""
            print(f"{before}{' '.join(span.text.split()) or '(no answer)'}  {span.score:.4f}{where}")
    return bad.tell(given.total)


def asked(question: list[str] | None, file: str | None, context: str | None, skip: bool) -> Batch:
    """A record for each question, with its context."""
    from regard.data import Record
    from regard.data.packing import format_of
    from regard.data.sources import RECORDS

    if file is not None and format_of(file) in RECORDS and not question:
        if context is None:
            return filed_batch(file, "question", "context", skip=skip)
        found = filed_batch(file, "question", skip=skip)
        text = read(context)
        return found._replace(records=[Record({**record, "context": text}, record.where) for record in found.records])
    if context is None:
        raise config.ConfigError("--context: there is none; name the file with the text, or give the text itself")
    text = read(context)
    found = batch(question, file, "QUESTION", skip=skip)
    pairs = [Record({"question": record["text"], "context": text}, record.where) for record in found.records]
    return found._replace(records=pairs)


def read(context: str) -> str:
    """The text of a file, or the text itself."""
    from regard.data.packing import format_of
    from regard.data.sources import RECORDS, TEXTS

    called = len(context.split()) == 1 and format_of(context) in (*RECORDS, *TEXTS)  # also one that is not there
    text = text_in(context) if context == "-" or called or os.path.isfile(context) else spoken(context, "--context")
    if not text.strip():
        raise config.DataError(f"--context: {brief(context)!r} is empty; give a text that may hold the answer")
    return text
