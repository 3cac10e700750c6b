"""What can be said about films as input: frames in time, cut into blocks of a few frames and a square of pixels."""

from typing import Literal

from regard.config.checks import at_least
from regard.config.seen import Seen
from regard.config.setting import setting


@setting
class Film(Seen):
    """`frames` images of `image` pixels a side; a token is a block of `tube` frames and `size` pixels a side.

    Tokens stand on a grid of time, rows and columns: positions have three axes (Arnab et al. 2021).
    """

    kind: Literal["film"] = "film"
    frames: int = 16
    image: int = 64
    channels: int = 3
    tube: int = 2
    size: int = 16

    def __post_init__(self) -> None:
        at_least(1, frames=self.frames, image=self.image, tube=self.tube, size=self.size)
        if self.channels not in (1, 3):
            raise ValueError(f"channels: {self.channels}; 1 is grey and 3 is colour")
        if self.frames % self.tube:
            raise ValueError(f"tube: blocks of {self.tube} frames do not fill {self.frames}")
        if self.image % self.size:
            raise ValueError(f"size: blocks of {self.size} pixels do not fill an image of {self.image}")

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks in time, in a column and in a row."""
        return self.frames // self.tube, self.image // self.size, self.image // self.size

    @property
    def count(self) -> int:
        """The tokens that a film becomes."""
        time, rows, columns = self.grid
        return time * rows * columns
