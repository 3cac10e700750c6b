"""regard classify: what is this picture, this sound, this text? The likeliest classes, or the number it is given."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import Checkpoint, Json, as_json, with_torch


def classify(
    checkpoint: Checkpoint,
    things: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|TEXT", help="Files as the model reads them (pictures, sounds, records), or texts; "
                       "- or nothing reads texts from standard input, a line each."),
    ] = None,
    *,
    top: Annotated[int, typer.Option(help="How many classes to tell of each, the likeliest first.")] = 1,
    json: Json = False,
) -> None:  # fmt: skip
    """Tell what each file or text is, and how sure that is."""
    if top < 1:
        raise config.ConfigError(f"--top: {top} leaves nothing to tell; choose one or more")
    with_torch()
    from regard.generate.model import load
    from regard.train.judging import Judge

    judge = Judge(load(checkpoint), checkpoint)
    given = list(things or ["-"])
    if "-" in given:
        if not judge.textual:
            raise config.ConfigError(f"-: {checkpoint} reads no text; name files, such as {judge.example}")
        lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
        given = [each for thing in given for each in (lines if thing == "-" else [thing])]
    found = list(judge(given, top))
    if json:
        return as_json({"task": judge.task.c.kind, "answers": found})
    show(found)


def show(found: list[dict[str, Any]]) -> None:
    """What was asked of, and the answers beside it; the name is left out where there is one thing alone."""
    wide = max((len(brief(each["of"])) for each in found), default=0)
    for each in found:
        said = f"{each['number']:.4g}" if "number" in each else "   ".join(
            f"{label} {share:.4f}" for label, share in each["classes"].items())  # fmt: skip
        print(said if len(found) == 1 else f"{brief(each['of']):<{wide}}  {said}")


def brief(name: str) -> str:
    return name if len(name) <= 48 else f"{name[:47]}…" if not Path(name).suffix else f"…{name[-47:]}"
