"""regard doctor: what is wrong with a recipe or a run, found in a short probe, and the command that repairs it."""

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.errors import print_stderr
from regard.cli.output import JsonOption, OverridesArgument, import_torch, print_json
from regard.cli.train import QuietOption, complete_recipes

WIDE = 100  # characters of evidence on a line


def doctor(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE_OR_RUN", help="A recipe, or the folder of a run.", autocompletion=complete_recipes
        ),
    ],
    overrides: OverridesArgument = None,
    steps: Annotated[int, typer.Option(help="Steps of the probe, from 10 to 50.")] = 50,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> int:
    """Find out what is wrong with a recipe or a run, in a short probe.

    Trains a copy for a few steps, in memory: nothing is written but the cache of tokens. Ends with code 0 if no
    fault is found, and with 1 if something is wrong; a finding marked "look" is no fault.
    """
    changes = overrides or []
    if not (Path(thing) / "config.toml").is_file():
        zoo.read_recipe(thing, changes)  # report typing errors before importing torch
    if not 10 <= steps <= 50:
        raise config.ConfigError(f"--steps: {steps} is not from 10 to 50")
    import_torch()
    from regard.doctor import examine_run
    from regard.doctor.run_history import open_run_or_recipe

    run, log = open_run_or_recipe(thing, changes, notice=print_stderr)
    findings = examine_run(run, steps, log=log, **({} if quiet else {"progress": print_stderr}))
    faults = [finding for finding in findings if finding.verdict == "wrong"]
    if json:
        told = [{name: getattr(each, name) for name in ("check", "verdict", "evidence", "remedy")} for each in findings]
        print_json({"healthy": not faults, "steps": steps, "findings": told})
    else:
        show_diagnosis(findings)
        print(f"\n{len(faults)} of {len(findings)} checks found something wrong" if faults else "\nno faults found")
    return 1 if faults else 0


def show_diagnosis(findings: list[Any]) -> None:
    """Findings in columns: check, verdict, evidence; below a failure the command that repairs it."""
    wide = max(len(each.check) for each in findings)
    for each in findings:
        first, *more = wrap_words(each.evidence)
        print(f"{each.check:<{wide}}  {each.verdict:<5}  {first}")
        for line in more:
            print(f"{'':<{wide}}         {line}")
        if each.remedy:
            print(f"{'':<{wide}}  try    {each.remedy}")


def wrap_words(text: str) -> list[str]:
    """Wrap a text to lines."""
    return textwrap.wrap(text, WIDE, break_long_words=False, break_on_hyphens=False) or [""]
