"""CNN embeddings: images to Tokens by residual convolutions, or by masked ones for pixels (PixelCNN).

    an image ─ 3 x 3 ─ blocks ─ half the side ─ blocks ─ half the side ─ blocks ─►  tokens on a grid

Followed by a trunk with mixer `none` this is a residual network (He et al. 2016), with attention a hybrid. For pixels,
masked convolutions depend only on pixels above and to the left (PixelCNN: van den Oord et al. 2016).
Letters: C channels, H rows, W columns.
"""

import math
from collections import Counter

import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.model import FRONT_ENDS
from regard.core.tokens import Tokens, grid_tokens, sequence_tokens
from regard.inputs.cost import FrontEndCost, TrunkCost, linear_flops
from regard.inputs.image import PixelEmbedding, check_images, check_pixel_grid, normalize_image


class ResidualConv(nn.Module):
    """Residual block: x + f(x), f is twice norm, ReLU, 3 x 3. At the start of a stage the shortcut halves and
    widens x."""

    def __init__(self, width: int, wider: int, step: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(group_norm(each) for each in (width, wider))
        self.first = nn.Conv2d(width, wider, 3, stride=step, padding=1, bias=False)
        self.second = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.past = nn.Conv2d(width, wider, 1, stride=step, bias=False) if step > 1 or width != wider else None

    def forward(self, x: Tensor) -> Tensor:
        ready = F.relu(self.norms[0](x))
        inner = self.second(F.relu(self.norms[1](self.first(ready))))
        return inner + (x if self.past is None else self.past(ready))  # type: ignore[no-any-return]


def group_norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(width, 32), width)


class ConvEmbedding(nn.Module):
    """Convolutional embedding: images (B, C, H, W) to Tokens on the grid of the last stage."""

    def __init__(self, c: config.ConvEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.stem = nn.Conv2d(c.channels, c.widths[0], 3, padding=1, bias=False)
        before = (c.widths[0], *c.widths)
        self.blocks = nn.Sequential(*(
            ResidualConv(wide if block else before[stage], wide, 2 if stage and not block else 1)
            for stage, wide in enumerate(c.widths) for block in range(c.blocks_per_stage)
        ))  # fmt: skip
        self.norm = group_norm(c.widths[-1])
        self.map = nn.Conv2d(c.widths[-1], width, 1)

    def forward(self, images: Tensor, **given: Tensor) -> Tokens:
        check_images(self.c, images, given)
        x = self.blocks(self.stem(normalize_image(self.c, images).to(self.stem.weight.dtype)))
        return grid_tokens(self.map(F.relu(self.norm(x))).flatten(2).mT, (self.c.side, self.c.side))

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        """FLOPs: a convolution's weights are used at every output position."""
        side = self.c.image_size
        parts = Counter({"patches": linear_flops(self.stem, side * side)})  # pixels need no gradient
        for block in self.blocks:
            assert isinstance(block, ResidualConv)
            side //= block.first.stride[0]
            parts["embedding"] += linear_flops(block, side * side)
        parts["embedding"] += linear_flops(self.map, side * side)
        return FrontEndCost(parts, self.c.count, (self.c.side, self.c.side))

    def describe(self) -> str:
        c, widths = self.c, ", ".join(map(str, self.c.widths))
        seen = f"{c.image_size} x {c.image_size} x {c.channels}"
        return f"{seen}, convolutions {widths} wide -> {c.side} x {c.side} tokens"


class MaskedConv(nn.Module):
    """Causal convolution over `reach` rows above and as many pixels to the left; with `own`, also the pixel itself.

    It is two unmasked convolutions: no masked weight is ever multiplied.
    """

    def __init__(self, width: int, wider: int, reach: int, own: bool) -> None:
        super().__init__()
        self.reach, self.own = reach, own
        self.above = nn.Conv2d(width, wider, (reach, 2 * reach + 1))
        self.left = nn.Conv2d(width, wider, (1, reach + own), bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        r = self.reach
        left = x if self.own else x[..., :-1]
        return self.above(F.pad(x[:, :, :-1], (r, r, r, 0))) + self.left(F.pad(left, (r, 0)))  # type: ignore[no-any-return]


class MaskedBottleneck(nn.Module):
    """Residual bottleneck: x + f(x) with a masked convolution at half width."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.into, self.out = nn.Conv2d(width, width // 2, 1), nn.Conv2d(width // 2, width, 1)
        self.before = MaskedConv(width // 2, width // 2, 1, own=True)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.before(F.relu(self.into(F.relu(x)))))
        return x + self.out(F.dropout(inner, self.dropout, self.training))  # type: ignore[no-any-return]


class MaskedConvEmbedding(PixelEmbedding):
    """PixelCNN embedding: palette ids (B, rows, columns) to Tokens; token i depends only on the pixels before it.

    It reads whole images, and has no cache.
    """

    def __init__(self, c: config.MaskedConvEmbedding, width: int) -> None:
        super().__init__(c, c.width)
        self.first = MaskedConv(c.width, c.width, 3, own=False)
        self.blocks = nn.Sequential(*(MaskedBottleneck(c.width, c.dropout) for _ in range(c.blocks)))
        self.map = nn.Conv2d(c.width, width, 1)

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        return FrontEndCost(Counter({"embedding": linear_flops(self, self.pixels.count)}), self.pixels.count)

    def forward(self, ids: Tensor, **given: Tensor) -> Tokens:  # type: ignore[override]
        if given or ids.dim() == 2:
            raise ConfigError("convolutions read whole images of ids (B, rows, columns), and have no cache")
        x = self.tokens(check_pixel_grid(self.pixels, ids)).movedim(-1, 1)  # (B, C, H, W)
        return sequence_tokens(self.map(F.relu(self.blocks(self.first(x)))).flatten(2).mT)


FRONT_ENDS.update(conv=ConvEmbedding, masked_conv=MaskedConvEmbedding)
