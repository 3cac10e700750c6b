"""Color palettes: given, or learned from images by k-means; images quantized to ids of a palette and restored.

    bytes (B, C, H, W)  ── quantize_colors ──►  (B, H, W), or (B, H, W, C) with levels for each channel
                        ◄── colors_of_ids ──

Learned colours are k-means centres (Lloyd 1982, with k-means++ initialisation: Arthur and Vassilvitskii 2007). Letters:
K colours.
"""

from collections.abc import Iterable

import torch
from torch import Generator, Tensor

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.config.inputs.image import parse_color

SAMPLE = 1 << 18  # pixels for k-means
ROUNDS = 30
AT_ONCE = 1 << 22  # distances in memory


def quantize_colors(images: Tensor, c: config.PixelEmbedding) -> Tensor:
    """Quantize bytes (B, C, H, W) to ids."""
    if c.values == "levels":
        found = (images.long() * (c.palette - 1) + 127) // 255  # nearest level
        return found.movedim(1, -1) if c.channels > 1 else found[:, 0]
    return nearest_color(images.movedim(1, -1).flatten(0, 2), palette_table(c)).view(len(images), *images.shape[2:])


def colors_of_ids(ids: Tensor, c: config.PixelEmbedding) -> Tensor:
    """Restore ids (B, N), or on their grid, to bytes (B, C, H, W)."""
    if c.values == "levels":
        values = (ids.view(len(ids), *c.grid, c.channels) * 255 + (c.palette - 1) // 2) // (c.palette - 1)
    else:
        values = palette_table(c).round().to(ids.device)[ids.view(len(ids), *c.grid)]
    return values.to(torch.uint8).movedim(-1, 1)


def palette_table(c: config.PixelEmbedding) -> Tensor:  # (K, C)
    """The colours as numbers from 0 to 255."""
    if not c.colors:
        raise ConfigError(f"model.embed.colors: the {c.palette} colours are not set; training finds them, or list them "
                          "here")  # fmt: skip
    return torch.tensor([parse_color(colour, c.channels) for colour in c.colors], dtype=torch.float32)


def nearest_color(pixels: Tensor, colours: Tensor) -> Tensor:  # (P, C), (K, C) -> (P,)
    """The index of the nearest colour; the first one of a tie. Exact for integers."""
    ends = colours.square().sum(-1) / 2
    step = max(1, AT_ONCE // len(colours))
    return torch.cat([(ends - some.float() @ colours.mT).argmin(-1) for some in pixels.split(step)])


# ---------------------------------------------------------------- learning colours


def learn_palette(images: Iterable[Tensor], count: int, chance: Generator) -> tuple[str, ...]:
    """A palette of `count` colours with small quantization error for the images, dark colours first."""
    colours, often = count_colors(images, chance)
    if len(colours) < count:
        raise DataError(f"the training images have {len(colours):,} colours, and model.embed.palette is {count}; "
                        f"set it to {len(colours)} or less")  # fmt: skip
    centres = kmeans(colours.float(), often.float(), count, chance).round().long()
    return tuple(bytes(centre).hex() for centre in sorted(centres.tolist(), key=lambda centre: (sum(centre), centre)))


def count_colors(images: Iterable[Tensor], chance: Generator) -> tuple[Tensor, Tensor]:
    """(K, C) the distinct colours of images in bytes (C, H, W), and (K,) their counts; of many pixels a sample."""
    flat = [image.flatten(1).mT for image in images]
    each = max(1, SAMPLE // max(1, len(flat)))
    some = [pixels[torch.randint(len(pixels), (each,), generator=chance)] if len(pixels) > each else pixels
            for pixels in flat]  # fmt: skip
    found, often = torch.unique(torch.cat(some), dim=0, return_counts=True)
    return found, often


def kmeans(points: Tensor, often: Tensor, count: int, chance: Generator) -> Tensor:
    """k-means: (count, C) centres with a small sum of squared distances; points are weighted by `often`."""
    centres = kmeans_init(points, often, count, chance)
    for _ in range(ROUNDS):
        mine = nearest_color(points, centres)
        total = torch.zeros(count, 1).index_add_(0, mine, often[:, None])
        sums = torch.zeros_like(centres).index_add_(0, mine, points * often[:, None])
        moved = torch.where(total > 0, sums / total.clamp(min=1), centres)  # a centre without points stays
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def kmeans_init(points: Tensor, often: Tensor, count: int, chance: Generator) -> Tensor:
    """k-means++ initialisation: each centre is drawn by its squared distance from those before it."""
    far = torch.full((len(points),), float("inf"))
    weight, chosen = often, list[Tensor]()
    for _ in range(count):
        point = points[torch.multinomial(weight.double(), 1, generator=chance)]
        chosen.append(point)
        far = torch.minimum(far, (points - point).square().sum(-1))
        weight = far * often
    return torch.cat(chosen)
