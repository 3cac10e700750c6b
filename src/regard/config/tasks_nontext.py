"""What can be asked of mixtures: what is seen and a text, which belong together.

    kind       reads          is asked for                                         a model with
    contrast   image, text    which picture belongs to which text, of a batch      two towers
    caption    image, text    the text, word by word                               an encoder, or embed.kind mixed
    draw       text, image    the picture after the text, pixel by pixel           one causal trunk
"""

from typing import Literal

from regard.config.checks import check_classes, check_smoothing, columns
from regard.config.images import Pixels
from regard.config.setting import setting


@setting
class Contrast:
    """Which picture goes with which text: each is told from all others of its batch (CLIP: Radford et al. 2021).

    With `phrases` a text is a list with commas between, of which a training batch reads some, in any order and drawn
    anew each time: so few pairs teach more, and a single word is a text like others.

    With a `label` an evaluation also sorts pictures into classes without having been trained to (zero-shot): the text
    of a class is its name in the `prompt`. Without `classes` they are found in the training data.
    """

    kind: Literal["contrast"] = "contrast"
    image: str = "image"
    text: str = "text"
    phrases: bool = False
    label: str | None = None
    classes: tuple[str, ...] = ()
    prompt: str = "{}"

    def __post_init__(self) -> None:
        columns(image=self.image, text=self.text, label=self.label)
        check_classes(self.classes)
        if "{}" not in self.prompt:
            raise ValueError(f"prompt: {self.prompt!r} has no place for the name of a class; write {{}} there, as in "
                             "'a picture of {}'")  # fmt: skip
        if self.label is None and (self.classes or self.prompt != "{}"):
            raise ValueError("label: classes and prompt are for the column with the class of a picture; name it, or "
                             "leave them out")  # fmt: skip


@setting
class Caption:
    """The text that goes with a picture, each word told what stood before it; `smoothing` as in translate."""

    kind: Literal["caption"] = "caption"
    image: str = "image"
    text: str = "text"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        columns(image=self.image, text=self.text)
        check_smoothing(self.smoothing)


@setting
class Draw:
    """The picture that goes with a text: one sequence of words, then of colours (DALL-E: Ramesh et al. 2021).

    `pixels` say how a picture becomes ids: its grid, and its palette, whose colours are learned from the training data
    where none are said. The words themselves are asked too, and weigh `words` of the whole. `phrases` as in contrast.
    """

    kind: Literal["draw"] = "draw"
    text: str = "text"
    phrases: bool = False
    image: str = "image"
    pixels: Pixels = Pixels(palette=64, grid=(16, 16))
    words: float = 0.125

    def __post_init__(self) -> None:
        columns(text=self.text, image=self.image)
        if not 0 <= self.words < 1:
            raise ValueError(f"words: {self.words} is not from 0 up to 1; 0 asks for the picture alone")
