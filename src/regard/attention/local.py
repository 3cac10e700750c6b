"""Local attention, sliding-window and global-token, in chunks: a chunk attends to its neighbours and to global tokens.

The mask causal & window(64) allows a query 65 keys; an n x n table would cost n for every query.

    keys      0 │ 1 │ 2 │ 3          a chunk is as long as the window reaches,
    chunk 2       └───┴─■            so its own and the previous one hold all allowed keys

The candidate keys of a chunk follow from the mask's form, as a BandPattern; the mask itself is applied to them, so any
tree of windows, dilations, blocks, global tokens, padding and documents keeps its meaning.

Letters: Z classes of tokens `step` apart, C chunks of S tokens; a query has T candidates.
"""

import math
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention import flex
from regard.attention.cost import KERNEL_COSTS, AttentionField, KernelCost
from regard.attention.pairwise import (
    apply_pair_bias,
    batch_head_index,
    kernel_numbers,
    pair_bias,
    refuse_unless,
    window_reach,
)
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, attention_weights, fused, register_kernel, repeat_kv
from regard.core.masks import And, Blocks, Causal, GlobalTokens, Mask, Or, Strided, Window
from regard.core.tokens import TokenIndex, TokenLayout

LEAST = 16  # least tokens in a chunk: smaller products are dominated by launch overhead


@dataclass(frozen=True)
class BandPattern:
    """Bound of the pairs that a mask allows: one is a global token, or they are at most `radius` apart in `step`s."""

    radius: float = math.inf
    step: int = 1
    landmarks: int = 0
    behind: bool = False  # causal

    def __and__(self, other: "BandPattern") -> "BandPattern":
        least, common = min(self.radius, other.radius), math.lcm(self.step, other.step)
        return BandPattern(least, common, max(self.landmarks, other.landmarks), self.behind or other.behind)

    def __or__(self, other: "BandPattern") -> "BandPattern":
        most, common = max(self.radius, other.radius), math.gcd(self.step, other.step)
        return BandPattern(most, common, max(self.landmarks, other.landmarks), self.behind and other.behind)

    @property
    def sparse(self) -> bool:
        return self.radius < math.inf or self.step > 1


def band_of_mask(mask: Mask) -> BandPattern:
    match mask:
        case Causal():
            return BandPattern(behind=True)
        case Window(radius):
            return BandPattern(radius)
        case Strided(step):
            return BandPattern(step=step)
        case Blocks(size):
            return BandPattern(size - 1)
        case GlobalTokens(count):
            return BandPattern(0, 0, count)
        case And() | Or():
            joined = BandPattern.__and__ if isinstance(mask, And) else BandPattern.__or__
            return reduce(joined, map(band_of_mask, mask.terms))
    return BandPattern()


