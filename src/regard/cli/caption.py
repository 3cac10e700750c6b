"""regard caption and regard match: what does a picture show, and which of some texts goes with it?"""

from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import Checkpoint, Dtype, Json, Weights, as_json, in_options, spoken, with_torch

Pictures = Annotated[list[str], typer.Argument(metavar="FILE…", help="Pictures, or whatever the model sees.")]


def caption(
    checkpoint: Checkpoint,
    pictures: Pictures,
    *,
    beams: Annotated[int, typer.Option(help="Texts that are searched side by side.")] = 4,
    new: Annotated[int | None, typer.Option(help="The most tokens of a text.")] = None,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    json: Json = False,
) -> None:
    """Write what each picture shows."""
    settings: dict[str, Any] = {"beams": beams} | ({} if new is None else {"new": new})
    in_options(config.Search, settings)
    with_torch()
    from regard.generate.opening import load_to_answer

    told = load_to_answer(checkpoint, dtype=dtype, weights=weights).caption(pictures, **settings)
    if json:
        return as_json({"captions": dict(zip(pictures, told, strict=True))})
    for name, text in zip(pictures, told, strict=True):
        print(text if len(told) == 1 else f"{name}: {text}")


def match(
    checkpoint: Checkpoint,
    pictures: Pictures,
    *,
    text: Annotated[list[str], typer.Option(metavar="TEXT", help="One that may go with them; say it again for more.")],
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    json: Json = False,
) -> None:
    """Tell which of some texts goes with each picture, and how sure that is among these."""
    texts = [spoken(each, "--text") for each in text]
    with_torch()
    from regard.generate.opening import load_to_answer
    from regard.generate.towers import Towers

    model = load_to_answer(checkpoint, dtype=dtype, weights=weights)
    if not isinstance(model, Towers):
        raise config.ConfigError(f"{checkpoint}: one model, and two towers compare pictures with texts; name a run of "
                                 "task 'contrast', or ask caption or classify")  # fmt: skip
    shares = model.match(pictures, texts).tolist()
    told = {name: sorted(zip(texts, row, strict=True), key=lambda each: -each[1])
            for name, row in zip(pictures, shares, strict=True)}  # fmt: skip
    if json:
        return as_json({"matches": {name: dict(row) for name, row in told.items()}})
    for name, row in told.items():
        said = "   ".join(f"{each} {share:.4f}" for each, share in row)
        print(said if len(told) == 1 else f"{name}  {said}")
