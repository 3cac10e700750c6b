"""Decode step of a trunk, one new token per row, in five to seven fused kernels a block instead of thirty.

    norm, q k v ──► rotate, into the cache, attend ──► out, + x ──► norm, up, activation ──► down, + x

A trunk uses the `FusedDecodeRunner` while a step is captured (`generation/cuda_graphs.py`). Parts of a block that these
kernels do not support run in plain torch: cross-attention, scores with a bias, weights with adapters or in a packed
format.
"""

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.cache import KVCache, LayerKV
from regard.core.kernels import KERNELS, AttentionSpec, Plan
from regard.core.layers import MLP, Attention, Block, FusedLinear, Norm, Scope
from regard.core.masks import CAUSAL, PADDING, And, Mask, Window
from regard.core.model import BlockCall, BlockRunner, Masks, Trunk
from regard.core.positions import PreparedPosition
from regard.core.tokens import TokenLayout

HAS_TRITON = importlib.util.find_spec("triton") is not None
KINDS = (torch.bfloat16, torch.float16)
ACTIVATIONS = ("relu", "relu2", "silu", "gelu", "gelu_tanh", "quick_gelu")
WIDEST = 32768  # inputs of a linear layer: one program holds a row's norm, all of its inputs, in registers
# An H200 has 132 multiprocessors: with fewer programs some are idle, with a few more the last ones run alone.
# Each part of a sum should have LEAST inputs.
AT_ONCE, LEAST = 132, 128
CHUNK = 1024  # logits compared in one program; a single program for a whole vocabulary would leave the GPU idle
PART, FEW = 128, 256  # slots of a part, where there are too few rows and heads to keep a GPU busy


class FusedDecodeRunner(BlockRunner):
    """Runs blocks in fused kernels for one new token per row; unsupported parts run in plain torch."""

    def begin(self, cache: KVCache, tokens: TokenLayout) -> tuple[Tensor, TokenLayout]:
        """Reserve a slot for each row's new token."""
        fits, full = HAS_TRITON and cache.length.is_cuda, cache.used >= cache.capacity and not cache.reach
        # a fresh cache has no older tokens, and for a full one the plain path raises the error
        if not fits or cache.fresh or full or tokens.count > 1 or tokens.is_real is not None:
            return super().begin(cache, tokens)
        from regard.gpu import decode_kernels

        slots, tables = torch.empty_like(tokens.order), (cache.order, cache.real, cache.length, cache.next)
        decode_kernels.begin_slot[(len(slots),)](
            *tables, tokens.order.contiguous(), slots, cache.capacity, cache.reach > 0, num_warps=1
        )
        cache.used += 1  # host counter; a replay updates it itself (`DecodeGraph.replay`)
        return slots, TokenLayout(order=cache.order, is_real=cache.real)

    def plan(
        self, trunk: Trunk, x: Tensor, masks: Masks, q: TokenLayout, k: TokenLayout, place: PreparedPosition | None
    ) -> Plan:
        """A plan without a mask table, where these kernels do all the attention."""
        mask = masks[k.is_real is not None, k.document is not None]
        told = place is None or place.biased or place.qk_offset is not None or mask_reach(mask) is None
        if (
            told
            or not has_kernels(x)
            or x.shape[1] != 1
            or not all(attention_supported(block.attn, x) for block in trunk.blocks)
        ):
            return super().plan(trunk, x, masks, q, k, place)
        spec = AttentionSpec(mask=mask, q=q, k=k, cached=True, dtype=x.dtype, device=x.device.type)
        # no `make_plan`, which would make a mask table (B, 1, 1, K) each step: `attend_cache` needs none, and a block
        # that cannot use it makes its own
        return Plan(KERNELS["fused"], "the kernels of a decode step", spec)

    def run(self, trunk: Trunk, x: Tensor, calls: list[BlockCall], keep: list[Tensor] | None) -> Tensor:  # (B, 1, D)
        assert keep is None, "encoders keep what their layers made, and they take no steps"
        quick, even = has_kernels(x) and x.shape[1] == 1, None
        for i, (block, scope, past) in enumerate(calls):
            if quick and block_supported(block, scope):
                x, even = run_block(block, x.contiguous(), even, scope, *past, then=first_norm(calls[i + 1 :], x))
            else:
                x, even = block(x, scope, *past), None
        return x


def first_norm(calls: list[BlockCall], x: Tensor) -> Norm | None:
    """The norm at the start of the next block."""
    for block, scope, past in calls[:1]:
        if block_supported(block, scope) and not block.post_norm and can_attend(block.attn, scope, past[0], x):
            norm: Norm = block.attn_norm  # type: ignore[assignment]
            return norm
    return None


def has_kernels(x: Tensor) -> bool:
    """Whether the kernels support tensors like x: 16 bits, on CUDA, with Triton."""
    return HAS_TRITON and x.is_cuda and x.dtype in KINDS


