"""The walk through a trunk's blocks where every row has one new token: five loops a block instead of twenty.

    norm, q k v ──► rotate, into the cache, attend ──► out, + x ──► norm, up, activation ──► down, + x

It is put in the place of `Trunk.walk` while a step is recorded (`generate/recorded.py`). A part of a block that these
loops cannot do runs as it is written: cross-attention, scores with a bias, weights that are worn or held otherwise.
"""

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.cache import Entry
from regard.core.kernels import KERNELS, Ask, Plan
from regard.core.layers import MLP, Attention, Block, Fused, Norm, Scope
from regard.core.masks import CAUSAL, PADDING, And, Mask, Window
from regard.core.model import Step, Trunk
from regard.core.positions import Place
from regard.core.tokens import Places

AT_HAND = importlib.util.find_spec("triton") is not None
KINDS = (torch.bfloat16, torch.float16)
Masks = dict[tuple[bool, bool], Mask]  # one for tokens with padding or without, with documents or without
ACTIVATIONS = ("relu", "relu2", "silu", "gelu", "gelu_tanh", "quick_gelu")
WIDEST = 32768  # inputs of a map that a program goes through
TILE = {True: (256, 8), False: (64, 2)}  # slots that are looked at together, and warps: for few programs, for many
LONG, PARTS = 2048, 4  # inputs from which on, of many rows, their sum is made in parts: else few programs would be busy
CHUNK = 2048  # logits that are compared together
PART, FEW = 1024, 256  # slots of a part, where there are too few rows and heads to keep a GPU busy


def walk(x: Tensor, steps: list[Step], keep: list[Tensor] | None = None) -> Tensor:  # (B, 1, D)
    """Block after block, as `Trunk.walk` does it."""
    assert keep is None, "encoders keep what their layers made, and they take no steps"
    quick = ready(x) and x.shape[1] == 1
    for block, scope, past in steps:
        x = stepped(block, x.contiguous(), scope, *past) if quick and fits(block, scope) else block(x, scope, *past)
    return x


def plan(trunk: Trunk, x: Tensor, masks: Masks, q: Places, k: Places, place: Place | None) -> Plan:
    """As `Trunk.plan`, but without a table of who sees whom where these loops, which need none, do all the looking."""
    mask = masks[k.real is not None, k.document is not None]
    told = place is None or place.biased or place.lean is not None or reach(mask) is None
    if told or not ready(x) or x.shape[1] != 1 or not all(looks(block.attn, x) for block in trunk.blocks):
        return Trunk.plan(trunk, x, masks, q, k, place)
    ask = Ask(mask=mask, q=q, k=k, cached=True, dtype=x.dtype, device=x.device.type)
    return Plan(KERNELS["fused"], "the loops of a step", ask)


def ready(x: Tensor) -> bool:
    """Whether there are loops for what is like x."""
    return AT_HAND and x.is_cuda and x.dtype in KINDS


def fits(block: Any, scope: Scope) -> bool:
    return type(block) is Block and block.residual and scope.watch is None and not block.training


def stepped(block: Any, x: Tensor, scope: Scope, past: Any, across: Any) -> Tensor:
    before, after = (None, True) if block.post_norm else (block.attn_norm, False)
    if attends(block.attn, scope, past, x):
        qkv = mapped(x, block.attn.qkv, before)
        x = mapped(attended(block.attn, qkv, scope, past), block.attn.out, None, add=x)
        x = block.attn_norm(x) if after else x
    else:
        x = block.add(x, block.attn, block.attn_norm, scope, past)
    if block.cross is not None and block.cross_norm is not None:
        x = block.add(x, block.cross, block.cross_norm, scope, across).contiguous()
    mlp = block.mlp
    if not (type(mlp) is MLP and mlp.activation in ACTIVATIONS and whole(mlp.up, x) and whole(mlp.down, x)):
        made: Tensor = block.add(x, mlp, block.mlp_norm, scope)
        return made
    hidden = mapped(x, mlp.up, None if after else block.mlp_norm, act=mlp.activation, gated=mlp.gated)
    x = mapped(hidden, mlp.down, None, add=x)
    x = block.mlp_norm(x) if after else x
    return x


def whole(part: Any, x: Tensor) -> bool:
    """A map as it was made: nothing is worn over it, and its weights are of the type of x."""
    if type(part) is not Fused or part._forward_hooks or part._forward_pre_hooks or part.in_features > WIDEST:
        return False
    return type(part.weight.data) is Tensor and part.weight.dtype == x.dtype and part.weight.is_contiguous()


