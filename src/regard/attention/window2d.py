"""Shifted 2-D windows of an image (Swin) by regrouping: tokens of one window become a short sequence of their own.

The mask cells(7) on a 56 x 56 image leaves each query 49 of 3,136 keys; over a table that would cost 64 times the
arithmetic. Letters: W windows of S places.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel, repeat_kv
from regard.core.masks import Window2d
from regard.core.tokens import TokenIndex


def unsupported_reason(ask: AttentionSpec) -> str:
    if not isinstance(ask.mask, Window2d):
        return "computes image windows alone: the mask must be cells(size, shift) and nothing else"
    if ask.q is not ask.k or ask.q.grid is None:
        return "needs tokens that fill a grid (regard.core.tokens.grid_tokens)"
    return ""


def preferred_reason(ask: AttentionSpec) -> str:
    return "" if unsupported_reason(ask) else "windows of an image run as sequences of their own"


@register_kernel("cells", unsupported_reason=unsupported_reason, preferred_reason=preferred_reason)
def window2d_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: AttentionArgs) -> Tensor:
    """Equal to the dense mask, without its table."""
    mask, places = plan.spec.mask, plan.spec.q
    assert isinstance(mask, Window2d) and places.grid is not None
    group, home = window_groups(places.grid, mask, q.device)
    token = group.clamp(min=0)
    qs, ks, vs = (repeat_kv(x, q)[:, :, token].transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B·W, H, S, d)
    table = (group >= 0)[None, :, None, None, :]  # (1, W, 1, 1, S)
    if how.bias is not None:
        b, h = (torch.arange(size, device=q.device) for size in q.shape[:2])
        b, h = b.view(-1, 1, 1, 1, 1), h.view(1, 1, -1, 1, 1)
        i, j = (
            TokenIndex(places, b, token[None, :, None, :, None]),
            TokenIndex(places, b, token[None, :, None, None, :]),
        )
        table = how.bias.at(b, h, i, j).to(q.dtype).masked_fill(~table, float("-inf"))
    table = table.expand(q.shape[0], -1, -1, -1, -1).flatten(0, 1)
    out = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=table, dropout_p=how.dropout, scale=how.scale)
    return out.view(q.shape[0], -1, *out.shape[1:]).transpose(1, 2).flatten(2, 3)[:, :, home]


def window_groups(grid: tuple[int, ...], mask: Window2d, device: torch.device) -> tuple[Tensor, Tensor]:
    """(W, S) the tokens of each window, -1 where it hangs over the edge; and (N,) where each token went."""
    axes = torch.meshgrid([torch.arange(size, device=device) for size in grid], indexing="ij")
    before = -mask.shift % mask.size  # empty places before the first token
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