def chunk_sizes(found: BandPattern, count: int) -> tuple[int, int, int]:
    """Classes, chunks in a class, and tokens in a chunk."""
    step = max(1, min(found.step, count))
    line = -(-count // step)
    size = max(int(min(found.radius, count)) // step, LEAST)
    return step, -(-line // size), size


def computed_pairs(field: AttentionField, auto: bool) -> int | None:
    """The query-key pairs that this kernel computes for a head; None where it saves nothing."""
    found, count = band_of_mask(field.mask), field.queries
    if not found.sparse or auto and (field.biased or count != field.keys or not pays(found, count)):
        return None
    step, chunks, size = chunk_sizes(found, count)
    marks = min(found.landmarks, count)
    return step * chunks * size * ((2 if found.behind else 3) * size + marks) + marks * count


def pays(found: BandPattern, count: int) -> bool:
    """Whether the sequence is long compared with the window."""
    step, _, size = chunk_sizes(found, count)
    return count >= 4 * (step * size + found.landmarks)


def unsupported_reason(spec: AttentionSpec) -> str:
    found = band_of_mask(spec.mask)
    if not found.sparse:
        return f"computes windows, blocks, dilations and global tokens: the mask {spec.mask} has no such pattern"
    if spec.cached or spec.q.is_plain and spec.q is spec.k:
        return ""
    if spec.q is not spec.k:
        return "needs self-attention: queries and keys of the same tokens"
    return order_problem(spec.q, found)


def order_problem(places: TokenLayout, found: BandPattern) -> str:
    """Chunks follow slots and masks follow order: these agree if each run of tokens increases by one."""
    if places.document is not None and found.landmarks:
        return "has global tokens only at the start of a row: packed documents have theirs elsewhere"
    real = torch.ones_like(places.order, dtype=torch.bool) if places.is_real is None else places.is_real
    both, same = real[:, 1:] & real[:, :-1], torch.ones_like(real[:, 1:])
    if places.document is not None:
        same = places.document[:, 1:] == places.document[:, :-1]
        whole = (places.document.diff(dim=-1) >= 0).all() & (real[:, 1:] <= real[:, :-1]).all()
    else:
        whole = ((real[:, 1:] & ~real[:, :-1]).sum(-1) + real[:, 0] <= 1).all()
    rising = ((places.order.diff(dim=-1) == 1) | ~(both & same)).all()
    return refuse_unless(rising & whole, "needs consecutive tokens, with padding only before and after them")


def preferred_reason(spec: AttentionSpec) -> str:
    found = band_of_mask(spec.mask)
    sure = spec.q.is_plain or not torch.compiler.is_compiling()
    if spec.device != "cpu" or not found.sparse or spec.cached or spec.bias or not sure:
        return ""
    wanted = pays(found, spec.q.count) and not unsupported_reason(spec)
    return "chunks cover no more than the window" if wanted else ""


KERNEL_COSTS["local"] = KernelCost(pairs=computed_pairs, growth=("n·w·d", 1.0))


@register_kernel("local", unsupported_reason=unsupported_reason, preferred_reason=preferred_reason)
def local_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """Equal to the dense mask on all real tokens; time and memory grow linearly with the length."""
    kernel_numbers("local", plan.numbers)
    spec, found = plan.spec, band_of_mask(plan.spec.mask)
    if spec.cached:  # a few new tokens attend to the whole cache
        return fused(q, k, v, plan, args)
    if spec.device == "cuda" and not flex.flex_unsupported_reason(spec):
        return flex.flex_kernel(q, k, v, plan, args)
    k, v = repeat_kv(k, q), repeat_kv(v, q)
    marks = global_slots(spec.q, min(found.landmarks, q.shape[2]))
    out = chunked_attention(q, k, v, spec, args, found, marks)
    return out if marks is None else global_rows(out, q, k, v, spec, args, marks)


def chunked_attention(
    q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, args: AttentionArgs, found: BandPattern, marks: Tensor | None
) -> Tensor:
    """Every chunk with its neighbours, and the global tokens in the same softmax."""
    count, (step, chunks, size) = q.shape[2], chunk_sizes(found, q.shape[2])

    def fold(x: Tensor) -> Tensor:  # (…, N, d) -> (…, Z, C, S, d)
        x = F.pad(x, (0, 0, 0, step * chunks * size - count)).unflatten(-2, (chunks * size, step))
        return x.transpose(-2, -3).unflatten(-2, (chunks, size))  # type: ignore[no-any-return]

    i = fold(torch.arange(1, count + 1, device=q.device)[:, None])  # (Z, C, S, 1), counted from 1: 0 marks padding
    j = with_neighbours(i, found.behind).mT
    table = chunk_mask(spec, args, q, i, j, marks is not None and found.landmarks)
    s = apply_pair_bias((fold(q) * args.scale) @ with_neighbours(fold(k), found.behind).mT, table)  # (B, H, Z, C, S, T)
    places = s.shape[-1]
    if marks is not None:
        s = torch.cat([s, fold(global_scores(q, k, spec, args, marks))], -1)
    sure = spec.q.is_plain and args.bias is None and window_reach(spec.mask) is not None
    weights = F.dropout(attention_weights(s, sure), args.dropout)  #: S114 S067
    out = weights[..., :places] @ with_neighbours(fold(v), found.behind)
    if marks is not None:
        out = out + weights[..., places:] @ gather_slots(v, marks)[:, :, None, None]
    return out.flatten(-3, -2).transpose(-2, -3).flatten(-3, -2)[..., :count, :]


def with_neighbours(x: Tensor, behind: bool) -> Tensor:
    """Each chunk with the previous one, and the next one unless causal: (…, C, T, d)."""
    before, after = F.pad(x, (0, 0, 0, 0, 1, -1)), [] if behind else [F.pad(x, (0, 0, 0, 0, -1, 1))]
    return torch.cat([before, x, *after], -2)


def chunk_mask(spec: AttentionSpec, args: AttentionArgs, q: Tensor, i: Tensor, j: Tensor, marks: int) -> Tensor:
    """Mask and bias of the candidates. Global tokens are handled separately; queries after the end may attend to
    anything."""
    b, h = (x[..., None, None] for x in batch_head_index(q))
    query, key = (i - 1).clamp(min=0), (j - 1).clamp(min=0)
    table = pair_bias(spec, args.bias, (b, h, query, key), q.dtype)
    assert table is not None
    there = j > 0
    if marks:
        there = there & (TokenIndex(spec.k, b, key).order >= marks)
    if table.dtype == torch.bool:
        return table & there | (i == 0)
    return table.masked_fill(~there, float("-inf"))


# ---------------------------------------------------------------- global tokens


def global_slots(places: TokenLayout, count: int) -> Tensor | None:
    """(B, count) the slots of the first tokens of each row, or -1 where it is shorter."""
    number = torch.arange(count, device=places.order.device)[None]
    if not count or places.is_plain:
        return number if count else None
    real = torch.ones_like(places.order) if places.is_real is None else places.is_real.int()
    first = real.argmax(-1, keepdim=True)
    slot = first - places.order.gather(1, first) + number
    return slot.masked_fill((slot < first) | (slot >= places.count), -1)


def gather_slots(x: Tensor, slots: Tensor) -> Tensor:  # (B, H, N, d), (B, M) -> (B, H, M, d)
    index = slots.clamp(min=0)[:, None, :, None].expand(*x.shape[:2], -1, x.shape[-1])
    return x.gather(2, index)


def global_scores(q: Tensor, k: Tensor, spec: AttentionSpec, args: AttentionArgs, marks: Tensor) -> Tensor:
    """The scores of all queries with the global tokens' keys, (B, H, N, M)."""
    i, j = torch.arange(q.shape[2], device=q.device).view(1, 1, -1, 1), marks[:, None, None]
    table = pair_bias(spec, args.bias, (*batch_head_index(q), i, j.clamp(min=0)), q.dtype)
    return apply_pair_bias((q * args.scale) @ gather_slots(k, marks).mT, table).masked_fill(j < 0, float("-inf"))


def global_rows(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, args: AttentionArgs, marks: Tensor
) -> Tensor:
    """The rows of the global tokens, over all keys."""
    i, j = marks.clamp(min=0)[:, None, :, None], torch.arange(k.shape[2], device=q.device).view(1, 1, 1, -1)
    s = apply_pair_bias(
        (gather_slots(q, marks) * args.scale) @ k.mT, pair_bias(spec, args.bias, (*batch_head_index(q), i, j), q.dtype)
    )
    rows = F.dropout(attention_weights(s), args.dropout) @ v
    return out.scatter(2, i.expand(*rows.shape), rows)
