"""Where to look first on a grid: heads that begin as the neighbours of a convolution, and learn to look elsewhere.

    . . . . . . .
    . 7 3 2 4 . .      `?` is the pixel that is asked for; it is told after all that stand above it and before it.
    . 5 1 ?            Head 1 begins at the pixel before, head 2 at the one above, and so on.

A head whose score falls with the squared distance from one neighbour sees that neighbour alone: so many heads are a
convolution (Cordonnier et al. 2020). Begun anywhere else, attention over pixels must find that out before it can learn
anything about images. The grid is read off the order of the tokens, so that a cache needs nothing more.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import config
from regard.core.positions import POSITIONS, Bias, Place, Position
from regard.core.tokens import Places, Spot

# Rows and columns from the query's token to the key's. A token carries the pixel before it: that one is at (0, 0), and
# the pixel above stands in the token to the right of it.
AROUND = ((0, 0), (-1, 1), (-1, 0), (-1, 2), (0, -1), (-2, 1), (-1, -1), (-1, 3))


class Near(Position):
    """x + row + column on the vectors, and -sharpness·|offset - neighbour|² on the scores."""

    first: Tensor

    def __init__(self, c: config.Near, dim: int, heads: int) -> None:
        super().__init__()
        self.c, self.mode = c, "add"
        self.rows, self.columns = (nn.Parameter(torch.empty(size, dim)) for size in c.grid)
        self.looks = nn.Parameter(torch.empty(heads, 3))  # of each head: rows, columns, log of the sharpness
        first = [AROUND[head % len(AROUND)] for head in range(heads)]
        self.register_buffer("first", torch.tensor(first, dtype=torch.float32))  # what the looks are counted from

    def check(self, count: int, grid: tuple[int, ...] | None) -> None:
        if count > self.c.grid[0] * self.c.grid[1]:
            raise ValueError(f"{count} tokens are more than position.grid {list(self.c.grid)} has places for")

    def table(self, places: Places) -> Tensor:
        order = places.order[:1] if places.plain else places.order
        return self.rows[order // self.c.grid[1]] + self.columns[order % self.c.grid[1]]

    def prepare(self, q: Places, k: Places) -> Place:
        return Place(bias=Neighbour(self.first + self.looks[:, :2], self.looks[:, 2].exp(), self.c.grid[1]))


@dataclass(eq=False)
class Neighbour(Bias):
    neighbour: Tensor  # (H, 2)
    sharpness: Tensor  # (H,)
    columns: int

    def at(self, b: Tensor, h: Tensor, q: Spot, k: Spot) -> Tensor:
        down = k.order // self.columns - q.order // self.columns - self.neighbour[h, 0]
        across = k.order % self.columns - q.order % self.columns - self.neighbour[h, 1]
        return -self.sharpness[h] * (down * down + across * across)


POSITIONS[config.Near] = lambda c, dim, heads, width: Near(c, dim, heads)
