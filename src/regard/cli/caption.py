"""regard caption and regard match: captions of images, and which of some texts matches an image."""

from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import (
    CheckpointArgument,
    Dtype,
    JsonOption,
    WeightsOption,
    check_surrogates,
    config_from_options,
    import_torch,
    print_json,
)

Pictures = Annotated[list[str], typer.Argument(metavar="FILE…", help="Pictures, or other files that the model reads.")]


def caption(
    checkpoint: CheckpointArgument,
    pictures: Pictures,
    *,
    num_beams: Annotated[int, typer.Option(help="Beams of the search.")] = 4,
    max_new_tokens: Annotated[int | None, typer.Option(help="The most tokens of a text.")] = None,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    json: JsonOption = False,
) -> None:
    """Caption images."""
    settings: dict[str, Any] = {"num_beams": num_beams}
    settings |= {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
    config_from_options(config.BeamSearchParams, settings)
    import_torch()
    from regard.inference.load import load_for_inference

    told = load_for_inference(checkpoint, dtype=dtype, weights=weights).caption(pictures, **settings)
    if json:
        return print_json({"captions": dict(zip(pictures, told, strict=True))})
    for name, text in zip(pictures, told, strict=True):
        print(text if len(told) == 1 else f"{name}: {text}")


def match(
    checkpoint: CheckpointArgument,
    pictures: Pictures,
    *,
    text: Annotated[list[str], typer.Option(metavar="TEXT", help="A candidate text; repeat for more.")],
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    json: JsonOption = False,
) -> None:
    """Match images with texts: the probability of each text for each image."""
    texts = [check_surrogates(each, "--text") for each in text]
    import_torch()
    from regard.inference.dual_encoder_model import DualEncoderModel
    from regard.inference.load import load_for_inference

    model = load_for_inference(checkpoint, dtype=dtype, weights=weights)
    if not isinstance(model, DualEncoderModel):
        raise config.ConfigError(f"{checkpoint}: only a dual encoder matches pictures and texts; name a run "
                                 "of task 'contrastive', or use caption or classify")  # fmt: skip
    shares = model.match(pictures, texts).tolist()
    told = {name: sorted(zip(texts, row, strict=True), key=lambda each: -each[1])
            for name, row in zip(pictures, shares, strict=True)}  # fmt: skip
    if json:
        return print_json({"matches": {name: dict(row) for name, row in told.items()}})
    for name, row in told.items():
        said = "   ".join(f"{each} {share:.4f}" for each, share in row)
        print(said if len(told) == 1 else f"{name}  {said}")
