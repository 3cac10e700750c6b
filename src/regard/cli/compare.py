"""regard compare: variants of a recipe, built-in studies, tuning and demos, as one table and one page."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.errors import print_stderr
from regard.cli.output import JsonOption, import_torch, print_json
from regard.config.errors import did_you_mean
from regard.zoo.recipe import packaged_recipes

BUILTIN_STUDIES = (
    "attention",
    "complexity",
    "in-context",
    "landscape",
    "positions",
    "transformer-vs-rnn",
    "vit-vs-cnn",
)


def compare(
    thing: Annotated[
        str,
        typer.Argument(metavar="RECIPE|STUDY", help=f"A recipe, or a ready-made study: {', '.join(BUILTIN_STUDIES)}."),
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=A,B,C", help="What differs, every value with every other; one value: a setting."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each variant.  [default: 3]")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes of each run, in place of its steps.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder; by default runs/compare-NAME.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Learning rate, warm-up, batch, dropout, shape, one after the other.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A ready-made study in a minute, to see it work.")] = False,
    json: JsonOption = False,
) -> int:
    """Compare settings: same data, steps and seeds; loss, time, memory, growth.

    Run again with the same arguments, it resumes.
    """
    if seeds is not None and seeds < 1:
        raise config.ConfigError(f"--seeds {seeds}: is less than 1")
    if quick and (thing not in BUILTIN_STUDIES or tune):
        raise config.ConfigError(
            f"--quick: is for the ready-made studies ({', '.join(BUILTIN_STUDIES)}); set train.steps"
        )
    known = (*BUILTIN_STUDIES, *packaged_recipes())
    if thing not in known and not Path(thing).exists():
        raise config.ConfigError(f"{thing}: no such recipe or study{did_you_mean(thing, known)} there are "
                                 f"{', '.join(known)}")  # fmt: skip
    more = tuple(keys or ())
    if minutes is not None:
        more = (*more, f"train.minutes={minutes}", "train.steps=none", "train.epochs=none")
    place = out or Path("runs") / f"compare-{Path(thing).stem}{'-tune' * tune}{'-quick' * quick}"
    command = shlex.join(["regard", *sys.argv[1:]]) if sys.argv[1:2] == ["compare"] else ""
    import_torch()
    from regard import studies as room

    if tune:
        return run_tuning(
            room.TuningRun(thing, more, place, seeds=seeds or 1, command=command, tell=print_stderr), json
        )
    if thing in room.DEMOS:
        return run_demo_command(thing, room.DemoSettings(place, more, seeds, quick, command, print_stderr), json)
    if thing in room.builtin_studies():
        study = room.load_study(thing, more, quick)
        study = study if seeds is None else replace(study, seeds=seeds)
        if not quick:
            print_stderr(f"{study.title} About {study.minutes:.0f} minutes on two cores; {place} keeps what is done")
    else:
        study = room.study_from_keys(thing, more, 3 if seeds is None else seeds)
    return run_comparison(room.StudyRun(study, place, command=command, tell=print_stderr), json)


def run_comparison(run: Any, json: bool) -> int:
    """Train and measure, then show the results: table on stdout, compare.json, .csv and .html in the folder."""
    if (stopped := run.run()) is not None:
        return interrupted_exit(run.out, stopped)
    from regard import studies as room
    from regard.report.study_pages import write_comparison_page

    room.write_results(run)
    told = room.study_results(run)
    page = write_comparison_page(run.out, told)
    print_json({"out": run.out, "page": page, **told}) if json else print(
        room.format_tables(run), f"\n\npage  {page}", sep=""
    )
    return 0


def run_tuning(tuning: Any, json: bool) -> int:
    from regard.studies import tune

    if (stopped := tuning.run()) is not None:
        return interrupted_exit(tuning.out, stopped)
    print_json(tune.tuning_table(tuning)) if json else print(tune.format_tuning(tuning))
    return 0


def run_demo_command(name: str, options: Any, json: bool) -> int:
    from regard.files.atomic import write_json
    from regard.report.study_pages import write_demo_page
    from regard.studies import demo

    try:
        told = demo.run_demo(name, options)
    except demo.DemoInterrupted as stopped:
        return interrupted_exit(options.out, stopped.signal)
    write_json(options.out / "claim.json", told)
    page = write_demo_page(options.out, told)
    print_json({"out": options.out, "page": page, **told}) if json else print(
        demo.format_demo(told), f"\n\npage  {page}", sep=""
    )
    return 0


def interrupted_exit(out: Path, signal: int) -> int:
    print_stderr(f"interrupted, with all runs saved; the same command continues it ({out})")
    return 128 + signal
