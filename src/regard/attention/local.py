"""Sparse masks over a line of tokens in chunks: a chunk looks at its neighbours and at the landmarks, and no further.

The mask causal & window(64) leaves a query 65 keys; over a table of n x n every query would pay for all n.

    keys      0 │ 1 │ 2 │ 3          a chunk is as long as the window reaches,
    chunk 2       └───┴─■            so its own and the one before hold all it may see

Which keys a chunk must be shown is read off the mask's form, as a Band; whom a query sees of those, the mask itself
says: any tree of windows, dilations, blocks, landmarks, padding and documents means here what it means everywhere.

Letters: Z classes of tokens `step` apart, C chunks of S places; a query is shown T places.
"""

import math
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.kernels import Ask, How, Plan, fused, kernel, pattern, shared
from regard.core.masks import CAUSAL, And, Blocks, Causal, Landmarks, Mask, Or, Strided, Window
from regard.core.tokens import Places, Spot
from regard.efficient import flex
from regard.efficient.pairs import axes, between, judged, numbers, unless

LEAST = 16  # places in a chunk: products of fewer are not worth their call


@dataclass(frozen=True)
class Band:
    """All pairs that a mask allows: one of the two is a landmark, or they are at most `radius` apart by `step`s."""

    radius: float = math.inf
    step: int = 1
    landmarks: int = 0
    behind: bool = False  # only the past is seen

    def __and__(self, other: "Band") -> "Band":
        least, common = min(self.radius, other.radius), math.lcm(self.step, other.step)
        return Band(least, common, max(self.landmarks, other.landmarks), self.behind or other.behind)

    def __or__(self, other: "Band") -> "Band":
        most, common = max(self.radius, other.radius), math.gcd(self.step, other.step)
        return Band(most, common, max(self.landmarks, other.landmarks), self.behind and other.behind)

    @property
    def sparse(self) -> bool:
        return self.radius < math.inf or self.step > 1


def band(mask: Mask) -> Band:
    match mask:
        case Causal():
            return Band(behind=True)
        case Window(radius):
            return Band(radius)
        case Strided(step):
            return Band(step=step)
        case Blocks(size):
            return Band(size - 1)
        case Landmarks(count):
            return Band(0, 0, count)
        case And() | Or():
            joined = Band.__and__ if isinstance(mask, And) else Band.__or__
            return reduce(joined, map(band, mask.terms))
    return Band()


def reach(mask: Mask) -> tuple[int, bool] | None:
    """How far a window reaches, and whether only backwards; None for any other mask."""
    for leaf in mask.leaves:
        if isinstance(leaf, Window) and mask in (leaf, leaf & CAUSAL):
            return leaf.radius, mask != leaf
    return None


