"""What can be said about places on a grid that is told row by row."""

from typing import Literal

from regard.config.checks import at_least
from regard.config.setting import setting


@setting
class Near:
    """A vector for each row and each column, and heads that begin as a convolution (Cordonnier et al. 2020).

    Each head has a neighbour to look at and how sharply, both learned: what it adds to a score falls with the squared
    distance from there. `grid` is rows and tokens in a row: of pixels whose channels are told one by one, [32, 96].
    """

    kind: Literal["near"] = "near"
    grid: tuple[int, ...] = (32, 32)

    def __post_init__(self) -> None:
        if len(self.grid) != 2:
            raise ValueError(f"grid: {list(self.grid)} is not rows and tokens in a row, such as [32, 32]")
        at_least(1, rows=self.grid[0], columns=self.grid[1])
