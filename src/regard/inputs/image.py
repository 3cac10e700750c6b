"""Images to Tokens: square patches mapped to vectors, or single pixels as ids of a palette.

Images (B, C, H, W) in bytes are seen as (byte / 255 - mean) / std; in other numbers they are taken as they are.
"""

import torch
from torch import Tensor, nn

from regard import config
from regard.core.layers import Norm
from regard.core.model import FRONTS
from regard.core.tokens import Tokens, line, raster
from regard.inputs.text import Embed


class Patches(nn.Module):
    """Images (B, C, H, W) to Tokens: one linear map for every patch, which is a convolution whose steps are patches."""

    def __init__(self, c: config.Patches, width: int) -> None:
        super().__init__()
        self.c = c
        self.map = nn.Conv2d(c.channels, width, c.size, stride=c.size, bias=c.bias)
        self.norm = Norm(config.Norm(), width) if c.norm else None
        self.cls = nn.Embedding(1, width) if c.cls else None
        self.others = nn.Embedding(c.cls - 1, width) if c.cls > 1 else None  # learned tokens beside the first

    def forward(self, images: Tensor, **given: Tensor) -> Tokens:
        check(self.c, images, given)
        x = self.map(seen(self.c, images).to(self.map.weight.dtype)).flatten(2).mT  # (B, N, D), row by row
        x = x if self.norm is None else self.norm(x)
        if self.cls is None:
            return raster(x, (self.c.side, self.c.side))
        learned = [self.cls.weight] if self.others is None else [self.cls.weight, self.others.weight]
        return line(torch.cat([*(each.to(x.dtype).expand(len(x), -1, -1) for each in learned), x], 1))


def check(c: config.Patches | config.Convolutions, images: Tensor, given: dict[str, Tensor]) -> None:
    if given:
        raise ValueError(f"{', '.join(given)}: images carry none; leave it out")
    if tuple(images.shape[1:]) != (c.channels, c.image, c.image):
        wanted, got = f"(batch, {c.channels}, {c.image}, {c.image})", tuple(images.shape)
        raise ValueError(f"images must be {wanted} by embed.channels and embed.image, got a tensor of shape {got}")


def seen(c: config.Patches | config.Convolutions, images: Tensor) -> Tensor:
    """Bytes as the numbers that a model learns from. Channel by channel: a table of means would have to be fetched."""
    if images.dtype != torch.uint8:
        return images
    many = (each if len(each) > 1 else each * c.channels for each in (c.mean, c.std))
    planes = zip((images.float() / 255).unbind(1), *many, strict=True)
    return torch.stack([(plane - mean) / std for plane, mean, std in planes], 1)


def patches(images: Tensor, size: int) -> Tensor:
    """(B, C, H, W) -> (B, N, size·size·C): squares row by row, in each the pixels row by row with their channels."""
    squares: Tensor = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # (B, C, rows, size, columns, size)
    return squares.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  #: S079


def unpatch(flat: Tensor, size: int, columns: int) -> Tensor:
    """What `patches` cut, put together again: (B, N, size·size·C) -> (B, C, H, W), `columns` squares in a row."""
    squares: Tensor = flat.unflatten(2, (size, size, -1)).unflatten(1, (-1, columns))  # (B, rows, columns, size, ...)
    return squares.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


class Pixels(Embed):
    """Images (B, rows, columns) of palette ids to Tokens: a start token, then all pixels but the last, row by row.

    So what the model says at place i is value i; levels of several channels are (B, rows, columns, channels). Ids
    (B, N) that begin with the start token are taken as they stand.
    """

    def __init__(self, c: config.Pixels, width: int) -> None:
        super().__init__(config.Embed(vocab=c.vocab), width)
        self.pixels, self.start = c, c.palette

    def forward(self, ids: Tensor, **given: Tensor) -> Tokens:  # type: ignore[override]
        if ids.dim() > 2:
            ids = grid_of(self.pixels, ids).flatten(1)
            ids = torch.cat([torch.full_like(ids[:, :1], self.start), ids[:, :-1]], 1)  #: S060
        return super().forward(ids, **given)  # type: ignore[arg-type]


def grid_of(c: config.Pixels, ids: Tensor) -> Tensor:
    """The ids of images, if they are of the right size."""
    wanted = (*c.grid, c.channels) if c.numbers > 1 else c.grid
    if tuple(ids.shape[1:]) != wanted:
        raise ValueError(f"images must be {wanted} pixels by embed.grid, got {tuple(ids.shape[1:])}")
    return ids


FRONTS.update(patches=Patches, pixels=Pixels)
