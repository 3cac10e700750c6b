"""What can be said about pixels as an objective: an image is told value by value, as a text is word by word."""

from typing import Literal

from regard.config.checks import columns
from regard.config.setting import setting


@setting
class NextPixel:
    """The next value of an image, row by row, everywhere at once (ImageGPT: Chen et al. 2020); `text` is its column."""

    kind: Literal["pixels"] = "pixels"
    text: str = "text"

    def __post_init__(self) -> None:
        columns(text=self.text)
