"""regard compare: one table and one page, for whatever can be said in a recipe; and studies that are ready-made."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.mistakes import talk
from regard.cli.output import Json, as_json, with_torch
from regard.config.names import did_you_mean
from regard.zoo import recipes

READY = ("attention", "complexity", "in-context", "landscape", "positions", "transformer-vs-rnn", "vit-vs-cnn")


def compare(
    thing: Annotated[
        str, typer.Argument(metavar="RECIPE|STUDY", help=f"A recipe, or a ready-made study: {', '.join(READY)}.")
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=A,B,C", help="What differs, every value with every other; one value: a setting."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each variant.  [default: 3]")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes of each run, in place of its steps.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where; runs/compare-NAME unless said.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Learning rate, warm-up, batch, dropout, shape, one after the other.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A ready-made study in a minute, to see it work.")] = False,
    json: Json = False,
) -> int:
    """Compare settings: same data, steps and seeds; loss, time, memory, growth.

    Asked again with the same words it goes on where it stopped.
    """
    if seeds is not None and seeds < 1:
        raise config.ConfigError(f"--seeds {seeds}: is less than 1")
    if quick and (thing not in READY or tune):
        raise config.ConfigError(f"--quick: is for the ready-made studies ({', '.join(READY)}); set train.steps")
    known = (*READY, *recipes())
    if thing not in known and not Path(thing).exists():
        raise config.ConfigError(f"{thing}: no such recipe or study{did_you_mean(thing, known)} there are "
                                 f"{', '.join(known)}")  # fmt: skip
    more = tuple(keys or ())
    if minutes is not None:
        more = (*more, f"train.minutes={minutes}", "train.steps=none", "train.epochs=none")
    place = out or Path("runs") / f"compare-{Path(thing).stem}{'-tune' * tune}{'-quick' * quick}"
    command = shlex.join(["regard", *sys.argv[1:]]) if sys.argv[1:2] == ["compare"] else ""
    with_torch()
    from regard.train import compare as room

    if tune:
        return tuned(room.Tuning(thing, more, place, seeds=seeds or 1, command=command, tell=talk), json)
    if thing in room.CLAIMS:
        return claimed(thing, room.Asked(place, more, seeds, quick, command, talk), json)
    if thing in room.ready():
        study = room.study(thing, more, quick)
        study = study if seeds is None else replace(study, seeds=seeds)
        if not quick:
            talk(f"{study.title} About {study.minutes:.0f} minutes on two cores; {place} keeps what is done")
    else:
        study = room.given(thing, more, 3 if seeds is None else seeds)
    return compared(room.Comparison(study, place, command=command, tell=talk), json)


def compared(made: Any, json: bool) -> int:
    """Train and measure, then tell it: the table on stdout, compare.json, .csv and .html in the folder."""
    if (stopped := made.go()) is not None:
        return interrupted(made.out, stopped)
    from regard.report.compare import write
    from regard.train import compare as room

    room.write(made)
    told = room.told(made)
    page = write(made.out, told)
    as_json({"out": made.out, "page": page, **told}) if json else print(room.text(made), f"\n\npage  {page}", sep="")
    return 0


def tuned(tuning: Any, json: bool) -> int:
    from regard.train.compare import tune

    if (stopped := tuning.go()) is not None:
        return interrupted(tuning.out, stopped)
    as_json(tune.tree(tuning)) if json else print(tune.text(tuning))
    return 0


def claimed(name: str, asked: Any, json: bool) -> int:
    from regard.report.claims import write
    from regard.train.compare import claims
    from regard.train.facts import write_json

    try:
        told = claims.shown(name, asked)
    except claims.Stopped as stopped:
        return interrupted(asked.out, stopped.signal)
    write_json(asked.out / "claim.json", told)
    page = write(asked.out, told)
    as_json({"out": asked.out, "page": page, **told}) if json else print(claims.text(told), f"\n\npage  {page}", sep="")
    return 0


def interrupted(out: Path, signal: int) -> int:
    talk(f"interrupted, with all runs saved; the same command goes on with it ({out})")
    return 128 + signal