def sizes(found: Band, count: int) -> tuple[int, int, int]:
    """Classes, chunks in a class, and places in a chunk."""
    step = max(1, min(found.step, count))
    line = -(-count // step)
    size = max(int(min(found.radius, count)) // step, LEAST)
    return step, -(-line // size), size


def pairs(mask: Mask, count: int) -> int | None:
    """The pairs of query and key that this kernel computes for a head; None where it has nothing to spare."""
    found = band(mask)
    if not found.sparse:
        return None
    step, chunks, size = sizes(found, count)
    marks = min(found.landmarks, count)
    return step * chunks * size * ((2 if found.behind else 3) * size + marks) + marks * count


def refuses(ask: Ask) -> str:
    found = band(ask.mask)
    if not found.sparse:
        return f"computes windows, blocks, dilations and landmarks: the mask {ask.mask} leaves too many to see"
    if ask.cached or ask.q.plain and ask.q is ask.k:
        return ""
    if ask.q is not ask.k:
        return "needs a line of tokens that look at each other"
    return broken(ask.q, found)


def broken(places: Places, found: Band) -> str:
    """Chunks go by slots and masks by order: the same, where each run of tokens goes up by ones."""
    if places.document is not None and found.landmarks:
        return "finds landmarks at the head of a row: documents packed into it have theirs elsewhere"
    real = torch.ones_like(places.order, dtype=torch.bool) if places.real is None else places.real
    both, same = real[:, 1:] & real[:, :-1], torch.ones_like(real[:, 1:])
    if places.document is not None:
        same = places.document[:, 1:] == places.document[:, :-1]
        whole = (places.document.diff(dim=-1) >= 0).all() & (real[:, 1:] <= real[:, :-1]).all()
    else:
        whole = ((real[:, 1:] & ~real[:, :-1]).sum(-1) + real[:, 0] <= 1).all()
    rising = ((places.order.diff(dim=-1) == 1) | ~(both & same)).all()
    return unless(rising & whole, "needs tokens one after the other, padding only before and after them")


def claims(ask: Ask) -> str:
    found = band(ask.mask)
    sure = ask.q.plain or not torch.compiler.is_compiling()
    if ask.device != "cpu" or not found.sparse or ask.cached or ask.bias or not sure:
        return ""
    step, _, size = sizes(found, ask.q.count)
    long = ask.q.count >= 4 * (step * size + found.landmarks)
    return "chunks look no further than the window" if long and not refuses(ask) else ""


@kernel("local", refuses=refuses, claims=claims)
def local(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    """Equal to the dense mask on all real tokens; time and memory grow with the length, not with its square."""
    numbers("local", plan.given)
    ask, found = plan.ask, band(plan.ask.mask)
    if ask.cached:  # a few new tokens meet all that a cache holds
        return fused(q, k, v, plan, how)
    if ask.device == "cuda" and not flex.refuses(ask):
        return flex.flex(q, k, v, plan, how)
    k, v = shared(k, q), shared(v, q)
    marks = landmarks(ask.q, min(found.landmarks, q.shape[2]))
    out = in_chunks(q, k, v, ask, how, found, marks)
    return out if marks is None else with_rows(out, q, k, v, ask, how, marks)


def in_chunks(q: Tensor, k: Tensor, v: Tensor, ask: Ask, how: How, found: Band, marks: Tensor | None) -> Tensor:
    """Every chunk with its neighbours, and the landmarks beside them in the same softmax."""
    count, (step, chunks, size) = q.shape[2], sizes(found, q.shape[2])

    def fold(x: Tensor) -> Tensor:  # (…, N, d) -> (…, Z, C, S, d)
        x = F.pad(x, (0, 0, 0, step * chunks * size - count)).unflatten(-2, (chunks * size, step))
        return x.transpose(-2, -3).unflatten(-2, (chunks, size))  # type: ignore[no-any-return]

    i = fold(torch.arange(1, count + 1, device=q.device)[:, None])  # (Z, C, S, 1), counted from 1: 0 is nobody
    j = neighbours(i, found.behind).mT
    table = allowed(ask, how, q, i, j, marks is not None and found.landmarks)
    s = judged((fold(q) * how.scale) @ neighbours(fold(k), found.behind).mT, table)  # (B, H, Z, C, S, T)
    places = s.shape[-1]
    if marks is not None:
        s = torch.cat([s, fold(to_landmarks(q, k, ask, how, marks))], -1)
    sure = ask.q.plain and how.bias is None and reach(ask.mask) is not None
    weights = F.dropout(pattern(s, sure), how.dropout)  #: S114 S067
    out = weights[..., :places] @ neighbours(fold(v), found.behind)
    if marks is not None:
        out = out + weights[..., places:] @ taken(v, marks)[:, :, None, None]
    return out.flatten(-3, -2).transpose(-2, -3).flatten(-3, -2)[..., :count, :]


def neighbours(x: Tensor, behind: bool) -> Tensor:
    """Each chunk with the one before it, and the one after if the mask looks both ways: (…, C, T, d)."""
    before, after = F.pad(x, (0, 0, 0, 0, 1, -1)), [] if behind else [F.pad(x, (0, 0, 0, 0, -1, 1))]
    return torch.cat([before, x, *after], -2)


def allowed(ask: Ask, how: How, q: Tensor, i: Tensor, j: Tensor, marks: int) -> Tensor:
    """What mask and bias say of the places shown. Landmarks stand elsewhere; who stands beyond the end sees anybody."""
    b, h = (x[..., None, None] for x in axes(q))
    query, key = (i - 1).clamp(min=0), (j - 1).clamp(min=0)
    table = between(ask, how.bias, (b, h, query, key), q.dtype)
    assert table is not None
    there = j > 0
    if marks:
        there = there & (Spot(ask.k, b, key).order >= marks)
    if table.dtype == torch.bool:
        return table & there | (i == 0)
    return table.masked_fill(~there, float("-inf"))


# ---------------------------------------------------------------- landmarks: seen by all, and seeing all


def landmarks(places: Places, count: int) -> Tensor | None:
    """(B, count) the slots of the first tokens of each row, or -1 where it is shorter."""
    number = torch.arange(count, device=places.order.device)[None]
    if not count or places.plain:
        return number if count else None
    real = torch.ones_like(places.order) if places.real is None else places.real.int()
    first = real.argmax(-1, keepdim=True)
    slot = first - places.order.gather(1, first) + number
    return slot.masked_fill((slot < first) | (slot >= places.count), -1)


def taken(x: Tensor, slots: Tensor) -> Tensor:  # (B, H, N, d), (B, M) -> (B, H, M, d)
    index = slots.clamp(min=0)[:, None, :, None].expand(*x.shape[:2], -1, x.shape[-1])
    return x.gather(2, index)


def to_landmarks(q: Tensor, k: Tensor, ask: Ask, how: How, marks: Tensor) -> Tensor:
    """The scores of all queries with the landmarks' keys, (B, H, N, M)."""
    i, j = torch.arange(q.shape[2], device=q.device).view(1, 1, -1, 1), marks[:, None, None]
    table = between(ask, how.bias, (*axes(q), i, j.clamp(min=0)), q.dtype)
    return judged((q * how.scale) @ taken(k, marks).mT, table).masked_fill(j < 0, float("-inf"))


def with_rows(out: Tensor, q: Tensor, k: Tensor, v: Tensor, ask: Ask, how: How, marks: Tensor) -> Tensor:
    """The landmarks' own rows, over all keys."""
    i, j = marks.clamp(min=0)[:, None, :, None], torch.arange(k.shape[2], device=q.device).view(1, 1, 1, -1)
    s = judged((taken(q, marks) * how.scale) @ k.mT, between(ask, how.bias, (*axes(q), i, j), q.dtype))
    rows = F.dropout(pattern(s), how.dropout) @ v
    return out.scatter(2, i.expand(*rows.shape), rows)
