"""regard answer: the part of a text that answers a question."""

import os
from typing import Annotated

import typer

from regard import config
from regard.cli.bad_lines import Skip
from regard.cli.output import (
    Dtype,
    Specials,
    WeightsOption,
    check_surrogates,
    import_torch,
    print_json,
    read_text_argument,
)
from regard.cli.text_args import (
    JsonLinesOption,
    ModelArgument,
    TextBatch,
    open_model,
    read_file_batch,
    read_text_batch,
    shorten,
    show_progress,
)


def answer(
    checkpoint: ModelArgument,
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
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonLinesOption = False,
) -> int:  # fmt: skip
    """Find the answer to a question in a text, with its probability and character span."""
    if context == "-" and (file == "-" or question == ["-"]):
        raise config.ConfigError("--context -: standard input has the questions; give the context in a file")
    import_torch()
    from regard.inference.question_answering import answer_questions

    given = question_records(question, file, context, skip)
    records, bad = given.records, given.bad
    pairs = [(record["question"], record["context"]) for record in records]
    with open_model(checkpoint, weights, dtype, specials) as model, show_progress(len(pairs)) as progress:
        found = answer_questions(model, pairs, names=given.names, progress=progress, refuse=bad.refuse(given.lines))
    for line, place in bad.merge_lines(given.lines):
        if place is None:
            bad.show(line, json)
            continue
        asks, span = records[place]["question"], found[place]
        if json:
            told = {"answer": span.text or None, "start": span.start, "stop": span.stop, "score": span.score}
            print_json({**given.line(line), "question": asks, **told})
        else:
            where = f"  characters {span.start} to {span.stop}" if span.text else ""
            before = f"{shorten(asks):<48}  " if given.total > 1 else ""
            print(f"{before}{' '.join(span.text.split()) or '(no answer)'}  {span.score:.4f}{where}")
    return bad.tell(given.total)


def question_records(question: list[str] | None, file: str | None, context: str | None, skip: bool) -> TextBatch:
    """A record for each question, with its context."""
    from regard.data.records import Record
    from regard.data.sources import RECORD_SUFFIXES
    from regard.files.compression import file_format

    if file is not None and file_format(file) in RECORD_SUFFIXES and not question:
        if context is None:
            return read_file_batch(file, "question", "context", skip=skip)
        found = read_file_batch(file, "question", skip=skip)
        text = read_context(context)
        return found._replace(records=[Record({**record, "context": text}, record.where) for record in found.records])
    if context is None:
        raise config.ConfigError("--context: there is none; name the file with the text, or give the text itself")
    text = read_context(context)
    found = read_text_batch(question, file, "QUESTION", skip=skip)
    pairs = [Record({"question": record["text"], "context": text}, record.where) for record in found.records]
    return found._replace(records=pairs)


def read_context(context: str) -> str:
    """The text of a file, or the text itself."""
    from regard.data.sources import RECORD_SUFFIXES, TEXT_SUFFIXES
    from regard.files.compression import file_format

    called = len(context.split()) == 1 and file_format(context) in (
        *RECORD_SUFFIXES,
        *TEXT_SUFFIXES,
    )  # also a missing one
    text = (
        read_text_argument(context)
        if context == "-" or called or os.path.isfile(context)
        else check_surrogates(context, "--context")
    )
    if not text.strip():
        raise config.DataError(f"--context: {shorten(context)!r} is empty; give a text that may hold the answer")
    return text
