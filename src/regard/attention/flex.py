"""FlexAttention of PyTorch: any mask and bias in one kernel, and blocks that the mask empties are skipped."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from regard.attention import varlen
from regard.attention.cost import DENSE, KERNEL_COSTS
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel
from regard.core.masks import FULL
from regard.core.tokens import TokenIndex

LARGE = 1024  # keys; from here on a table of n x n costs more than blocks do


def flex_unsupported_reason(ask: AttentionSpec) -> str:
    if ask.dropout:
        return "has no dropout on attention weights"
    return "has no gradient on CPU" if ask.device == "cpu" and ask.grad else ""


def flex_preferred_reason(ask: AttentionSpec) -> str:
    large = ask.device == "cuda" and ask.k.count >= LARGE and ask.q.count > 1
    if not large or ask.plain or flex_unsupported_reason(ask) or not varlen.varlen_unsupported_reason(ask):
        return ""
    return "skips the blocks that the mask empties, and makes no n x n table"


KERNEL_COSTS["flex"] = DENSE


@register_kernel("flex", unsupported_reason=flex_unsupported_reason, preferred_reason=flex_preferred_reason)
def flex_kernel(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: AttentionArgs) -> Tensor:
    ask, bias = plan.spec, how.bias

    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None
        return score + bias.at(b, h, TokenIndex(ask.q, b, i), TokenIndex(ask.k, b, j)).to(score.dtype)

    attend: Any = flex_attention if torch.compiler.is_compiling() else compiled_flex()
    out = attend(
        q, k, v, score_mod=None if bias is None else add, block_mask=cached_block_mask(ask), scale=how.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


@cache
def compiled_flex() -> Callable[..., Any]:
    """FlexAttention compiled by itself, for models that are not: a kernel for each mask, bias and shape.

    Past its limit torch would go on with an n x n table and a warning; here it may hold many, and then fails.
    """
    fast: Any = torch.compile(flex_attention, dynamic=False)

    def attend(*qkv: Tensor, **how: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True):
            return fast(*qkv, **how)

    return attend


BLOCKS: dict[object, BlockMask] = {}


def cached_block_mask(ask: AttentionSpec) -> BlockMask | None:
    """Which blocks of the table hold anything. Without data it is made once; with data, inside the compiled model."""
    if ask.mask == FULL:
        return None
    known = {"order": ask.q.is_plain and ask.k.is_plain, "coords": ask.q.grid is not None and ask.k.grid is not None}
    if not all(known.get(table) for table in ask.mask.tables):
        return block_mask(ask, ask.q.batch)
    if torch.compiler.is_compiling():
        return block_mask(ask, None)
    key = (ask.mask, ask.q.count, ask.k.count, ask.q.grid, ask.k.grid, ask.q.order.device)
    if key not in BLOCKS:
        while len(BLOCKS) >= 64:  # lengths come and go
            BLOCKS.pop(next(iter(BLOCKS)))
        BLOCKS[key] = block_mask(ask, None)
    return BLOCKS[key]


def block_mask(ask: AttentionSpec, batch: int | None) -> BlockMask:
    def allows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ask.mask.allows(TokenIndex(ask.q, b, q), TokenIndex(ask.k, b, k))

    return create_block_mask(allows, batch, None, ask.q.count, ask.k.count, device=ask.q.order.device)
