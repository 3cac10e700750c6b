"""regard classify: what is this picture, this sound, this text? The likeliest classes, or the number it is given."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli import labels
from regard.cli.bad_lines import BadLines, Skip, line_in
from regard.cli.given import loaded
from regard.cli.output import (
    Checkpoint,
    Dtype,
    Json,
    Specials,
    Weights,
    as_json,
    in_specials,
    with_options_of,
    with_torch,
)


@with_options_of(labels.Labels, labels.ABOUT)
def classify(
    checkpoint: Checkpoint,
    things: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|TEXT", help="Files as the model reads them (pictures, sounds, records), or texts, "
                       "two that belong together with a tab between; - or nothing reads texts from standard input, a "
                       "line each."),
    ] = None,
    *,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="One file more; - is standard input.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="TEXT", help="A second text, to go with each text.")] = None,
    top: Annotated[
        int | None,
        typer.Option(help="How many classes to tell of each, the likeliest first: one unless said; where several may "
                     "be right, all from 0.5 on."),
    ] = None,
    skip: Skip = False,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: Json = False,
    **settings: Any,
) -> int:  # fmt: skip
    """Tell what each file or text is, and how sure that is; with --labels or --examples, of a language model."""
    if top is not None and top < 1:
        raise config.ConfigError(f"--top: {top} leaves nothing to tell; choose one or more")
    if file not in (None, "-") and not os.path.exists(file):
        raise FileNotFoundError(errno.ENOENT, "", file)
    if (asked := labels.given(settings)) is not None:
        if skip:
            raise config.ConfigError("--skip: with --labels every text is asked, or none; leave it out")
        with_torch()
        with loaded(checkpoint, weights, dtype, specials) as model:
            by_labels(model, asked, things, file, pair, top, json)
        return 0
    with_torch()
    from regard.generate.opening import load_to_answer
    from regard.train.judging import Judge

    model = load_to_answer(checkpoint, dtype=dtype, weights=weights, specials=in_specials(specials))
    judge = Judge(model, checkpoint)
    one_file = judge.textual and file not in (None, "-") and not things and pair is None
    bad = BadLines(strict=not one_file, skip=skip)  # the lines of one file are told by their numbers
    judge.refuse = None if bad.strict else bad.add
    given = [*(things or []), *([] if file is None else [file])] or ["-"]
    if "-" in given:
        if not judge.textual:
            raise config.ConfigError(f"-: {checkpoint} reads no text; name files, such as {judge.example}")
        lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
        given = [each for thing in given for each in (lines if thing == "-" else [thing])]
    found = list(judge(given if pair is None else [f"{thing}\t{pair}" for thing in given], top))
    answers = aligned(found, bad)
    as_json({"task": judge.kind, "answers": answers}) if json else show(answers)
    return bad.tell(len(answers) + len(bad.why) * bad.skip)


def aligned(found: list[dict[str, Any]], bad: BadLines) -> list[dict[str, Any]]:
    """Answers with the numbers of their lines, and where a line has none, why."""
    if bad.strict:
        return found
    lines = {line_in(each["where"]) or place: each for place, each in enumerate(found, 1)}
    told = {line: {"line": line, **{name: value for name, value in each.items() if name != "where"}}
            for line, each in lines.items()}  # fmt: skip
    told |= {} if bad.skip else {line: {"line": line, "of": None, "error": why} for line, why in bad.why.items()}
    return [told[line] for line in sorted(told)]


def by_labels(
    model: Any, asked: labels.Labels, things: list[str] | None, file: str | None, pair: str | None,
    top: int | None, json: bool,
) -> None:  # fmt: skip
    """Which label a language model would say next."""
    if pair is not None:
        raise config.ConfigError("--pair: a language model reads one text; put the other into --form")
    found = list(labels.Asker(model, asked)(things or ([] if file else ["-"]), file, top))
    as_json({"task": "labels", "answers": found}) if json else show(found)


def show(found: list[dict[str, Any]]) -> None:
    """What was asked of, and the answers beside it; the name is left out where there is one thing alone."""
    wide = max((len(brief(each["of"])) for each in found if each["of"] is not None), default=0)
    for each in found:
        if "error" in each:
            print()
            continue
        said = f"{each['number']:.4g}" if "number" in each else "   ".join(
            f"{label} {share:.4f}" for label, share in each["classes"].items())  # fmt: skip
        print(said if len(found) == 1 else f"{brief(each['of']):<{wide}}  {said}")


def brief(name: str) -> str:
    return name if len(name) <= 48 else f"{name[:47]}…" if not Path(name).suffix else f"…{name[-47:]}"
