"""Causal linear attention on a GPU in one pass over q, k and v, forward and backward: `linear`, several times faster.

Plain torch writes each chunk's scores and states to memory and reads them again, which dominates at 64 channels a head;
`linear_attention_kernels` keeps them in registers. Without Triton, or for widths that are not powers of two, `linear`
uses `causal_scan`; results agree to rounding (tests/gpu, bench/kernels.py).
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from regard.core.kernels import AttentionSpec
from regard.core.masks import CAUSAL, PADDING

CHUNK, WARPS, STAGES = 64, 4, 2  # about the fastest of eleven configurations on an H200; CHUNK is in tokens
PROGRAMS = 1056  # segments over all heads: as many keep a large GPU busy, more would write more states
WIDTHS = (16, 32, 64, 128)
HAS_TRITON_LINEAR = importlib.util.find_spec("triton") is not None


def is_supported(q: Tensor, v: Tensor, spec: AttentionSpec) -> bool:
    """Whether the kernels support this call.

    fp16 cannot represent weights divided by the sum of a long text, and fp32 gains nothing. Keys and values must have
    equal width: compiled by Triton 3.6, the gradient of queries is wrong for 32 and 64, though not in the interpreter.
    """
    plain = spec.mask in (CAUSAL, CAUSAL & PADDING) and spec.k.is_real is None and not spec.cached
    known = q.dtype == torch.bfloat16 and q.shape[-1] == v.shape[-1] in WIDTHS
    return plain and known and q.is_cuda and HAS_TRITON_LINEAR


def empty_heads_last(like: Tensor, width: int) -> Tensor:
    """An empty (B, H, N, width) tensor in the memory order (B, N, H, width), in which heads are concatenated."""
    batch, heads, count, _ = like.shape
    return like.new_empty(batch, count, heads, width).transpose(1, 2)


def split_segments(q: Tensor) -> tuple[int, int]:
    """The number of segments, and their length: chunks times a power of two, so that few kernels are compiled."""
    batch, heads, count, _ = q.shape
    chunks = -(-count * batch * heads // (PROGRAMS * CHUNK))
    length = CHUNK << max(0, chunks - 1).bit_length()
    return -(-count // length), length


def launch_kernel(loop: str, q: Tensor, v: Tensor, *given: Any) -> None:
    """Launch one kernel over all segments of all heads."""
    from regard.gpu import linear_attention_kernels

    parts, length = split_segments(q)
    getattr(linear_attention_kernels, loop)[q.shape[0] * q.shape[1], parts](
        *given, heads=q.shape[1], count=q.shape[2], length=length, d=q.shape[3], e=v.shape[3], size=CHUNK,
        kind=triton_dtypes()[q.dtype], num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def triton_dtypes() -> dict[torch.dtype, Any]:
    import triton.language as tl

    return {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def empty_states(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Empty states S (B·H, segments, d, e) and z (B·H, segments, d)."""
    heads, count = q.shape[0] * q.shape[1], split_segments(q)[0]
    sums = q.new_empty(heads, count, q.shape[3], v.shape[3], dtype=torch.float32)
    return sums, q.new_empty(heads, count, q.shape[3], dtype=torch.float32)


def strides(*of: Tensor) -> list[tuple[int, ...]]:
    return [x.stride()[:3] for x in of]


def exclusive_sums(x: Tensor, after: bool = False) -> Tensor:
    """The sum of all segments before each, or of all after."""
    turned = x.flip(1) if after else x
    summed = turned.cumsum(1) - turned
    return summed.flip(1) if after else summed


@torch.library.custom_op("regard::swift", mutates_args=())
def linear_attention_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward pass: out (B, H, N, e), the sums of weights (B, H, N), and the initial state of each segment."""
    out, whole, (sums, totals) = (
        empty_heads_last(q, v.shape[3]),
        q.new_empty(q.shape[:3], dtype=torch.float32),
        empty_states(q, v),
    )
    launch_kernel("gather", q, v, k, v, sums, totals, *strides(k, v))
    sums, totals = exclusive_sums(sums), exclusive_sums(totals)
    launch_kernel("forward", q, v, q, k, v, sums, totals, out, whole, *strides(q, k, v, out))
    return out, whole, sums, totals


@linear_attention_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return empty_heads_last(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32), *empty_states(q, v)


@torch.library.custom_op("regard::swift_backward", mutates_args=())
def linear_attention_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    whole: Tensor,
    sums: Tensor,
    totals: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    dq, dk, dv = empty_heads_last(q, q.shape[3]), empty_heads_last(k, k.shape[3]), empty_heads_last(v, v.shape[3])
    less, (ahead, above) = torch.empty_like(whole), empty_states(q, v)
    launch_kernel("pull", q, v, q, g, out, whole, ahead, above, less, *strides(q, g, out))
    ahead, above = exclusive_sums(ahead, after=True), exclusive_sums(above, after=True)
    launch_kernel("queries", q, v, q, k, v, g, whole, less, sums, totals, dq, *strides(q, k, v, g, dq))
    launch_kernel("keys", q, v, q, k, v, g, whole, less, ahead, above, dk, dv, *strides(q, k, v, g, dk, dv))
    return dq, dk, dv


@linear_attention_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, whole: Tensor, sums: Tensor, totals: Tensor,
      ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return empty_heads_last(q, q.shape[3]), empty_heads_last(k, k.shape[3]), empty_heads_last(v, v.shape[3])


def save_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def backward(ctx: Any, g: Tensor, *rest: Tensor | None) -> tuple[Tensor, ...]:
    given: tuple[Tensor, ...] = linear_attention_backward(channels_contiguous(g), *ctx.saved_tensors)
    return given


torch.library.register_autograd("regard::swift", backward, setup_context=save_for_backward)


def channels_contiguous(x: Tensor) -> Tensor:
    """The tensor with contiguous channels, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mean of values weighted by phi(q)·phi(k) over all previous tokens."""
    made: Tensor = linear_attention_forward(channels_contiguous(q), channels_contiguous(k), channels_contiguous(v))[0]
    return made
