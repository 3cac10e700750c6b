"""regard draw: images from a pixel model or a text-to-image model, in one file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import (
    CheckpointArgument,
    JsonOption,
    check_surrogates,
    config_from_options,
    import_torch,
    print_json,
)


def draw(
    checkpoint: CheckpointArgument,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file, such as pictures.png.")],
    *,
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What to draw, in a row for each; repeat for more.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many pictures, of each text.")] = 16,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; below 1 likelier values.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest values.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest that reach this probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same pictures.")] = None,
    prefix_image: Annotated[
        str | None, typer.Option(metavar="FILE", help="A picture whose first rows are given.")
    ] = None,
    prefix_rows: Annotated[int | None, typer.Option(help="How many rows of it; by default the upper half.")] = None,
    json: JsonOption = False,
) -> None:
    """Generate images pixel by pixel, and arrange them in one file."""
    if count < 1:
        raise config.ConfigError(f"--count: {count} is less than 1")
    if prefix_rows is not None and prefix_image is None:
        raise config.ConfigError(f"--prefix-rows: {prefix_rows} rows of which picture? name it with --prefix-image")
    settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    config_from_options(config.SamplingParams, {name: value for name, value in settings.items() if value is not None})
    import_torch()
    from regard.data.readers.images import load_image, save_image
    from regard.inference import images
    from regard.inference.load import load_for_inference
    from regard.inputs.image_processor import resize_image

    model = load_for_inference(checkpoint)
    if text:
        if prefix_image is not None:
            raise config.ConfigError(
                f"--prefix-image {prefix_image}: it does not go with --text; leave out one of the two"
            )
        asked = [check_surrogates(each, "--text") for each in text for _ in range(count)]
        given = {name: value for name, value in settings.items() if value is not None}
        save_image(images.contact_sheet(model.generate_images(asked, **given).cpu(), count), out)
        return print_json({"out": out, "count": len(asked), "seed": seed}) if json else print(out)
    c = images.pixel_config(model)
    if prefix_image is not None:
        image = resize_image(
            load_image(prefix_image, c.channels, prefix_image, c.max_value), c.grid[0], c.grid[1], c.resize
        )
        settings |= {"prefix_image": image, "prefix_rows": c.grid[0] // 2 if prefix_rows is None else prefix_rows}
    save_image(images.contact_sheet(images.sample_images(model, count, **settings).cpu()), out)
    print_json({"out": out, "count": count, "seed": seed}) if json else print(out)
