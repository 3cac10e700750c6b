"""Image augmentation: crop, flip, rotation, zoom, RandAugment, mixup and cutmix.

    flip   crop   turn, zoom     pixels move and keep their values (rotation interpolates bilinearly)
    changes                      a few of thirteen, drawn for each image (RandAugment: Cubuk et al. 2020)
    mixup  cutmix                two images in one, and the share of each

All random numbers come from the given generator. Letters: B images, C channels, H rows, W columns.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import config


def augment_images(images: Tensor, c: config.ImageAugment, chance: Generator) -> Tensor:
    """Augment images (B, C, H, W) in bytes, each independently."""
    if c.flip:
        images = images.where(random_uniform(images, chance) < 0.5, images.flip(-1))
    if c.crop:
        images = random_crop(images, torch.randint(2 * c.crop + 1, (len(images), 2), generator=chance), c.crop)
    x = images.float()
    if c.rotate or c.zoom:
        angle, size = (2 * random_uniform(images, chance).flatten() - 1 for _ in range(2))
        x = affine_warp(x, rotation_matrix(angle * c.rotate) / (1 + c.zoom * size)[:, None, None])
    for _ in range(c.rand_augment):
        x = rand_augment(x, c.magnitude, chance)
    return to_bytes(x)


def random_uniform(images: Tensor, chance: Generator) -> Tensor:  # (B, 1, 1, 1)
    return torch.rand(len(images), generator=chance)[:, None, None, None]


def to_bytes(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


def random_crop(images: Tensor, corner: Tensor, border: int) -> Tensor:
    """Crop each image to its size at `corner` (B, 2), after padding by `border` black pixels."""
    (rows, columns), around = images.shape[-2:], F.pad(images, (border,) * 4)
    down = (corner[:, :1] + torch.arange(rows))[:, :, None]  # (B, H, 1)
    across = (corner[:, 1:] + torch.arange(columns))[:, None]  # (B, 1, W)
    return around[torch.arange(len(images))[:, None, None], :, down, across].movedim(-1, 1)


def rotation_matrix(degrees: Tensor) -> Tensor:  # (B,) -> (B, 2, 2)
    angle = degrees * math.pi / 180
    return torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(-1, 2, 2)


def affine_warp(x: Tensor, matrix: Tensor, shift: Tensor | None = None) -> Tensor:
    """Affine transform of each image about its centre; `shift` (B, 2) is a fraction of the image.

    Pixels from outside get the mean colour of the image's border: digits stay on black, drawings on white.
    """
    across = torch.zeros(len(x), 2) if shift is None else 2 * shift
    grid = F.affine_grid(torch.cat([matrix, across[..., None]], -1), list(x.shape), align_corners=False)
    outside = border_color(x)
    return outside + F.grid_sample(x - outside, grid, padding_mode="zeros", align_corners=False)


def border_color(x: Tensor) -> Tensor:  # (B, C, 1, 1)
    """The mean colour of the outermost pixels."""
    sides = [x[..., :1, :], x[..., -1:, :], x[..., :, :1].mT, x[..., :, -1:].mT]
    return torch.cat(sides, -1).mean(-1, keepdim=True)


# ---------------------------------------------------------------- random changes


def shear(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    one = torch.ones_like(across)
    return affine_warp(x, torch.stack([one, across, down, one], -1).view(-1, 2, 2))


def translate_images(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    return affine_warp(x, torch.eye(2).expand(len(x), 2, 2), torch.stack([across, down], -1))


def interpolate_images(x: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    """Interpolate or extrapolate between an image and another version: 0 is the other, 1 this one."""
    return (other + amount[:, None, None, None] * (x - other)).clamp(0, 255)


def to_gray(x: Tensor) -> Tensor:  # (B, 1, H, W), weighted by perceived brightness
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)


def blur(x: Tensor) -> Tensor:
    """Mix each pixel with its neighbours; the border stays."""
    kernel = torch.ones(3, 3)
    kernel[1, 1] = 5
    if min(x.shape[-2:]) < 3:
        return x
    inner = F.conv2d(x, (kernel / 13).expand(x.shape[1], 1, 3, 3), groups=x.shape[1])
    out = x.clone()
    out[..., 1:-1, 1:-1] = inner
    return out


def autocontrast(x: Tensor) -> Tensor:
    """The darkest value of a channel becomes black, the brightest white."""
    low, high = x.amin((-2, -1), keepdim=True), x.amax((-2, -1), keepdim=True)
    return torch.where(high > low, (x - low) * 255 / (high - low).clamp(min=1e-6), x)


def equalize(x: Tensor) -> Tensor:
    """Histogram equalisation."""
    rows = to_bytes(x).flatten(0, 1).flatten(1).long()  # (B·C, H·W)
    counts = torch.zeros(len(rows), 256, dtype=torch.long).scatter_add_(1, rows, torch.ones_like(rows))
    last = 255 - (counts.flip(-1) > 0).int().argmax(-1)  # the largest value that occurs
    step = (rows.shape[1] - counts.gather(1, last[:, None])) // 255  # (B·C, 1)
    before = counts.cumsum(-1) - counts
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, rows), rows).float().view_as(x)


def posterize(x: Tensor, amount: Tensor) -> Tensor:
    """Posterise: drop up to four of the eight bits."""
    step = 2 ** (4 * amount).round()[:, None, None, None]
    return (x / step).floor() * step


def solarize(x: Tensor, amount: Tensor) -> Tensor:
    """Solarise: invert the brightest values."""
    return torch.where(x >= 256 * (1 - amount)[:, None, None, None], 255 - x, x)


Change = Callable[[Tensor, Tensor], Tensor]  # images (B, C, H, W) from 0 to 255, and a strength from -1 to 1
RAND_AUGMENT_OPS: dict[str, Change] = {
    "slant across": lambda x, amount: shear(x, 0.3 * amount, 0 * amount),
    "slant down": lambda x, amount: shear(x, 0 * amount, 0.3 * amount),
    "shift across": lambda x, amount: translate_images(x, 0.45 * amount, 0 * amount),
    "shift down": lambda x, amount: translate_images(x, 0 * amount, 0.45 * amount),
    "turn": lambda x, amount: affine_warp(x, rotation_matrix(30 * amount)),
    "brightness": lambda x, amount: interpolate_images(x, torch.zeros_like(x), 1 + 0.9 * amount),
    "colour": lambda x, amount: interpolate_images(x, to_gray(x).expand_as(x), 1 + 0.9 * amount),
    "contrast": lambda x, amount: interpolate_images(
        x, to_gray(x).mean((1, 2, 3), keepdim=True).round().expand_as(x), 1 + 0.9 * amount
    ),
    "sharpness": lambda x, amount: interpolate_images(x, blur(x), 1 + 0.9 * amount),
    "coarse": lambda x, amount: posterize(x, amount.abs()),
    "sunny": lambda x, amount: solarize(x, amount.abs()),
    "stretch": lambda x, amount: autocontrast(x),
    "level": lambda x, amount: equalize(x),
}


def rand_augment(x: Tensor, strength: float, chance: Generator) -> Tensor:
    """Apply one random change to each image, with random sign."""
    which = torch.randint(len(RAND_AUGMENT_OPS), (len(x),), generator=chance)
    amount = strength * (2 * torch.randint(2, (len(x),), generator=chance) - 1).float()
    out = x.clone()
    for place, change in enumerate(RAND_AUGMENT_OPS.values()):
        rows = (which == place).nonzero()[:, 0]
        if len(rows):
            out[rows] = change(x[rows], amount[rows])
    return out


# ---------------------------------------------------------------- mixup and CutMix


def mixup_or_cutmix(images: Tensor, c: config.ImageAugment, chance: Generator) -> tuple[Tensor, dict[str, Tensor]]:
    """Mixup or CutMix within the batch; `partner` (B,) is the other image, `share` (B,) the remaining share of each."""
    partner = torch.randperm(len(images), generator=chance)
    cut = c.cutmix > 0 and (c.mixup == 0 or float(torch.rand((), generator=chance)) < 0.5)
    share = sample_beta(c.cutmix if cut else c.mixup, chance)
    if cut:
        images, share = cutmix(images, images[partner], share, chance)
    else:
        images = to_bytes(share * images.float() + (1 - share) * images[partner].float())
    return images, {"partner": partner, "share": torch.full((len(images),), share)}


def cutmix(images: Tensor, others: Tensor, share: float, chance: Generator) -> tuple[Tensor, float]:
    """Replace a rectangle of about 1 - share of the image by the other's; returns the exact remaining share."""
    rows, columns = images.shape[-2:]
    side, out = math.sqrt(1 - share), images.clone()
    centre = torch.rand(2, generator=chance).tolist()
    ends = [(round(size * (at - side / 2)), round(size * (at + side / 2)))
            for at, size in zip(centre, (rows, columns), strict=True)]  # fmt: skip
    (top, bottom), (left, right) = ((max(0, low), max(0, high)) for low, high in ends)
    out[..., top:bottom, left:right] = others[..., top:bottom, left:right]
    cut = (min(bottom, rows) - top) * (min(right, columns) - left)
    return out, 1 - max(0, cut) / (rows * columns)


def sample_beta(alpha: float, chance: Generator) -> float:
    """A Beta(alpha, alpha) variate, from two gamma variates."""
    one, two = (sample_gamma(alpha, chance) for _ in range(2))
    return one / (one + two) if one + two > 0 else float(torch.rand((), generator=chance) < 0.5)


def sample_gamma(alpha: float, chance: Generator) -> float:
    """A gamma variate, by Marsaglia and Tsang 2000; torch's own takes no generator."""
    if alpha < 1:
        return sample_gamma(alpha + 1, chance) * math.pow(float(torch.rand((), generator=chance)), 1 / alpha)
    d = alpha - 1 / 3
    while True:
        x = float(torch.randn((), generator=chance))
        v = math.pow(1 + x / math.sqrt(9 * d), 3)
        u = float(torch.rand((), generator=chance))
        if v > 0 and math.log(max(u, 1e-300)) < x * x / 2 + d - d * v + d * math.log(v):
            return d * v
