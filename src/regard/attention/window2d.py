"""Shifted 2-D windows of an image (Swin) by regrouping: the tokens of one window become a short sequence.

The mask window2d(7) on a 56 x 56 image allows each query 49 of 3,136 keys; a full table would need 64 times the FLOPs.
Letters: W windows of S tokens.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.cost import KERNEL_COSTS, AttentionField, KernelCost
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel, repeat_kv
from regard.core.masks import Mask
from regard.core.tokens import TokenIndex


@dataclass(frozen=True)
class Window2d(Mask, name="window2d"):
    """2-D window mask: square windows of `size` tokens a side, moved by `shift` (Swin alternates window2d(7),
    window2d(7, 3))."""

    size: int
    shift: int = 0
    reads = ("coords",)

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        same = torch.ones_like(q.i * k.i, dtype=torch.bool)
        for mine, theirs in zip(q.axes, k.axes, strict=True):
            same = same & ((mine - self.shift) // self.size == (theirs - self.shift) // self.size)
        return same


def unsupported_reason(spec: AttentionSpec) -> str:
    if not isinstance(spec.mask, Window2d):
        return "computes image windows alone: the mask must be window2d(size, shift) and nothing else"
    if spec.q is not spec.k or spec.q.grid is None:
        return "needs tokens that fill a grid (regard.core.tokens.grid_tokens)"
    return ""


def preferred_reason(spec: AttentionSpec) -> str:
    return "" if unsupported_reason(spec) else "windows of an image run as sequences of their own"


def window_pairs(field: AttentionField, auto: bool) -> int | None:
    """Query-key pairs in windows of size x size, partial ones included; each token attends to its window."""
    if not isinstance(field.mask, Window2d) or field.grid is None:
        return None
    size, before = field.mask.size, -field.mask.shift % field.mask.size
    windows = [-(-(side + before) // size) for side in field.grid]
    return int(windows[0] * windows[1] * size**4)


KERNEL_COSTS["window2d"] = KernelCost(pairs=window_pairs, growth=("n·w·d", 1.0))


@register_kernel("window2d", unsupported_reason=unsupported_reason, preferred_reason=preferred_reason)
def window2d_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """Equal to the dense mask, without its table."""
    mask, places = plan.spec.mask, plan.spec.q
    assert isinstance(mask, Window2d) and places.grid is not None
    group, home = window_groups(places.grid, mask, q.device)
    token = group.clamp(min=0)
    qs, ks, vs = (repeat_kv(x, q)[:, :, token].transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B·W, H, S, d)
    table = (group >= 0)[None, :, None, None, :]  # (1, W, 1, 1, S)
    if args.bias is not None:
        b, h = (torch.arange(size, device=q.device) for size in q.shape[:2])
        b, h = b.view(-1, 1, 1, 1, 1), h.view(1, 1, -1, 1, 1)
        i, j = (
            TokenIndex(places, b, token[None, :, None, :, None]),
            TokenIndex(places, b, token[None, :, None, None, :]),
        )
        table = args.bias.at(b, h, i, j).to(q.dtype).masked_fill(~table, float("-inf"))
    table = table.expand(q.shape[0], -1, -1, -1, -1).flatten(0, 1)
    out = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=table, dropout_p=args.dropout, scale=args.scale)
    return out.view(q.shape[0], -1, *out.shape[1:]).transpose(1, 2).flatten(2, 3)[:, :, home]


def window_groups(grid: tuple[int, ...], mask: Window2d, device: torch.device) -> tuple[Tensor, Tensor]:
    """(W, S) the tokens of each window, -1 outside the image; and (N,) the slot of each token."""
    axes = torch.meshgrid([torch.arange(size, device=device) for size in grid], indexing="ij")
    before = -mask.shift % mask.size  # empty slots before the first token
    window, inside, count = torch.zeros_like(axes[0]), torch.zeros_like(axes[0]), 1
    for at, size in zip(axes, grid, strict=True):
        number = -(-(size + before) // mask.size)
        window = window * number + (at + before) // mask.size
        inside = inside * mask.size + (at + before) % mask.size
        count *= number
    places = mask.size ** len(grid)
    home = (window * places + inside).flatten()
    group = torch.full((count * places,), -1, device=device, dtype=torch.long)
    group[home] = torch.arange(home.numel(), device=device)
    return group.view(count, places), home
