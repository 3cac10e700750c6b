"""Image embeddings: square patches projected to vectors, or single pixels as ids of a palette; and `resize_model`.

Images (B, C, H, W) in bytes are normalised to (byte / 255 - mean) / std; other dtypes are used unchanged.

A model for images of another size keeps its patch size, so the number of patches changes. Learned positions are
interpolated over the new grid (Dosovitskiy et al. 2021, section 3.2); the class token's stays. Relative and sinusoidal
positions need no change.

    model = regard.build(regard.preset("vit-b16"))         # 224 pixels, 1 + 14 x 14 positions
    resize_model(model, 384)                                # 1 + 24 x 24
"""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.layers import Norm
from regard.core.model import FRONT_ENDS, Transformer
from regard.core.tokens import Tokens, grid_tokens, sequence_tokens
from regard.inputs.cost import FrontEndCost, TrunkCost, linear_flops
from regard.inputs.text import TextEmbedding


class PatchEmbedding(nn.Module):
    """Patch embedding: images (B, C, H, W) to Tokens by one linear map for every patch, a convolution with patch
    stride."""

    def __init__(self, c: config.PatchEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.map = nn.Conv2d(c.channels, width, c.patch_size, stride=c.patch_size, bias=c.bias)
        self.norm = Norm(config.Norm(), width) if c.norm else None
        self.cls = nn.Embedding(1, width) if c.cls_tokens else None
        self.others = (
            nn.Embedding(c.cls_tokens - 1, width) if c.cls_tokens > 1 else None
        )  # learned tokens besides the class token

    def forward(self, images: Tensor, **given: Tensor) -> Tokens:
        check_images(self.c, images, given)
        x = self.map(normalize_image(self.c, images).to(self.map.weight.dtype)).flatten(2).mT  # (B, N, D), row by row
        x = x if self.norm is None else self.norm(x)
        if self.cls is None:
            return grid_tokens(x, (self.c.side, self.c.side))
        learned = [self.cls.weight] if self.others is None else [self.cls.weight, self.others.weight]
        return sequence_tokens(torch.cat([*(each.to(x.dtype).expand(len(x), -1, -1) for each in learned), x], 1))

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        side, grid = self.c.side, None if self.c.cls_tokens else (self.c.side, self.c.side)
        return FrontEndCost(Counter({"patches": linear_flops(self, side * side)}), self.c.count, grid)

    def describe(self) -> str:
        c, width = self.c, self.map.weight.shape[0]
        return f"{c.side} x {c.side} patches, {c.patch_size} x {c.patch_size} x {c.channels} -> {width}"


def check_images(c: config.PatchEmbedding | config.ConvEmbedding, images: Tensor, given: dict[str, Tensor]) -> None:
    if given:
        raise ConfigError(f"{', '.join(given)}: images carry none; leave it out")
    if tuple(images.shape[1:]) != (c.channels, c.image_size, c.image_size):
        wanted, got = f"(batch, {c.channels}, {c.image_size}, {c.image_size})", tuple(images.shape)
        raise ConfigError(
            f"images must be {wanted} by embed.channels and embed.image_size, got a tensor of shape {got}"
        )


def normalize_image(c: config.PatchEmbedding | config.ConvEmbedding, images: Tensor) -> Tensor:
    """Normalise bytes, channel by channel: a table of means would be copied to the device each time."""
    if images.dtype != torch.uint8:
        return images
    many = (each if len(each) > 1 else each * c.channels for each in (c.mean, c.std))
    planes = zip((images.float() / 255).unbind(1), *many, strict=True)
    return torch.stack([(plane - mean) / std for plane, mean, std in planes], 1)


def patchify(images: Tensor, size: int) -> Tensor:
    """(B, C, H, W) -> (B, N, size·size·C): patches row by row, in each the pixels row by row with their channels."""
    squares: Tensor = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # (B, C, rows, size, columns, size)
    return squares.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  #: S079


def unpatchify(flat: Tensor, size: int, columns: int) -> Tensor:
    """The inverse of `patchify`: (B, N, size·size·C) -> (B, C, H, W), `columns` patches in a row."""
    squares: Tensor = flat.unflatten(2, (size, size, -1)).unflatten(1, (-1, columns))  # (B, rows, columns, size, ...)
    return squares.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


class PixelEmbedding(TextEmbedding):
    """Pixel embedding: palette ids (B, rows, columns) to Tokens, a start token, then all pixels but the last, row by
    row.

    Output i therefore predicts value i; levels of several channels are (B, rows, columns, channels). Ids (B, N) that
    begin with the start token are used unchanged.
    """

    def __init__(self, c: config.PixelEmbedding, width: int) -> None:
        super().__init__(config.TextEmbedding(vocab=c.vocab), width)
        self.pixels, self.start = c, c.palette

    def forward(self, ids: Tensor, **given: Tensor) -> Tokens:  # type: ignore[override]
        if ids.dim() > 2:
            ids = check_pixel_grid(self.pixels, ids).flatten(1)
            ids = torch.cat([torch.full_like(ids[:, :1], self.start), ids[:, :-1]], 1)  #: S060
        return super().forward(ids, **given)  # type: ignore[arg-type]


def check_pixel_grid(c: config.PixelEmbedding, ids: Tensor) -> Tensor:
    """Check the size of images of palette ids."""
    wanted = (*c.grid, c.channels) if c.numbers > 1 else c.grid
    if tuple(ids.shape[1:]) != wanted:
        raise ConfigError(f"images must be {wanted} pixels by embed.grid, got {tuple(ids.shape[1:])}")
    return ids


FRONT_ENDS.update(patches=PatchEmbedding, pixels=PixelEmbedding)


def resize_model(model: Transformer, image: int) -> None:
    """Change the model, its tables and its config, for images of `image` pixels a side."""
    embed: Any = model.c.embed
    if not isinstance(embed, config.PatchEmbedding | config.StageEmbedding | config.ConvEmbedding):
        raise ConfigError(f"resize: embed.kind is {embed.kind!r}, and only patches, stages and convolutions are seen "
                         "at any size")  # fmt: skip
    old, new = embed, resized_config(embed, image)
    if isinstance(model.c.trunk.position, config.LearnedPosition):
        resize_positions(model, old, new)
    if isinstance(new, config.StageEmbedding):
        model.embed.patches.c = new.patches
    model.embed.c, model.c = new, replace(model.c, embed=new)


def extend_positions(model: Transformer, *lengths: int) -> None:
    """Interpolate the trunk's learned positions to other lengths, in the tables and in the config."""
    embed, position = model.c.embed, model.c.trunk.position
    if not isinstance(position, config.LearnedPosition):
        raise ConfigError(f"extend: trunk.position is {position.kind!r}; only learned ones stretch")
    if len(lengths) == 1 and isinstance(embed, config.PatchEmbedding) and embed.cls_tokens:
        return resize_model(
            model, image_size_for(embed, lengths[0])
        )  # patch positions after the class token are interpolated in 2-D
    table = model.trunk.position
    if len(lengths) != len(table.tables):
        raise ConfigError(f"extend: {len(lengths)} lengths were given for {len(table.tables)} axes")
    for axis, length in enumerate(lengths):
        table.tables[axis] = nn.Parameter(interpolate_sequence(table.tables[axis].detach(), position.offset, length))
    position = replace(position, length=lengths if len(lengths) > 1 else lengths[0])
    table.c, model.trunk.c = position, replace(model.trunk.c, position=position)
    model.c = replace(model.c, trunk=model.trunk.c)


def image_size_for(c: config.PatchEmbedding, length: int) -> int:
    """The image size whose patches, and the learned tokens before them, are `length` tokens."""
    side = math.isqrt(max(0, length - c.cls_tokens))
    if side < 1 or side * side + c.cls_tokens != length:
        near, before = max(1, side), "a token" if c.cls_tokens == 1 else f"{c.cls_tokens} tokens"
        raise ConfigError(f"extend: {length} places are no square of patches and {before} before them, such as "
                         f"{near * near + c.cls_tokens} or {(near + 1) ** 2 + c.cls_tokens}")  # fmt: skip
    return side * c.patch_size


def resized_config(embed: Any, image: int) -> Any:
    """The front end's config for images of another size; a centre crop scales with it."""
    if isinstance(embed, config.StageEmbedding):
        return replace(embed, patches=resized_config(embed.patches, image))
    if isinstance(embed, config.PatchEmbedding) and embed.resize.size_before_crop is not None:
        frame = replace(embed.resize, size_before_crop=embed.resize.size_before_crop * image // embed.image_size)
        return replace(embed, image_size=image, resize=frame)
    return replace(embed, image_size=image)


def resize_positions(model: Transformer, old: Any, new: Any) -> None:
    """Interpolate the trunk's learned positions to the new grid."""
    table, side = model.trunk.position, getattr(new, "side", round(new.count**0.5))
    if len(table.lengths) == 2:
        return extend_positions(model, side, side)
    if not getattr(new, "cls_tokens", False) or table.lengths != (old.count,):
        raise ConfigError(f"resize: {table.lengths[0]} places in a line do not say which is above which; one more than "
                         f"the grid of {old.count - int(getattr(old, 'cls_tokens', False))} has does")  # fmt: skip
    places = table.tables[0]
    table.tables[0] = nn.Parameter(interpolate_positions(places.detach(), table.c.offset + new.cls_tokens, side))
    table.c = replace(table.c, length=new.count)
    model.trunk.c = replace(model.trunk.c, position=table.c)
    model.c = replace(model.c, trunk=model.trunk.c)


def interpolate_sequence(places: Tensor, first: int, length: int) -> Tensor:
    """(first + n, D) -> (first + length, D): the `first` positions stay, the others are interpolated linearly."""
    line = F.interpolate(places[first:].mT[None], size=length, mode="linear", align_corners=True)[0].mT
    return torch.cat([places[:first], line])


def interpolate_positions(places: Tensor, first: int, side: int) -> Tensor:
    """(first + n·n, D) -> (first + side·side, D): the `first` positions stay, the others are interpolated in 2-D."""
    alone, grid = places[:first], places[first:]
    picture = grid.unflatten(0, (round(len(grid) ** 0.5), -1)).movedim(-1, 0)[None]  # (1, D, n, n)
    picture = F.interpolate(picture, (side, side), mode="bicubic", align_corners=False)  #: S033
    return torch.cat([alone, picture[0].flatten(1).mT])
