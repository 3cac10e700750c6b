"""Images to Tokens: square patches mapped to vectors, or single pixels as ids of a palette."""

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

    def forward(self, images: Tensor, **given: Tensor) -> Tokens:
        check(self.c, images, given)
        x = self.map(images).flatten(2).mT  # (B, N, D), row by row
        x = x if self.norm is None else self.norm(x)
        if self.cls is None:
            return raster(x, (self.c.side, self.c.side))
        return line(torch.cat([self.cls.weight.to(x.dtype).expand(len(x), 1, -1), x], 1))


def check(c: config.Patches, images: Tensor, given: dict[str, Tensor]) -> None:
    if given:
        raise ValueError(f"{', '.join(given)}: images carry none; leave it out")
    if tuple(images.shape[1:]) != (c.channels, c.image, c.image):
        wanted, got = f"(batch, {c.channels}, {c.image}, {c.image})", tuple(images.shape)
        raise ValueError(f"images must be {wanted} by embed.channels and embed.image, got a tensor of shape {got}")


class Pixels(Embed):
    """Images (B, rows, columns) of palette ids to Tokens: a start token, then all pixels but the last, row by row.

    So what the model says at place i is pixel i. Ids (B, N) that begin with the start token are taken as they stand.
    """

    def __init__(self, c: config.Pixels, width: int) -> None:
        super().__init__(config.Embed(vocab=c.vocab), width)
        self.grid, self.start = c.grid, c.palette

    def forward(self, ids: Tensor, **given: Tensor) -> Tokens:  # type: ignore[override]
        if ids.dim() == 3:
            if tuple(ids.shape[1:]) != self.grid:
                raise ValueError(f"images must be {self.grid} pixels by embed.grid, got {tuple(ids.shape[1:])}")
            ids = ids.flatten(1)
            ids = torch.cat([torch.full_like(ids[:, :1], self.start), ids[:, :-1]], 1)
        return super().forward(ids, **given)  # type: ignore[arg-type]


FRONTS.update(patches=Patches, pixels=Pixels)