def looks(attn: Any, x: Tensor) -> bool:
    """Whether the loop can do what this attention does, with positions that it knows."""
    qkv = getattr(attn, "qkv", None)
    if type(attn) is not Attention or qkv is None or len(qkv.sizes) < 3 or not whole(qkv, x) or not whole(attn.out, x):
        return False
    exact = attn.kernel is None or attn.kernel.exact
    return exact and attn.q_norm is None and not attn.cosine and attn.own is None and attn.value_width == attn.width


def attends(attn: Any, scope: Scope, past: Any, x: Tensor) -> bool:
    """Whether the loop can do it here."""
    where = scope.place.lean is None and not scope.place.biased and scope.slots is not None and not scope.fresh
    held = isinstance(past, Entry) and past.k.is_contiguous() and past.v.is_contiguous() and past.k.dtype == x.dtype
    return looks(attn, x) and where and held and scope.plan.kernel.exact and reach(scope.plan.ask.mask) is not None


def reach(mask: Mask) -> int | None:
    """How far back a causal mask lets look, -1 for all the way; None where the mask is of another kind."""
    terms = mask.terms if isinstance(mask, And) else (mask,)
    if CAUSAL not in terms or any(term not in (CAUSAL, PADDING) and not isinstance(term, Window) for term in terms):
        return None
    return min((term.radius for term in terms if isinstance(term, Window)), default=-1)


# ---------------------------------------------------------------- the loops, called


