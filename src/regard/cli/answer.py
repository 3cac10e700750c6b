"""regard answer: the part of a text that answers a question."""

import os
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.given import Lines, Model, brief, checked, filed, loaded, texts, watched
from regard.cli.output import Specials, as_json, spoken, text_in, with_torch


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
    specials: Specials = "parse",
    json: Lines = False,
) -> None:  # fmt: skip
    """Find the answer to a question in a text: the words, how likely, and from which character to which."""
    if context == "-" and (file == "-" or question == ["-"]):
        raise config.ConfigError("--context -: standard input has the questions; give the context in a file")
    with_torch()
    from regard.generate.spans import answers

    given = asked(question, file, context)
    pairs = [(record["question"], record["context"]) for record in given]
    with loaded(checkpoint, specials=specials) as model, watched(len(given)) as progress:
        found = answers(model, pairs, names=[record.where for record in given], progress=progress)
    for record, span in zip(given, found, strict=True):
        if json:
            told = {"answer": span.text or None, "start": span.start, "stop": span.stop, "score": span.score}
            as_json({"question": record["question"], **told})
        else:
            where = f"  characters {span.start} to {span.stop}" if span.text else ""
            before = f"{brief(record['question']):<48}  " if len(given) > 1 else ""
            print(f"{before}{' '.join(span.text.split()) or '(no answer)'}  {span.score:.4f}{where}")


def asked(question: list[str] | None, file: str | None, context: str | None) -> list[Any]:
    """A record for each question, with its context."""
    from regard.data import Record
    from regard.data.packing import format_of
    from regard.data.sources import RECORDS

    if file is not None and format_of(file) in RECORDS and not question:
        found = filed(file, "question")
        if context is not None:
            return [Record({**record, "context": read(context)}, record.where) for record in found]
        return [checked(record, "context") for record in found]
    if context is None:
        raise config.ConfigError("--context: there is none; name the file with the text, or give the text itself")
    text = read(context)
    return [Record({"question": record["text"], "context": text}, record.where)
            for record in texts(question, file, "QUESTION")]  # fmt: skip


def read(context: str) -> str:
    """The text of a file, or the text itself."""
    from regard.data.packing import format_of
    from regard.data.sources import RECORDS, TEXTS

    called = len(context.split()) == 1 and format_of(context) in (*RECORDS, *TEXTS)  # also one that is not there
    text = text_in(context) if context == "-" or called or os.path.isfile(context) else spoken(context, "--context")
    if not text.strip():
        raise config.DataError(f"--context: {brief(context)!r} is empty; give a text that may hold the answer")
    return text
