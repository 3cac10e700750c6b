"""regard scale: a scaling law of a recipe: its loss as a power law of its size, with the residuals."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.errors import print_stderr
from regard.cli.output import JsonOption, OverridesArgument, import_torch, print_json

RECORDED = ("regard", "torch", "processor", "device", "threads", "started", "command")


def scale(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or a packaged name.")],
    overrides: OverridesArgument = None,
    sizes: Annotated[str, typer.Option(help="How many widths up to the recipe's, 4 or more, or the widths.")] = "5",
    family: Annotated[
        list[str] | None, typer.Option(metavar="SETTINGS", help="Another kind of model beside it, as recipe=lstm.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each size.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder; by default runs/scale-NAME.")] = None,
    json: JsonOption = False,
) -> int:
    """Train several sizes for the same tokens and fit a power law.

    Run again with the same arguments, it resumes.
    """
    place = out or Path("runs") / f"scale-{Path(recipe).stem}"
    command = shlex.join(["regard", *sys.argv[1:]]) if sys.argv[1:2] == ["scale"] else ""
    import_torch()
    from regard.files.atomic import write_json
    from regard.report.study_pages import write_scaling_page
    from regard.studies import scaling as room

    scaling = room.ScalingStudy(recipe, tuple(overrides or ()), place, widths=sizes, families=tuple(family or ()),
                           seeds=seeds, command=command, tell=print_stderr)  # fmt: skip
    if (stopped := scaling.run()) is not None:
        print_stderr(f"interrupted; the same command continues it ({place})")
        return 128 + stopped
    found, kept = scaling.families(), scaling.compared.kept
    told = {
        "title": scaling.compared.study.title,
        "families": room.scaling_table(found),
        **{n: kept.get(n) for n in RECORDED},
    }
    write_json(place / "scale.json", told)
    page = write_scaling_page(place, told)
    print_json({"out": place, "page": page, **told}) if json else print(
        room.format_scaling(found), f"\n\npage  {page}", sep=""
    )
    return 0
