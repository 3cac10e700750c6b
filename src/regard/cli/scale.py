"""regard scale: how the loss of a recipe falls with its size, as a law with what it leaves over."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.mistakes import talk
from regard.cli.output import Json, Overrides, as_json, with_torch

RECORDED = ("regard", "torch", "processor", "device", "threads", "started", "command")


def scale(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or a packaged name.")],
    overrides: Overrides = None,
    sizes: Annotated[str, typer.Option(help="How many widths up to the recipe's, 4 or more, or the widths.")] = "5",
    family: Annotated[
        list[str] | None, typer.Option(metavar="SETTINGS", help="Another kind of model beside it, as recipe=lstm.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each size.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where; runs/scale-NAME unless said.")] = None,
    json: Json = False,
) -> int:
    """Train several sizes for the same tokens and fit a power law.

    Asked again with the same words it goes on where it stopped.
    """
    place = out or Path("runs") / f"scale-{Path(recipe).stem}"
    command = shlex.join(["regard", *sys.argv[1:]]) if sys.argv[1:2] == ["scale"] else ""
    with_torch()
    from regard.report.scaling import write
    from regard.train.compare import scale as room
    from regard.train.facts import write_json

    scaling = room.Scaling(recipe, tuple(overrides or ()), place, widths=sizes, families=tuple(family or ()),
                           seeds=seeds, command=command, tell=talk)  # fmt: skip
    if (stopped := scaling.go()) is not None:
        talk(f"interrupted; the same command goes on with it ({place})")
        return 128 + stopped
    found, kept = scaling.families(), scaling.compared.kept
    told = {"title": scaling.compared.study.title, "families": room.tree(found), **{n: kept.get(n) for n in RECORDED}}
    write_json(place / "scale.json", told)
    page = write(place, told)
    as_json({"out": place, "page": page, **told}) if json else print(room.text(found), f"\n\npage  {page}", sep="")
    return 0
