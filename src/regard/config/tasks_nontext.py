"""Config of other tasks: contrastive, captioning, text-to-image, next pixel, node classification, forecasting.

kind           reads        predicts                                      a model with
contrastive    image, text  which image of a batch matches which text     two towers
captioning     image, text  the text, token by token                      an encoder, or embed.kind multimodal
text_to_image  text, image  the image after the text, pixel by pixel      one causal trunk
next_pixel     input        the next value, at every position             causal, head lm
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_classes, check_columns, check_label_smoothing, check_minimum, config_class
from regard.config.inputs.image import PixelEmbedding


@config_class
class Forecasting:
    """Forecasting: the next rows of a table of numbers, one row per time step.

    `date_column` is the time column (none: rows are evenly spaced), `columns` are those read and predicted (none named:
    all others). `fill_gaps` refuses an empty cell or missing row, repeats the last value, or interpolates linearly.

    `split` gives the numbers of consecutive rows for training, validation and test; without it the end of the table is
    held out as data.validation says. `eval_split` is the part for validation and evaluation. Numbers are standardised
    by the training rows; the loss is the mean squared error, the absolute error (mae), or a mixture that is squared
    below 1 and absolute beyond (huber).
    """

    kind: Literal["forecasting"] = "forecasting"
    date_column: str | None = "date"
    columns: tuple[str, ...] = ()
    fill_gaps: Literal["error", "last", "linear"] = "error"
    split: tuple[int, ...] = ()
    eval_split: Literal["validation", "test"] = "validation"
    loss: Literal["mse", "mae", "huber"] = "mse"

    def __post_init__(self) -> None:
        if "" in self.columns or self.date_column == "" or len(set(self.columns)) < len(self.columns):
            raise ConfigError("columns: every column needs a name of its own; remove what is empty or double")
        if self.date_column in self.columns:
            raise ConfigError(f"columns: {self.date_column!r} is the date; name columns of numbers, or another date")
        if self.split and len(self.split) not in (2, 3):
            raise ConfigError(f"split: {len(self.split)} numbers; name the rows to train, to validate and to test on")
        check_minimum(1, **{f"split[{place}]": rows for place, rows in enumerate(self.split)})


@config_class
class NodeClassification:
    """Node classification in one graph; without `classes` they come from the graph.

    The whole graph is read in every step, and only nodes of split "train" have labels in training (Kipf and Welling
    2017). `eval_split` are the nodes for validation and evaluation.
    """

    kind: Literal["node_classification"] = "node_classification"
    classes: tuple[str, ...] = ()
    eval_split: Literal["train", "validation", "test"] = "validation"

    def __post_init__(self) -> None:
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise ConfigError(f"classes: {list(self.classes)} are not two or more different ones")


@config_class
class Contrastive:
    """Contrastive image-text task: each image is matched with its text among those of the batch (CLIP: Radford et al.
    2021).

    With `phrase_list` a text is a comma-separated list, of which a training batch reads a random sample in random
    order: a few pairs then teach more, and single words are valid texts.

    With a `label` evaluation also classifies images zero-shot: the text of a class is its name in the `prompt`. Without
    `classes` they come from the training data.
    """

    kind: Literal["contrastive"] = "contrastive"
    image: str = "image"
    text: str = "text"
    phrase_list: bool = False
    label: str | None = None
    classes: tuple[str, ...] = ()
    prompt: str = "{}"

    def __post_init__(self) -> None:
        check_columns(image=self.image, text=self.text, label=self.label)
        check_classes(self.classes)
        if "{}" not in self.prompt:
            raise ConfigError(f"prompt: {self.prompt!r} has no place for the name of a class; write {{}} there, as in "
                             "'a picture of {}'")  # fmt: skip
        if self.label is None and (self.classes or self.prompt != "{}"):
            raise ConfigError("label: classes and prompt are for the column with the class of a picture; name it, or "
                             "leave them out")  # fmt: skip


@config_class
class Captioning:
    """Captioning: the text of an image, with teacher forcing; `label_smoothing` as in translation."""

    kind: Literal["captioning"] = "captioning"
    image: str = "image"
    text: str = "text"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_columns(image=self.image, text=self.text)
        check_label_smoothing(self.label_smoothing)


@config_class
class TextToImage:
    """Text-to-image: one sequence of text tokens, then colours (DALL-E: Ramesh et al. 2021).

    `pixels` defines how an image becomes ids: its grid, and its palette, whose colours are learned from the training
    data if none are given. The text tokens are predicted too, with weight `text_loss_weight`. `phrase_list` as in
    contrastive.
    """

    kind: Literal["text_to_image"] = "text_to_image"
    text: str = "text"
    phrase_list: bool = False
    image: str = "image"
    pixels: PixelEmbedding = PixelEmbedding(palette=64, grid=(16, 16))
    text_loss_weight: float = 0.125

    def __post_init__(self) -> None:
        check_columns(text=self.text, image=self.image)
        if not 0 <= self.text_loss_weight < 1:
            raise ConfigError(
                f"text_loss_weight: {self.text_loss_weight} is not from 0 up to 1; 0 trains on the image alone"
            )


@config_class
class NextPixel:
    """Next-pixel prediction at every position, row by row (ImageGPT: Chen et al. 2020); `input` is the image column."""

    kind: Literal["next_pixel"] = "next_pixel"
    input: str = "text"

    def __post_init__(self) -> None:
        check_columns(input=self.input)