def block_supported(block: Any, scope: Scope) -> bool:
    return type(block) is Block and block.residual and scope.watch is None and not block.training


def run_block(
    block: Any, x: Tensor, even: Tensor | None, scope: Scope, past: Any, across: Any, then: Norm | None
) -> tuple[Tensor, Tensor | None]:
    """The block's output, and its norm by `then` if the last kernel computed it; `even` is the norm of x, if the block
    before computed it.

    With one row each kernel computes the norm itself, since one program reads all of x; with many rows every program
    would repeat the norms of all rows, so the kernel that adds the residual computes the next norm.
    """
    post, mlp = block.post_norm, block.mlp
    plain = (
        type(mlp) is MLP
        and mlp.activation in ACTIVATIONS
        and is_plain_linear(mlp.up, x)
        and is_plain_linear(mlp.down, x)
    )
    if can_attend(block.attn, scope, past, x):
        qkv = fused_linear(
            x if even is None else even, block.attn.qkv, None if post or even is not None else block.attn_norm
        )
        soon = block.attn_norm if post else block.mlp_norm if plain and block.cross is None else None
        x, even = linear_residual(attend_cache(block.attn, qkv, scope, past), block.attn.out, x, soon)
        x, even = (block.attn_norm(x) if even is None else even, None) if post else (x, even)
    else:
        x, even = block.add("attn", x, scope, past), None
    if block.cross is not None:
        x = block.add("cross", x, scope, across).contiguous()
    if not plain:
        return x if mlp is None else block.add("mlp", x, scope), None
    norm = None if post or even is not None else block.mlp_norm
    hidden = fused_linear(x if even is None else even, mlp.up, norm, act=mlp.activation, gated=mlp.gated)
    x, even = linear_residual(hidden, mlp.down, x, block.mlp_norm if post else then)
    return (block.mlp_norm(x) if even is None else even, None) if post else (x, even)


def is_plain_linear(part: Any, x: Tensor) -> bool:
    """Whether a linear layer is plain: without adapter, with weights of the dtype of x.

    By exact type: a subclass (LoRA, a packed weight) computes something else in `forward`, which is not called here.
    """
    if type(part) is not FusedLinear or part._forward_hooks or part._forward_pre_hooks or part.in_features > WIDEST:
        return False
    return type(part.weight.data) is Tensor and part.weight.dtype == x.dtype and part.weight.is_contiguous()


def attention_supported(attn: Any, x: Tensor) -> bool:
    """Whether the attention kernel computes the same as this layer."""
    qkv = getattr(attn, "qkv", None)
    if (
        type(attn) is not Attention
        or qkv is None
        or len(qkv.sizes) < 3
        or not is_plain_linear(qkv, x)
        or not is_plain_linear(attn.out, x)
    ):
        return False
    exact = attn.kernel is None or attn.kernel.exact
    return (
        exact and attn.q_norm is None and not attn.cosine and attn.own is None and attn.value_head_dim == attn.head_dim
    )


def can_attend(attn: Any, scope: Scope, past: Any, x: Tensor) -> bool:
    """Whether the kernel applies here: to these positions, this mask, and a contiguous KV cache."""
    where = (
        scope.position.qk_offset is None
        and not scope.position.biased
        and scope.cache_slots is not None
        and not scope.is_first
    )
    held = isinstance(past, LayerKV) and past.k.is_contiguous() and past.v.is_contiguous() and past.k.dtype == x.dtype
    return (
        attention_supported(attn, x)
        and where
        and held
        and scope.plan.kernel.exact
        and mask_reach(scope.plan.spec.mask) is not None
    )


def mask_reach(mask: Mask) -> int | None:
    """The reach of a causal mask, -1 for unlimited; None for other masks."""
    terms = mask.terms if isinstance(mask, And) else (mask,)
    if CAUSAL not in terms or any(term not in (CAUSAL, PADDING) and not isinstance(term, Window) for term in terms):
        return None
    return min((term.radius for term in terms if isinstance(term, Window)), default=-1)


# ---------------------------------------------------------------- kernel launches


def fused_linear(x: Tensor, part: FusedLinear, norm: Norm | None, act: str = "none", gated: bool = False) -> Tensor:
    """A linear layer with the norm before it, and the activation and gate after it: (B, 1, k) -> (B, 1, n)."""
    return launch_linear(x, part.weight, part.full_bias(), norm, act, gated)


def linear_residual(x: Tensor, part: FusedLinear, add: Tensor, then: Norm | None) -> tuple[Tensor, Tensor | None]:
    """A linear layer plus the residual; and the next norm of the sum, where it costs nothing extra."""
    # unsplit, a program has some columns of a row and a norm needs all: only the kernel that sums parts sees whole rows
    if len(x) == 1 or (parts := split_count(len(x), part)) == 1:
        return launch_linear(x, part.weight, part.full_bias(), add=add), None
    return sum_split(launch_linear(x, part.weight, parts=parts), part.full_bias(), add, then)


