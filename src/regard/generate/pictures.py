"""Pictures from a model of pixels: value by value, row by row, each drawn after all that are there already.

    images = draw(regard.load("runs/pixels"), 16, temperature=0.9, seed=0)      # bytes (16, C, rows, columns)
    images = draw(model, 4, begin=half, rows=16)                                # the upper 16 rows are given
"""

from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config import ConfigError
from regard.generate.asked import sampling, whole_picture
from regard.generate.limits import Limits
from regard.generate.model import Transformer
from regard.generate.session import Session
from regard.inputs import palette

GAP = 2  # pixels between the pictures of a sheet


def draw(model: Transformer, count: int = 16, begin: Tensor | None = None, rows: int = 0, **settings: Any) -> Tensor:
    """Bytes (count, C, rows, columns). The settings are those of `config.Sampling`, but for new and stop.

    `begin`, bytes (C, H, W) as large as the model's own, gives the first so many `rows`.
    """
    c, known = pixels(model), list[int]()
    whole_picture(settings)
    if begin is not None:
        known = beginning(begin, rows, c)
    asked = sampling({**settings, "new": c.count - len(known)})
    session = Session(model, [[c.palette, *known]] * count, asked, Limits(known=c.palette, context=c.count))
    new = torch.tensor([list(ids) for ids in zip(*session, strict=True)], dtype=torch.long).view(count, -1)
    return palette.shown(torch.cat([torch.tensor([known] * count, dtype=torch.long).view(count, -1), new], 1), c)


def pixels(model: Transformer) -> config.Pixels:
    """The pixels of a model that can tell them."""
    c = model.c.embed
    if not isinstance(c, config.Pixels) or isinstance(c, config.MaskedPixels):
        raise ConfigError(f"embed.kind: {c.kind!r} draws no pictures; a model of 'pixels' does, value by value")
    if c.values == "colours":
        palette.table(c)  # refuses a palette without colours
    return c


def beginning(image: Tensor, rows: int, c: config.Pixels) -> list[int]:
    if tuple(image.shape) != (c.channels, *c.grid):
        raise ConfigError(f"begin: an image of {tuple(image.shape)}, expected {(c.channels, *c.grid)} by embed.grid")
    if not 0 <= rows < c.grid[0]:
        raise ConfigError(f"rows: {rows} rows of {c.grid[0]} are given; leave at least one to draw")
    ids: list[int] = palette.ids(image[None], c)[0, :rows].flatten().tolist()
    return ids


def sheet(images: Tensor, columns: int | None = None) -> Tensor:
    """Pictures (B, C, H, W) on one (C, H', W'), row by row with a little white between them."""
    count, channels, high, wide = images.shape
    columns = columns or max(1, round(count**0.5))
    lines = -(-count // columns)
    out = images.new_full((channels, lines * (high + GAP) - GAP, columns * (wide + GAP) - GAP), 255)
    for place, image in enumerate(images):
        top, left = place // columns * (high + GAP), place % columns * (wide + GAP)
        out[:, top : top + high, left : left + wide] = image
    return out
