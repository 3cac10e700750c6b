"""regard evaluate: how good a model is at what it was trained for, on data that it has not seen."""

import json as jsons
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.output import (
    CheckpointArgument,
    JsonOption,
    config_from_options,
    dim,
    import_torch,
    print_json,
    print_rows,
)
from regard.evaluation.bleu import TranslationScoring

SETTING = re.compile(r"[a-z_.]+=")
EVERY = 10.0  # between progress lines where there is no terminal
PERCENT = ("translation", "question_answering")  # kinds with scores from 0 to 100


def evaluate(
    checkpoint: CheckpointArgument,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|KEY=VALUE", help="Texts or records, and settings for reading them, such "
                       "as task.label=stars; unless given, the run's validation data."),
    ] = None,
    *,
    limit: Annotated[int | None, typer.Option(help="Use so many rows, taken evenly; of a text so many tokens.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write each row's prediction as .jsonl.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Of translations: number of beams.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Of translations: above 1 longer ones.")] = None,
    bleu_tokenize: Annotated[
        str | None, typer.Option(metavar="NAME", help="BLEU's tokenization: 13a, intl, zh, char, none.")
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Compare translations in lower case.")] = False,
    by_group: Annotated[bool, typer.Option("--by-group", help="Also score against all targets of a source.")] = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Score a model on what it was trained for: loss, accuracy, F1, BLEU and the rest."""
    given = {"num_beams": num_beams, "length_penalty": length_penalty, "bleu_tokenize": bleu_tokenize,
             "lowercase": lowercase or None, "by_group": by_group or None}  # fmt: skip
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    config_from_options(TranslationScoring, settings)
    changes = [word for word in files or [] if SETTING.match(word) and not os.path.exists(word)]
    sources = tuple(word for word in files or [] if word not in changes)
    import_torch()
    from regard.evaluation.evaluator import evaluate as examined

    with open_output(out) as each, show_evaluation_progress() as progress:
        found = examined(checkpoint, sources or None, changes, limit=limit, each=each, progress=progress, **settings)
    print_json(found.tree()) if json else print_rows(score_lines(found.tree()))


def own_validation(checkpoint: Path) -> config.Data:
    """The validation data of a run, for the run folder or one of its checkpoints."""
    from regard.evaluation.eval_spec import held_out_spec, run_folder_of

    run = run_folder_of(checkpoint)
    return held_out_spec(str(checkpoint), None if run is None else zoo.read_recipe(run)).data


def score_lines(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Scores as text: few digits, bits on one line, and with BLEU its signature."""
    signatures, digits = result.get("signatures", {}), 2 if result["task"] in PERCENT else 4
    for name, value in result.items():
        words = name.replace("_", " ")
        if name == "bits_per_token":
            a_byte = f", {result['bits_per_byte']:.4f} a byte" if "bits_per_byte" in result else ""
            yield "bits", f"{value:.4f} a token{a_byte}"
        elif isinstance(value, float) and name != "bits_per_byte":
            few = 4 if name in ("loss", "perplexity") else digits
            yield words, "  ".join([f"{value:.{few}f}", signatures.get(name, "")]).rstrip()
        elif isinstance(value, int) and name != "bytes":
            yield words, f"{value:,}"
        elif isinstance(value, str):
            yield words, value


@contextmanager
def open_output(path: Path | None) -> Iterator[Callable[[dict[str, Any]], object] | None]:
    """A JSONL output file, written atomically."""
    if path is None:
        yield None
        return
    from regard.files.atomic import open_output_file

    with open_output_file(path) as file:
        yield lambda row: file.write(jsons.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")


@contextmanager
def show_evaluation_progress() -> Iterator[Callable[[int], None]]:
    """Progress on stderr: a changing number in a terminal, else a line now and then."""
    watched, last, shown = sys.stderr.isatty(), time.monotonic(), 0

    def on_progress(done: int) -> None:
        nonlocal last, shown
        if time.monotonic() - last >= (0.25 if watched else EVERY):
            last, line = time.monotonic(), f"{done:,} done"
            print(f"\r{dim(line)}" if watched else line, end="" if watched else "\n", file=sys.stderr, flush=True)
            shown = len(line) if watched else 0

    try:
        yield on_progress
    finally:
        if shown:
            print("\r" + " " * shown + "\r", end="", file=sys.stderr, flush=True)
