"""FlexAttention of PyTorch: any mask and bias in one kernel that skips fully masked blocks."""

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

LARGE = 1024  # keys from which an n x n table costs more than block masks


def flex_unsupported_reason(spec: AttentionSpec) -> str:
    if spec.dropout:
        return "has no dropout on attention weights"
    return "has no gradient on CPU" if spec.device == "cpu" and spec.grad else ""


def flex_preferred_reason(spec: AttentionSpec) -> str:
    large = spec.device == "cuda" and spec.k.count >= LARGE and spec.q.count > 1
    if not large or spec.plain or flex_unsupported_reason(spec) or not varlen.varlen_unsupported_reason(spec):
        return ""
    return "skips the blocks that the mask empties, and makes no n x n table"


KERNEL_COSTS["flex"] = DENSE


@register_kernel("flex", unsupported_reason=flex_unsupported_reason, preferred_reason=flex_preferred_reason)
def flex_kernel(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    spec, bias = plan.spec, args.bias

    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None
        return score + bias.at(b, h, TokenIndex(spec.q, b, i), TokenIndex(spec.k, b, j)).to(score.dtype)

    attend: Any = flex_attention if torch.compiler.is_compiling() else compiled_flex()
    out = attend(
        q, k, v, score_mod=None if bias is None else add, block_mask=cached_block_mask(spec), scale=args.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


@cache
def compiled_flex() -> Callable[..., Any]:
    """FlexAttention compiled separately, for models that are not compiled: one kernel for each mask, bias and shape.

    Beyond its recompilation limit torch would fall back to an n x n table with a warning; here the limit is higher, and
    exceeding it is an error.
    """
    fast: Any = torch.compile(flex_attention, dynamic=False)

    def attend(*qkv: Tensor, **options: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True):
            return fast(*qkv, **options)

    return attend


BLOCKS: dict[object, BlockMask] = {}


def cached_block_mask(spec: AttentionSpec) -> BlockMask | None:
    """The block mask. Without data it is cached; with data it is computed inside the compiled model."""
    if spec.mask == FULL:
        return None
    known = {
        "order": spec.q.is_plain and spec.k.is_plain,
        "coords": spec.q.grid is not None and spec.k.grid is not None,
    }
    if not all(known.get(table) for table in spec.mask.tables):
        return block_mask(spec, spec.q.batch)
    if torch.compiler.is_compiling():
        return block_mask(spec, None)
    key = (spec.mask, spec.q.count, spec.k.count, spec.q.grid, spec.k.grid, spec.q.order.device)
    if key not in BLOCKS:
        while len(BLOCKS) >= 64:  # lengths vary: bound the cache
            BLOCKS.pop(next(iter(BLOCKS)))
        BLOCKS[key] = block_mask(spec, None)
    return BLOCKS[key]


def block_mask(spec: AttentionSpec, batch: int | None) -> BlockMask:
    def allows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return spec.mask.allows(TokenIndex(spec.q, b, q), TokenIndex(spec.k, b, k))

    return create_block_mask(allows, batch, None, spec.q.count, spec.k.count, device=spec.q.order.device)
