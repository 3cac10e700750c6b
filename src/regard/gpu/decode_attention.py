"""Decode attention in Triton: one new token per row over the filled slots of a KV cache.

    q, k, v ── rotate ──► k and v into their slot; q over earlier slots ──►   `attend_slots`, `merge_parts` if split

`decode_step.py` calls these; `decode_kernels.py` explains `early`. Letters: d channels of a head.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def rotate_(
    x: tl.tensor, cos: tl.tensor, sin: tl.tensor, i: tl.tensor, inside: tl.tensor, turn: tl.constexpr,
    near: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Channels i of a head that starts at x, the first `turn` of them rotated in pairs: of neighbours, or of halves."""
    # the partner channel is loaded a second time: lanes of a Triton program cannot exchange registers
    whole = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    if turn:
        if near:
            other, pair, sign = i ^ 1, i // 2, tl.where(i % 2 == 0, -1.0, 1.0)
        else:
            other, pair = tl.where(i < turn // 2, i + turn // 2, i - turn // 2), i % (turn // 2)
            sign = tl.where(i < turn // 2, -1.0, 1.0)
        mine = inside & (i < turn)
        partner = tl.load(x + other, mask=mine, other=0.0).to(tl.float32)
        c, s = tl.load(cos + pair, mask=mine, other=1.0), tl.load(sin + pair, mask=mine, other=0.0)
        whole = tl.where(i < turn, whole * c + sign * partner * s, whole)
    return whole.to(x.dtype.element_ty).to(tl.float32)


turned = triton.jit(rotate_)


def load_tile_(
    k: tl.tensor, v: tl.tensor, order: tl.tensor, real: tl.tensor, j: tl.tensor, last: tl.tensor, slot: tl.tensor,
    place: tl.tensor, i: tl.tensor, d: tl.constexpr, window: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Keys and values of slots j, and which of them may be attended to.

    All filled slots are loaded, masked ones too: waiting for the mask first would take two memory round trips.
    """
    known = (j < last) & (j != slot)
    there, at = known[:, None] & (i < d)[None, :], j[:, None] * d + i[None, :]
    keys, values = tl.load(k + at, mask=there, other=0.0), tl.load(v + at, mask=there, other=0.0)
    when = tl.load(order + j, mask=known, other=0)
    seen = known & (tl.load(real + j, mask=known, other=0) != 0) & (when <= place)
    if window >= 0:
        seen = seen & (place - when <= window)
    return keys, values, seen


def online_softmax_(
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, seen: tl.tensor, most: tl.tensor, total: tl.tensor,
    sums: tl.tensor, scale: tl.constexpr, many: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Online softmax over further keys: for one query a running softmax for each slot of a tile, so that slots do not
    wait for each other; for sixteen queries or more one for each query."""
    values = tl.where(seen[:, None], values, 0.0)  # an unused slot may hold NaN, and 0 times NaN is NaN
    if many == 1:
        score = tl.where(seen, tl.sum(keys.to(tl.float32) * q[None, :], 1) * scale, -float("inf"))
        peak = tl.maximum(most, score)
        safe = tl.where(peak == -float("inf"), 0.0, peak)  # -inf - -inf would be NaN where there is no key yet
        shrink, weights = tl.exp(most - safe), tl.exp(score - safe)
        total = total * shrink + weights
        sums = sums * shrink[:, None] + weights[:, None] * values.to(tl.float32)
    else:
        score = tl.dot(q.to(keys.dtype), tl.trans(keys)) * scale
        score = tl.where(seen[None, :], score, -float("inf"))
        peak = tl.maximum(most, tl.max(score, 1))
        safe = tl.where(peak == -float("inf"), 0.0, peak)
        shrink, weights = tl.exp(most - safe), tl.exp(score - safe[:, None])
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(weights.to(values.dtype), values, sums * shrink[:, None])
    return peak, total, sums


tile, fold = triton.jit(load_tile_), triton.jit(online_softmax_)


def attend_slots_(
    qkv: tl.tensor, k: tl.tensor, v: tl.tensor, order: tl.tensor, real: tl.tensor, slots: tl.tensor, now: tl.tensor,
    cos: tl.tensor, sin: tl.tensor, angles: tl.tensor, out: tl.tensor, tops: tl.tensor, totals: tl.tensor,
    scale: tl.constexpr, heads: tl.constexpr, groups: tl.constexpr, d: tl.constexpr, wide: tl.constexpr,
    many: tl.constexpr, capacity: tl.constexpr, window: tl.constexpr, ring: tl.constexpr, turn: tl.constexpr,
    near: tl.constexpr, parts: tl.constexpr, part: tl.constexpr, size: tl.constexpr, ahead: tl.constexpr,
    early: tl.constexpr,
) -> None:  # fmt: skip
    """Attention of one row, one group of heads, over one part of the slots.

    The new token's own score initialises the running softmax of the first part, which also writes its key and value to
    the cache: no thread reads there what another may be writing. `many` heads of a group are processed together.
    """
    b, g, p = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    i, inside = tl.arange(0, wide), tl.arange(0, wide) < d
    slot, place = tl.load(slots + b).to(tl.int32), tl.load(now + b)
    k, v = k + (b * groups + g) * capacity * d, v + (b * groups + g) * capacity * d
    order, real = order + b * capacity, real + b * capacity
    begin = p * part
    last = tl.minimum(capacity if ring else slot, begin + part)
    keys, values, seen = tile(k, v, order, real, begin + tl.arange(0, size), last, slot, place, i, d, window)
    if early:  # older tokens were written in previous steps
        gdc_launch_dependents()
        gdc_wait()
    cos, sin, row = cos + b * angles, sin + b * angles, qkv + b * (heads + 2 * groups) * d
    key = turned(row + (heads + g) * d, cos, sin, i, inside, turn, near)
    value = tl.load(row + (heads + groups + g) * d + i, mask=inside, other=0.0)
    tl.store(k + slot * d + i, key.to(k.dtype.element_ty), mask=inside & (p == 0))
    tl.store(v + slot * d + i, value, mask=inside & (p == 0))
    here = row + g * (heads // groups) * d
    if many == 1:
        q = turned(here, cos, sin, i, inside, turn, near)
        first = (p == 0) & (tl.arange(0, size) == 0)
        most = tl.where(first, tl.sum(q * key, 0) * scale, -float("inf"))
        total = tl.where(first, 1.0, 0.0)
        sums = tl.where(first[:, None], value.to(tl.float32)[None, :], 0.0)  # (size, wide)
    else:
        h = tl.arange(0, many)
        both = inside[None, :] & (h < heads // groups)[:, None]
        q = turned(here + h[:, None] * d, cos, sin, i[None, :], both, turn, near)  # (many, wide)
        most = tl.where(p == 0, tl.sum(q * key[None, :], 1) * scale, -float("inf"))
        total = tl.zeros((many,), tl.float32) + tl.where(p == 0, 1.0, 0.0)
        sums = tl.zeros((many, wide), tl.float32) + tl.where(p == 0, value.to(tl.float32), 0.0)[None, :]
    most, total, sums = fold(q, keys, values, seen, most, total, sums, scale, many)
    for start in tl.range(begin + size, last, size, num_stages=ahead):
        some = start + tl.arange(0, size)
        more, worth, clear = tile(k, v, order, real, some, last, slot, place, i, d, window)
        most, total, sums = fold(q, more, worth, clear, most, total, sums, scale, many)
    head = b * heads + g * (heads // groups)
    if many == 1:
        each, most = most, tl.max(most, 0)
        weight = tl.exp(each - tl.where(most == -float("inf"), 0.0, most))
        total, sums = tl.sum(total * weight, 0), tl.sum(sums * weight[:, None], 0)
        if parts == 1:
            tl.store(out + head * d + i, (sums / total).to(out.dtype.element_ty), mask=inside)
        else:
            tl.store(out + (head * parts + p) * d + i, sums, mask=inside)
            tl.store(tops + head * parts + p, most)
            tl.store(totals + head * parts + p, total)
    else:
        each = head + tl.arange(0, many)
        mine = tl.arange(0, many) < heads // groups
        there = mine[:, None] & inside[None, :]
        if parts == 1:
            made = (sums / total[:, None]).to(out.dtype.element_ty)
            tl.store(out + each[:, None] * d + i[None, :], made, mask=there)
        else:
            tl.store(out + (each * parts + p)[:, None] * d + i[None, :], sums, mask=there)
            tl.store(tops + each * parts + p, most, mask=mine)
            tl.store(totals + each * parts + p, total, mask=mine)


def merge_parts_(
    sums: tl.tensor, tops: tl.tensor, totals: tl.tensor, out: tl.tensor, d: tl.constexpr, wide: tl.constexpr,
    parts: tl.constexpr, few: tl.constexpr, early: tl.constexpr,
) -> None:  # fmt: skip
    """Merge the parts of one head, each weighted by its softmax sum."""
    if early:
        gdc_launch_dependents()
        gdc_wait()
    head, p, i = tl.program_id(0).to(tl.int64), tl.arange(0, few), tl.arange(0, wide)
    most = tl.load(tops + head * parts + p, mask=p < parts, other=-float("inf"))
    weight = tl.exp(most - tl.max(most, 0))
    total = tl.load(totals + head * parts + p, mask=p < parts, other=0.0)
    there = (p < parts)[:, None] & (i < d)[None, :]
    every = tl.load(sums + (head * parts + p)[:, None] * d + i[None, :], mask=there, other=0.0)
    made = tl.sum(every * weight[:, None], 0) / tl.sum(weight * total, 0)
    tl.store(out + head * d + i, made.to(out.dtype.element_ty), mask=i < d)


attend_slots, merge_parts = triton.jit(attend_slots_), triton.jit(merge_parts_)
