"""regard doctor: what is wrong with a recipe or a run, found in a short probe, with what to type."""

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.mistakes import talk
from regard.cli.output import Json, Overrides, as_json, with_torch
from regard.cli.runs import Quiet, known

WIDE = 100  # characters of evidence in a line


def doctor(
    thing: Annotated[
        str, typer.Argument(metavar="RECIPE_OR_RUN", help="A recipe, or the folder of a run.", autocompletion=known)
    ],
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="Steps of the probe, from 10 to 50.")] = 50,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Find out what is wrong before it costs a day.

    Trains a copy for a few steps, in memory: nothing is written but the cache of tokens. Ends with code 0 for a clean
    bill, and with 1 if something is wrong; what is only worth a look is no fault.
    """
    changes = overrides or []
    if not (Path(thing) / "config.toml").is_file():
        zoo.read_recipe(thing, changes)  # a slip need not wait for torch
    if not 10 <= steps <= 50:
        raise config.ConfigError(f"--steps: {steps} is not from 10 to 50")
    with_torch()
    from regard.train.doctor import examine, opened

    run, log = opened(thing, changes, notice=talk)
    findings = examine(run, steps, log=log, **({} if quiet else {"progress": talk}))
    faults = [finding for finding in findings if finding.verdict == "wrong"]
    if json:
        told = [{name: getattr(each, name) for name in ("check", "verdict", "evidence", "remedy")} for each in findings]
        as_json({"healthy": not faults, "steps": steps, "findings": told})
    else:
        show(findings)
        print(f"\n{len(faults)} of {len(findings)} checks found something wrong" if faults else "\na clean bill")
    return 1 if faults else 0


def show(findings: list[Any]) -> None:
    """Check, verdict and evidence in columns; under a fault what to type."""
    wide = max(len(each.check) for each in findings)
    for each in findings:
        first, *more = wrapped(each.evidence)
        print(f"{each.check:<{wide}}  {each.verdict:<5}  {first}")
        for line in more:
            print(f"{'':<{wide}}         {line}")
        if each.remedy:
            print(f"{'':<{wide}}  try    {each.remedy}")


def wrapped(text: str) -> list[str]:
    """Lines of whole words."""
    return textwrap.wrap(text, WIDE, break_long_words=False, break_on_hyphens=False) or [""]
