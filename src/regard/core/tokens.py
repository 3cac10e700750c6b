"""Tokens: vectors with their layout, which every front end passes to the trunk and an encoder to a decoder.

Letters everywhere: B batch, N tokens, Q queries, K keys, H heads, D width, V vocabulary.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError


@dataclass(kw_only=True, eq=False)
class TokenLayout:
    """The layout of tokens: the tables that masks and positions read. None means that a table is absent.

    order          (B, N) index in the sequence: what causal and window masks compare
    coords         (B, N, axes) coordinates for positions; `order` if not given
    is_real        (B, N) True for tokens, False for padding
    document       (B, N) which of several packed documents a token belongs to
    edges          (B, N, N) True where two tokens of a graph have an edge
    segment        (B, N) sentence A or B
    end            (B,) index of the end-of-text token

    is_plain       every row is 0..N-1, without padding or packing: the fast path, masks need no data
    grid           the tokens fill exactly this grid row by row: coordinates need no data
    num_documents  upper bound of documents in the batch, each contiguous and in order: variable-length kernels may run
    """

    order: Tensor
    coords: Tensor | None = None
    is_real: Tensor | None = None
    document: Tensor | None = None
    edges: Tensor | None = None
    segment: Tensor | None = None
    end: Tensor | None = None
    is_plain: bool = False
    grid: tuple[int, ...] | None = None
    num_documents: int | None = None

    @property
    def batch(self) -> int:
        return self.order.shape[0]

    @property
    def count(self) -> int:
        return self.order.shape[1]

    @property
    def longest(self) -> int:
        """Tokens in the longest document, or 0 where reading it would wait for the GPU or break a compiled graph."""
        if self.document is None:
            return self.count
        known = self.order.device.type == "cpu" and not torch.compiler.is_compiling()
        return int(self.order.max()) + 1 if known else 0

    @property
    def coordinates(self) -> Tensor:  # (B, N, axes), or one row if all rows are alike
        table = self.order[..., None] if self.coords is None else self.coords
        return table[:1] if self.is_plain and (self.coords is None or self.grid is not None) else table


@dataclass(kw_only=True, eq=False)
class Tokens(TokenLayout):
    """Token vectors x (B, N, D) with their layout."""

    x: Tensor

    def with_vectors(self, x: Tensor) -> "Tokens":
        """A copy of the layout with other vectors."""
        return replace(self, x=x)


def sequence_tokens(x: Tensor) -> Tokens:
    """Tokens in sequence, without padding or packing, for your own vectors (B, N, D)."""
    return Tokens(x=x, order=torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]), is_plain=True)


def grid_tokens(x: Tensor, grid: tuple[int, ...]) -> Tokens:
    """Tokens (B, N, D) that fill a grid row by row: the patches of an image, a video or a cube."""
    axes = torch.meshgrid([torch.arange(size, device=x.device) for size in grid], indexing="ij")
    at = torch.stack(axes, -1).flatten(0, -2)
    if len(at) != x.shape[1]:
        raise ConfigError(f"a grid of {grid} has {len(at)} places, got {x.shape[1]} tokens")
    tokens = sequence_tokens(x)
    tokens.coords, tokens.grid = at.expand(x.shape[0], *at.shape), grid
    return tokens


@dataclass(eq=False)
class TokenIndex:
    """Token i of row b. With index tensors b and i, which broadcast, it stands for a whole table of tokens."""

    places: TokenLayout
    b: Tensor
    i: Tensor

    @property
    def order(self) -> Tensor:
        return self.i if self.places.is_plain else self.read("order")

    @property
    def axes(self) -> tuple[Tensor, ...]:
        """The coordinates, one tensor for each axis."""
        if self.places.grid is not None:
            return unravel_index(self.i, self.places.grid)
        if self.places.coords is None:
            return (self.order,)
        return tuple(table[self.b, self.i] for table in self.places.coords.unbind(-1))

    def read(self, name: str) -> Tensor:
        if (table := getattr(self.places, name)) is None:
            given = name.removeprefix("is_")
            raise ConfigError(f"the mask reads {given!r}, and these tokens carry none; give {given}= to the front end")
        return table[self.b, self.i]  # type: ignore[no-any-return]


def unravel_index(i: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, ...]:
    axes, step = [], 1
    for size in reversed(grid):
        axes.append(i // step % size)
        step *= size
    return tuple(reversed(axes))


def document_starts(document: Tensor) -> Tensor:
    """(B, N) True where a row's document changes."""
    return F.pad(document[:, 1:] != document[:, :-1], (1, 0), value=True)
