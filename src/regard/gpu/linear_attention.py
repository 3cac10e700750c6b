"""Causal linear attention on a GPU in one pass over q, k and v: what `linear` does, several times faster.

In plain torch each chunk's scores and states are written to memory and read again, and at 64 channels a head that is
where the time goes. The loops of `swift_kernels` keep them in registers. Where Triton is missing, or widths are not
powers of two, `linear` takes the sums of `scan`; both give the same to rounding (tests/gpu, bench/kernels.py).
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from regard.core.kernels import Ask
from regard.core.masks import CAUSAL, PADDING

SIZE, WARPS, STAGES = 64, 4, 2  # places in a chunk; the fastest of eleven ways on an H200 for each loop, or nearly so
PROGRAMS = 1056  # as many segments over all heads keep a large GPU busy; more would write more states
WIDTHS = (16, 32, 64, 128)
AT_HAND = importlib.util.find_spec("triton") is not None


def fits(q: Tensor, v: Tensor, ask: Ask) -> bool:
    """Whether these loops can do it.

    fp16 has no room for weights divided by the sum of a long text, and fp32 gains nothing. Keys and values must be as
    wide as each other: compiled by Triton 3.6, the gradient of queries is wrong for 32 and 64, though not interpreted.
    """
    plain = ask.mask in (CAUSAL, CAUSAL & PADDING) and ask.k.real is None and not ask.cached
    known = q.dtype == torch.bfloat16 and q.shape[-1] == v.shape[-1] in WIDTHS
    return plain and known and q.is_cuda and AT_HAND


def laid(like: Tensor, width: int) -> Tensor:
    """(B, H, N, width) lying as (B, N, H, width), in the order in which heads are joined again."""
    batch, heads, count, _ = like.shape
    return like.new_empty(batch, count, heads, width).transpose(1, 2)


def segments(q: Tensor) -> tuple[int, int]:
    """How many, and how many places each has: chunks by a power of two, so that few loops are ever compiled."""
    batch, heads, count, _ = q.shape
    chunks = -(-count * batch * heads // (PROGRAMS * SIZE))
    length = SIZE << max(0, chunks - 1).bit_length()
    return -(-count // length), length


def launch(loop: str, q: Tensor, v: Tensor, *given: Any) -> None:
    """One loop over all segments of all heads."""
    from regard.efficient import swift_kernels

    parts, length = segments(q)
    getattr(swift_kernels, loop)[q.shape[0] * q.shape[1], parts](
        *given, heads=q.shape[1], count=q.shape[2], length=length, d=q.shape[3], e=v.shape[3], size=SIZE,
        kind=kinds()[q.dtype], num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def kinds() -> dict[torch.dtype, Any]:
    import triton.language as tl

    return {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def states(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Room for S (B·H, segments, d, e) and z (B·H, segments, d)."""
    heads, count = q.shape[0] * q.shape[1], segments(q)[0]
    sums = q.new_empty(heads, count, q.shape[3], v.shape[3], dtype=torch.float32)
    return sums, q.new_empty(heads, count, q.shape[3], dtype=torch.float32)


def steps(*of: Tensor) -> list[tuple[int, ...]]:
    return [x.stride()[:3] for x in of]


def others(x: Tensor, after: bool = False) -> Tensor:
    """The sum of all segments before each, or of all after."""
    turned = x.flip(1) if after else x
    summed = turned.cumsum(1) - turned
    return summed.flip(1) if after else summed


@torch.library.custom_op("regard::swift", mutates_args=())
def swift(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out (B, H, N, e), the sums of weights (B, H, N), and what segments began with."""
    out, whole, (sums, totals) = laid(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32), states(q, v)
    launch("gather", q, v, k, v, sums, totals, *steps(k, v))
    sums, totals = others(sums), others(totals)
    launch("forward", q, v, q, k, v, sums, totals, out, whole, *steps(q, k, v, out))
    return out, whole, sums, totals


@swift.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return laid(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32), *states(q, v)


@torch.library.custom_op("regard::swift_backward", mutates_args=())
def pulled(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, whole: Tensor, sums: Tensor, totals: Tensor,
           ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v."""
    dq, dk, dv = laid(q, q.shape[3]), laid(k, k.shape[3]), laid(v, v.shape[3])
    less, (ahead, above) = torch.empty_like(whole), states(q, v)
    launch("pull", q, v, q, g, out, whole, ahead, above, less, *steps(q, g, out))
    ahead, above = others(ahead, after=True), others(above, after=True)
    launch("queries", q, v, q, k, v, g, whole, less, sums, totals, dq, *steps(q, k, v, g, dq))
    launch("keys", q, v, q, k, v, g, whole, less, ahead, above, dk, dv, *steps(q, k, v, g, dk, dv))
    return dq, dk, dv


@pulled.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, whole: Tensor, sums: Tensor, totals: Tensor,
      ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return laid(q, q.shape[3]), laid(k, k.shape[3]), laid(v, v.shape[3])


def remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def back(ctx: Any, g: Tensor, *rest: Tensor | None) -> tuple[Tensor, ...]:
    given: tuple[Tensor, ...] = pulled(near(g), *ctx.saved_tensors)
    return given


torch.library.register_autograd("regard::swift", back, setup_context=remember)


def near(x: Tensor) -> Tensor:
    """Channels side by side, as the loops read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mean of values weighed by phi(q)·phi(k) over all that came before."""
    made: Tensor = swift(near(q), near(k), near(v))[0]
    return made
