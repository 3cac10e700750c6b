"""regard draw: pictures from a model of pixels, or of words and colours, in one file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import Checkpoint, Json, as_json, in_options, spoken, with_torch


def draw(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where they go, such as pictures.png.")],
    *,
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What to draw, in a row for each; say it again for more.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many pictures, of each text.")] = 16,
    temperature: Annotated[float, typer.Option(help="Below 1 more certain, above 1 more daring.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest values.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest that reach this probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same pictures.")] = None,
    begin: Annotated[str | None, typer.Option(metavar="FILE", help="A picture whose first rows are given.")] = None,
    rows: Annotated[int | None, typer.Option(help="How many rows of it; by itself the upper half.")] = None,
    json: Json = False,
) -> None:
    """Draw pictures value by value, and lay them on one sheet."""
    if count < 1:
        raise config.ConfigError(f"--count: {count} is less than 1")
    if rows is not None and begin is None:
        raise config.ConfigError(f"--rows: {rows} rows of which picture? name it with --begin")
    settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    in_options(config.Sampling, {name: value for name, value in settings.items() if value is not None})
    with_torch()
    from regard.data.pictures import picture, save
    from regard.generate import pictures
    from regard.generate.opening import load_to_answer
    from regard.inputs.image_sense import framed

    model = load_to_answer(checkpoint)
    if text:
        if begin is not None:
            raise config.ConfigError(f"--begin {begin}: a text says what to draw; leave out one of the two")
        asked = [spoken(each, "--text") for each in text for _ in range(count)]
        given = {name: value for name, value in settings.items() if value is not None}
        save(pictures.sheet(model.paint(asked, **given).cpu(), count), out)
        return as_json({"out": out, "count": len(asked), "seed": seed}) if json else print(out)
    c = pictures.pixels(model)
    if begin is not None:
        image = framed(picture(begin, c.channels, begin, c.white), c.grid[0], c.grid[1], c.frame)
        settings |= {"begin": image, "rows": c.grid[0] // 2 if rows is None else rows}
    save(pictures.sheet(pictures.draw(model, count, **settings).cpu()), out)
    as_json({"out": out, "count": count, "seed": seed}) if json else print(out)