def decode_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear; torch is slow for many rows with a vocabulary size not divisible by a power of two, which this
    avoids."""
    fit = has_kernels(x) and x.dtype == weight.dtype and weight.is_contiguous() and weight.shape[1] <= WIDEST
    return launch_linear(x.contiguous(), weight, bias) if fit else F.linear(x, weight, bias)


def launch_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, norm: Norm | None = None, act: str = "none",
    gated: bool = False, add: Tensor | None = None, parts: int = 1,
) -> Tensor:  # fmt: skip
    """Launch W x + b with norm, activation and residual; with `parts`, partial sums over the inputs: (parts, B, n)."""
    from regard.gpu import decode_kernels

    k, n, rows = weight.shape[1], len(weight) // (2 if gated else 1), x.shape[0]
    out = x.new_empty(*x.shape[:-1], n) if parts == 1 else x.new_empty(parts, rows, n, dtype=torch.float32)
    after: dict[str, Any] = dict(n=n, k=k, biased=bias is not None, act=act, gated=gated, added=add is not None)
    if rows > 1:
        x = x if norm is None else apply_norm(x, norm)
        bm, bn, bk, warps, stages = matmul_tiles(rows, n)
        after |= dict(parts=parts, bm=bm, bn=bn, bk=bk, num_warps=warps, num_stages=stages)
        grid = -(-n // bn), -(-rows // bm), parts
        decode_kernels.linear_rows[grid](
            x, weight, *or_placeholder(x, bias, add), out, rows, **after, **programmatic_launch(x)
        )
        return out
    bn, bk, warps = linear_tile(n, k)
    after |= dict(bn=bn // 2 if gated else bn, bk=bk, num_warps=warps)
    gain, shift = (None, None) if norm is None else (norm.weight, norm.bias)
    decode_kernels.linear_row[-(-n // after["bn"]), rows](
        x,
        weight,
        *or_placeholder(x, bias, gain, shift, add),
        out,
        whole=next_power_of_two(k),
        **after,
        **norm_arguments(norm),
        **programmatic_launch(x),
    )
    return out


def split_count(rows: int, part: FusedLinear) -> int:
    """Split-K: the number of parts of a sum over inputs, for layers with too few outputs to keep a GPU busy.

    By shapes only, never by load, so that the order of additions and with it the bits stay the same.
    """
    n, k = part.weight.shape
    bm, bn, *_ = matmul_tiles(rows, n)
    programs = -(-n // bn) * -(-rows // bm)
    return next(parts for parts in (4, 2, 1) if parts == 1 or (parts * programs <= AT_ONCE and k >= parts * LEAST))


def sum_split(sums: Tensor, bias: Tensor | None, add: Tensor, then: Norm | None) -> tuple[Tensor, Tensor | None]:
    """Sum parts (parts, B, n) and the residual (B, 1, n), and apply the next norm."""
    from regard.gpu import decode_kernels

    (parts, rows, n), out = sums.shape, torch.empty_like(add)
    size, even = (1024, None) if then is None else (next_power_of_two(n), torch.empty_like(add))
    gain, shift = (None, None) if then is None else (then.weight, then.bias)
    sizes = dict(n=n, biased=bias is not None, added=True, parts=parts, size=size)
    decode_kernels.sum_parts[rows, -(-n // size)](
        sums,
        *or_placeholder(add, bias, add, gain, shift),
        out,
        *or_placeholder(out, even),
        rows,
        **sizes,
        **norm_arguments(then),
        **programmatic_launch(add),
    )
    return out, even


def apply_norm(x: Tensor, norm: Norm) -> Tensor:
    from regard.gpu import decode_kernels

    out, k = torch.empty_like(x), x.shape[-1]
    said = dict(k=k, whole=next_power_of_two(k), num_warps=4)
    decode_kernels.norm_row[(x.shape[0],)](
        x, *or_placeholder(x, norm.weight, norm.bias), out, **said, **norm_arguments(norm), **programmatic_launch(x)
    )
    return out


def norm_arguments(norm: Norm | None) -> dict[str, Any]:
    if norm is None:
        return dict(eps=0.0, offset=0.0, norm="none", gained=False, shifted=False)
    kind, shifted = norm.c.kind, norm.bias is not None
    return dict(eps=norm.c.eps, offset=norm.c.offset, norm=kind, gained=norm.weight is not None, shifted=shifted)


def or_placeholder(x: Tensor, *some: Tensor | None) -> list[Tensor]:
    """A pointer for each argument: missing tensors are replaced by a placeholder that is not read."""
    return [x if one is None else one for one in some]


def linear_tile(n: int, k: int) -> tuple[int, int, int]:
    """Outputs and inputs per program, and its warps: the fastest, or nearly so, on an H200."""
    if k >= 2048:
        return (2, 2048, 4) if k <= 4096 else (4, 1024, 4)
    if n >= 3072:
        return 8, 256, 4
    return (4, next_power_of_two(k), 4) if k <= 1024 else (4, 2048, 8)


def matmul_tiles(rows: int, n: int) -> tuple[int, int, int, int, int]:
    """Rows, outputs and inputs per program, warps, and pipeline stages."""
    bm = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if n >= 16384:
        return bm, 128, 64, 4, 3
    return (bm, 64, 128, 4, 5) if n > 4096 else (bm, 32, 128, 4, 5)


def greedy_token(logits: Tensor, barred: Tensor, ids: Tensor, broken: int) -> Tensor:  # (B, V), (V,) -> (B,)
    """The most likely id of each row, also written to `ids` (B, 1); `broken` if the largest logit is not finite."""
    from regard.gpu import decode_kernels

    rows, vocab = logits.shape
    parts = -(-vocab // CHUNK)
    tops, places = logits.new_empty(rows, parts, dtype=torch.float32), ids.new_empty(rows, parts)
    chosen = ids.new_empty(rows)
    sizes = dict(vocab=vocab, parts=parts, size=CHUNK, num_warps=4)
    decode_kernels.argmax_part[rows, parts](logits, barred, tops, places, **sizes, **programmatic_launch(ids))
    few = dict(parts=parts, few=next_power_of_two(parts), num_warps=1)
    decode_kernels.argmax_join[(rows,)](tops, places, chosen, ids, broken=broken, **few, **programmatic_launch(ids))
    return chosen


def attend_cache(attn: Attention, qkv: Tensor, scope: Scope, past: LayerKV) -> Tensor:  # (B, 1, H·d)
    """Write the new token's key and value to the cache, and attend over it."""
    from regard.gpu import decode_attention

    place, spec, slots = scope.position, scope.plan.spec, scope.cache_slots
    assert slots is not None and spec.k.is_real is not None
    rows, groups, capacity, d = past.k.shape
    window, heads = mask_reach(spec.mask) or 0, attn.heads
    turn = 0 if place.cos is None else 2 * place.cos.shape[-1]
    cos, sin = (qkv if one is None else one.contiguous() for one in (place.cos, place.sin))
    size, warps, ahead = attention_tile(rows * groups, d) if heads == groups else (64, 4, 3)
    part = max(PART, next_power_of_two(capacity) // 64) if rows * groups < FEW else capacity
    parts = -(-capacity // part)
    out = qkv.new_empty(rows, 1, heads * d)
    sums = out if parts == 1 else qkv.new_empty(rows, heads, parts, d, dtype=torch.float32)
    tops, totals = (qkv.new_empty(rows, heads, parts, dtype=torch.float32) for _ in range(2))
    decode_attention.attend_slots[rows, groups, parts](
        qkv, past.k, past.v, spec.k.order, spec.k.is_real, slots, spec.q.order.contiguous(), cos, sin,
        0 if place.cos is None or place.cos.shape[0] == 1 else place.cos.shape[-1] * place.cos.shape[-2], sums, tops,
        totals, scale=attn.scale, heads=heads, groups=groups, d=d, wide=next_power_of_two(d),
        many=1 if heads == groups else max(16, next_power_of_two(heads // groups)), capacity=capacity, window=window,
        ring=window >= 0, turn=turn, near=place.interleaved, parts=parts, part=part, size=size, ahead=ahead,
        num_warps=warps, **programmatic_launch(qkv),
    )  # fmt: skip
    if parts > 1:
        shape = dict(d=d, wide=next_power_of_two(d), parts=parts, few=next_power_of_two(parts))
        decode_attention.merge_parts[(rows * heads,)](sums, tops, totals, out, **shape, **programmatic_launch(out))
    return out


def attention_tile(programs: int, d: int) -> tuple[int, int, int]:
    """Slots per tile, warps, and pipeline stages. A thread holds 64 sums; or 32, if not all programs fit at once.

    Deeper pipelines need registers that more programs could use, and were slower.
    """
    more = max(1, next_power_of_two(d) // 64)
    if programs < FEW:
        return max(16, 128 // more), 4, 1
    return (32 if programs <= 8 * AT_ONCE else 16), min(16, more), 2


def programmatic_launch(x: Tensor) -> dict[str, bool]:
    """Programmatic dependent launch (Hopper and later): a kernel may start before the previous one has ended.

    It loads weights and older keys meanwhile, which no kernel of the step writes, and waits before it reads x.
    """
    may = x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
    return {"early": may, "launch_pdl": may} if may else {"early": False}


def next_power_of_two(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()
