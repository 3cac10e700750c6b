"""A model for images of another size: its patches stay as large, so there are more of them or fewer.

Learned places are stretched over the new grid, as pictures are made larger (Dosovitskiy et al. 2021, section 3.2); the
class token's stays. Places that are offsets or waves need nothing.

    model = regard.build(regard.preset("vit-b16"))         # 224 pixels, 1 + 14 x 14 places
    resize(model, 384)                                      # 1 + 24 x 24
"""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.model import Transformer


def resize(model: Transformer, image: int) -> None:
    """Change the model, its tables and its config, for images of so many pixels a side."""
    embed: Any = model.c.embed
    if not isinstance(embed, config.Patches | config.Stages | config.Convolutions):
        raise ValueError(f"resize: embed.kind is {embed.kind!r}, and only patches, stages and convolutions are seen "
                         "at any size")  # fmt: skip
    old, new = embed, sized(embed, image)
    if isinstance(model.c.trunk.position, config.Learned):
        stretch(model, old, new)
    if isinstance(new, config.Stages):
        model.embed.patches.c = new.patches
    model.embed.c, model.c = new, replace(model.c, embed=new)


def extend(model: Transformer, *lengths: int) -> None:
    """Stretch the trunk's learned positions to other lengths, in the tables and in the config."""
    embed, position = model.c.embed, model.c.trunk.position
    if not isinstance(position, config.Learned):
        raise ValueError(f"extend: trunk.position is {position.kind!r}; only learned ones stretch")
    if len(lengths) == 1 and isinstance(embed, config.Patches) and embed.cls:
        return resize(model, image_of(embed, lengths[0]))  # those of patches behind a first token are a picture
    table = model.trunk.position
    if len(lengths) != len(table.tables):
        raise ValueError(f"extend: {len(lengths)} lengths were given for {len(table.tables)} axes")
    for axis, length in enumerate(lengths):
        table.tables[axis] = nn.Parameter(longer(table.tables[axis].detach(), position.offset, length))
    position = replace(position, length=lengths if len(lengths) > 1 else lengths[0])
    table.c, model.trunk.c = position, replace(model.trunk.c, position=position)
    model.c = replace(model.c, trunk=model.trunk.c)


def image_of(c: config.Patches, length: int) -> int:
    """The pixels a side of images whose patches, and the learned tokens before them, are so many."""
    side = math.isqrt(max(0, length - c.cls))
    if side < 1 or side * side + c.cls != length:
        near, before = max(1, side), "a token" if c.cls == 1 else f"{c.cls} tokens"
        raise ValueError(f"extend: {length} places are no square of patches and {before} before them, such as "
                         f"{near * near + c.cls} or {(near + 1) ** 2 + c.cls}")  # fmt: skip
    return side * c.size


def sized(embed: Any, image: int) -> Any:
    """The front end's setting for images of another size; where the middle is seen, of as much more."""
    if isinstance(embed, config.Stages):
        return replace(embed, patches=sized(embed.patches, image))
    if isinstance(embed, config.Patches) and embed.frame.whole is not None:
        frame = replace(embed.frame, whole=embed.frame.whole * image // embed.image)
        return replace(embed, image=image, frame=frame)
    return replace(embed, image=image)


def stretch(model: Transformer, old: Any, new: Any) -> None:
    """Learned places of the trunk over the new grid."""
    table, side = model.trunk.position, getattr(new, "side", round(new.count**0.5))
    if len(table.lengths) == 2:
        return extend(model, side, side)
    if not getattr(new, "cls", False) or table.lengths != (old.count,):
        raise ValueError(f"resize: {table.lengths[0]} places in a line do not say which is above which; one more than "
                         f"the grid of {old.count - int(getattr(old, 'cls', False))} has does")  # fmt: skip
    places = table.tables[0]
    table.tables[0] = nn.Parameter(larger(places.detach(), table.c.offset + new.cls, side))
    table.c = replace(table.c, length=new.count)
    model.trunk.c = replace(model.trunk.c, position=table.c)
    model.c = replace(model.c, trunk=model.trunk.c)


def longer(places: Tensor, first: int, length: int) -> Tensor:
    """(first + n, D) -> (first + length, D): the `first` places stay, the others are interpolated along a line."""
    line = F.interpolate(places[first:].mT[None], size=length, mode="linear", align_corners=True)[0].mT
    return torch.cat([places[:first], line])


def larger(places: Tensor, first: int, side: int) -> Tensor:
    """(first + n·n, D) -> (first + side·side, D): the `first` places stay, the others are a picture, made larger."""
    alone, grid = places[:first], places[first:]
    picture = grid.unflatten(0, (round(len(grid) ** 0.5), -1)).movedim(-1, 0)[None]  # (1, D, n, n)
    picture = F.interpolate(picture, (side, side), mode="bicubic", align_corners=False)  #: S033
    return torch.cat([alone, picture[0].flatten(1).mT])