def mapped(
    x: Tensor, part: Fused, norm: Norm | None, *, act: str = "none", gated: bool = False, add: Tensor | None = None
) -> Tensor:  # (B, 1, k) -> (B, 1, n)
    """A map with the norm before it, and the activation, the gate and the sum after it."""
    return product(x, part.weight, part.full_bias(), norm, act, gated, add)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What F.linear gives; over a vocabulary whose size no power of two divides, that is slow for many rows."""
    fit = ready(x) and x.dtype == weight.dtype and weight.is_contiguous() and weight.shape[1] <= WIDEST
    return product(x.contiguous(), weight, bias) if fit else F.linear(x, weight, bias)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, norm: Norm | None = None, act: str = "none",
    gated: bool = False, add: Tensor | None = None,
) -> Tensor:  # fmt: skip
    from regard.gpu import loops

    k, n, rows = weight.shape[1], len(weight) // (2 if gated else 1), x.shape[0]
    out = x.new_empty(*x.shape[:-1], n)
    after: dict[str, Any] = dict(n=n, k=k, biased=bias is not None, act=act, gated=gated, added=add is not None)
    if rows > 1:
        x = x if norm is None else evened(x, norm)
        bm, bn, bk, warps, stages = tiles(rows, n)
        parts = PARTS if k >= LONG and n < 4 * LONG and act == "none" and not gated else 1
        after |= dict(parts=parts, bm=bm, bn=bn, bk=bk, num_warps=warps, num_stages=stages)
        made = out if parts == 1 else x.new_empty(parts, rows, n, dtype=torch.float32)
        grid = -(-n // bn), -(-rows // bm), parts
        loops.several[grid](x, weight, *given(x, bias, add), made, rows, **after, **early(x))
        if parts > 1:
            sizes = dict(n=n, biased=bias is not None, added=add is not None, parts=parts, size=1024)
            loops.gather[rows, -(-n // 1024)](made, *given(x, bias, add), out, rows, **sizes, **early(x))
        return out
    bn, bk, warps = tile(n, k)
    after |= dict(bn=bn // 2 if gated else bn, bk=bk, num_warps=warps)
    norms = dict(eps=0.0, offset=0.0, norm="none", gained=False, shifted=False) if norm is None else facts(norm)
    gain, shift = (None, None) if norm is None else (norm.weight, norm.bias)
    loops.single[-(-n // after["bn"]), rows](
        x, weight, *given(x, bias, gain, shift, add), out, whole=power(k), **after, **norms, **early(x)
    )
    return out


def evened(x: Tensor, norm: Norm) -> Tensor:
    from regard.gpu import loops

    out, k = torch.empty_like(x), x.shape[-1]
    said = dict(k=k, whole=power(k), num_warps=4)
    loops.evened[(x.shape[0],)](x, *given(x, norm.weight, norm.bias), out, **said, **facts(norm), **early(x))
    return out


def facts(norm: Norm) -> dict[str, Any]:
    kind, shifted = norm.c.kind, norm.bias is not None
    return dict(eps=norm.c.eps, offset=norm.c.offset, norm=kind, gained=norm.weight is not None, shifted=shifted)


def given(x: Tensor, *some: Tensor | None) -> list[Tensor]:
    """Something to point at for each: what is not there is not read."""
    return [x if one is None else one for one in some]


def tile(n: int, k: int) -> tuple[int, int, int]:
    """Outputs and inputs that a program takes at a time, and its warps: the fastest, or nearly so, on an H200."""
    if k >= 2048:
        return (4, 2048, 4) if k <= 4096 else (4, 1024, 4)
    if n >= 3072:
        return 8, 256, 4
    return (4, power(k), 4) if k <= 1024 else (4, 2048, 8)


def tiles(rows: int, n: int) -> tuple[int, int, int, int, int]:
    """Rows, outputs and inputs, warps, and loads in flight."""
    bm = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if n >= 16384:
        return bm, 64, 64, 4, 3
    return (bm, 64, 128, 4, 5) if n >= 4096 else (bm, 32, 128, 4, 5)


def said(logits: Tensor, barred: Tensor, ids: Tensor, broken: int) -> Tensor:  # (B, V), (V,) -> (B,)
    """The likeliest id of each row, written to `ids` (B, 1) as well; `broken` where the largest logit is not finite."""
    from regard.gpu import loops

    rows, vocab = logits.shape
    parts = -(-vocab // CHUNK)
    tops, places = logits.new_empty(rows, parts, dtype=torch.float32), ids.new_empty(rows, parts)
    chosen = ids.new_empty(rows)
    loops.top[rows, parts](logits, barred, tops, places, vocab=vocab, parts=parts, size=CHUNK, num_warps=4)
    loops.say[(rows,)](tops, places, chosen, ids, broken=broken, parts=parts, few=power(parts), num_warps=1)
    return chosen


def attended(attn: Attention, qkv: Tensor, scope: Scope, past: Entry) -> Tensor:  # (B, 1, H·d)
    """The new token's key and value into the cache, and what its query finds there."""
    from regard.gpu import attention

    place, ask, slots = scope.place, scope.plan.ask, scope.slots
    assert slots is not None and ask.k.real is not None
    rows, groups, capacity, d = past.k.shape
    window, heads = reach(ask.mask) or 0, attn.heads
    turn = 0 if place.cos is None else 2 * place.cos.shape[-1]
    cos, sin = (qkv if one is None else one.contiguous() for one in (place.cos, place.sin))
    size, warps = TILE[rows * groups < FEW] if heads == groups else (64, 4)
    part = PART if rows * groups < FEW else capacity
    parts = -(-capacity // part)
    out = qkv.new_empty(rows, 1, heads * d)
    sums = out if parts == 1 else qkv.new_empty(rows, heads, parts, d, dtype=torch.float32)
    tops, totals = (qkv.new_empty(rows, heads, parts, dtype=torch.float32) for _ in range(2))
    attention.attend[rows, groups, parts](
        qkv, past.k, past.v, ask.k.order, ask.k.real, slots, ask.q.order.contiguous(), cos, sin,
        0 if place.cos is None or place.cos.shape[0] == 1 else place.cos.shape[-1] * place.cos.shape[-2], sums, tops,
        totals, scale=attn.scale, heads=heads, groups=groups, d=d, wide=power(d),
        many=1 if heads == groups else max(16, power(heads // groups)), capacity=capacity, window=window,
        ring=window >= 0, turn=turn, near=place.interleaved, parts=parts, part=part, size=size, num_warps=warps,
        **early(qkv),
    )  # fmt: skip
    if parts > 1:
        shape = dict(d=d, wide=power(d), parts=parts, few=power(parts))
        attention.join[(rows * heads,)](sums, tops, totals, out, **shape, **early(out))
    return out


def early(x: Tensor) -> dict[str, bool]:
    """Whether a loop may begin before the last one has ended."""
    may = x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
    return {"early": may, "launch_pdl": may} if may else {"early": False}


def power(size: int) -> int:
    """The power of two that it fits in."""
    return 1 << max(0, size - 1).bit_length()
