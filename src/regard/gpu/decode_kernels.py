"""Triton kernels of a decode step: a fused linear layer with norm and residual, the argmax of logits, the cache slot.

    x ── norm ──► W x + b ── activation, gate ── + x ──►   `linear_row`: one row, each program computes the norm again
                                                           `norm_row`, `linear_rows`, `sum_parts`: many, tensor cores

A Hopper GPU may start a kernel before the previous one has ended (`early`): weights are then loaded meanwhile, and no
result of that kernel is read before the wait. Prefetching more than the first tile before the wait was slower (505 us a
step became 524): the loads take bandwidth from the previous kernel.

`decode_step.py` calls these, and those of `decode_attention.py`. Letters: n outputs, k inputs of a linear layer; rows
are those of the batch. The order of sums depends on shapes only: a row's bits do not depend on the other rows.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# ---------------------------------------------------------------- linear layers


def activation_(x: tl.tensor, act: tl.constexpr) -> tl.tensor:
    """The activations of `regard.core.layers` by name; in fp32, rounded once where the result is stored."""
    if act == "relu":
        x = tl.maximum(x, 0.0)
    elif act == "relu2":
        x = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif act == "silu":
        x = x * tl.sigmoid(x)
    elif act == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif act == "gelu_tanh":  # 0.5 (1 + tanh(y)) = sigmoid(2 y), and 2 sqrt(2/pi) = 1.5957...
        x = x * tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
    elif act == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    return x


def norm_gains_(
    gain: tl.tensor, shift: tl.tensor, j: tl.tensor, k: tl.constexpr, offset: tl.constexpr, gained: tl.constexpr,
    shifted: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Gain and shift of a norm; loaded before the wait, since they are weights."""
    times, plus = tl.full(j.shape, 1.0, tl.float32), tl.zeros(j.shape, tl.float32)
    if gained:
        times = tl.load(gain + j, mask=j < k, other=0.0).to(tl.float32) + offset
    if shifted:
        plus = tl.load(shift + j, mask=j < k, other=0.0).to(tl.float32)
    return times, plus


def norm_stats_(every: tl.tensor, i: tl.tensor, k: tl.constexpr, eps: tl.constexpr, norm: tl.constexpr) -> tl.tensor:
    """Mean and 1/deviation of a row. Two passes: the mean of squares minus the squared mean loses digits."""
    mean = tl.sum(every, 0) / k if norm == "layer" else 0.0
    far = tl.where(i < k, every - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(far * far, 0) / k + eps)


def load_biases_(
    bias: tl.tensor, cols: tl.tensor, n: tl.constexpr, biased: tl.constexpr, gated: tl.constexpr
) -> tl.tensor:
    """Biases of outputs, and of their gates, which come first in the weight."""
    own, gate = tl.zeros(cols.shape, tl.float32), tl.zeros(cols.shape, tl.float32)
    if biased:
        own = tl.load(bias + (n if gated else 0) + cols, mask=cols < n, other=0.0).to(tl.float32)
        if gated:
            gate = tl.load(bias + cols, mask=cols < n, other=0.0).to(tl.float32)
    return own, gate


active, spread, gains, biases = (triton.jit(one) for one in (activation_, norm_stats_, norm_gains_, load_biases_))


def linear_row_(
    x: tl.tensor, w: tl.tensor, bias: tl.tensor, gain: tl.tensor, shift: tl.tensor, add: tl.tensor, out: tl.tensor,
    n: tl.constexpr, k: tl.constexpr, eps: tl.constexpr, offset: tl.constexpr, norm: tl.constexpr, gained: tl.constexpr,
    shifted: tl.constexpr, biased: tl.constexpr, act: tl.constexpr, gated: tl.constexpr, added: tl.constexpr,
    whole: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr, early: tl.constexpr,
) -> None:  # fmt: skip
    """Linear layer for one row, bn outputs per program; `whole` is the power of two that k fits in."""
    row, cols = tl.program_id(1).to(tl.int64), tl.program_id(0) * bn + tl.arange(0, bn)
    x += row * k
    j = tl.arange(0, bk)
    at = w + cols[:, None].to(tl.int64) * k + j[None, :]
    there = (cols < n)[:, None] & (j < k)[None, :]
    first = tl.load(at, mask=there, other=0.0)
    two = tl.load(at + n * k, mask=there, other=0.0) if gated else first
    base, gate_base = biases(bias, cols, n, biased, gated)
    times, plus = gains(gain, shift, j, k, offset, gained, shifted)
    if early:
        gdc_launch_dependents()
        gdc_wait()
    more = tl.load(add + row * n + cols, mask=cols < n, other=0.0).to(tl.float32) if added else 0.0
    mean, by = 0.0, 1.0
    if norm != "none":
        i = tl.arange(0, whole)
        mean, by = spread(tl.load(x + i, mask=i < k, other=0.0).to(tl.float32), i, k, eps, norm)
    sums, gates = tl.zeros((bn, bk), tl.float32), tl.zeros((bn, bk), tl.float32)
    for start in tl.static_range(0, k, bk):
        j = start + tl.arange(0, bk)
        at = w + cols[:, None].to(tl.int64) * k + j[None, :]
        there = (cols < n)[:, None] & (j < k)[None, :]
        one = tl.load(at, mask=there, other=0.0) if start > 0 else first
        given = tl.load(x + j, mask=j < k, other=0.0).to(tl.float32)
        if norm != "none":
            if start > 0:
                times, plus = gains(gain, shift, j, k, offset, gained, shifted)
            # rounded to 16 bits as in the plain norm: products then have the same inputs
            given = ((given - mean) * by * times + plus).to(x.dtype.element_ty).to(tl.float32)
        if gated:
            gates += one.to(tl.float32) * given[None, :]
            one = tl.load(at + n * k, mask=there, other=0.0) if start > 0 else two
        sums += one.to(tl.float32) * given[None, :]
    # one reduction at the end; a sum after each tile would make every tile wait for all lanes
    made, gate = tl.sum(sums, 1), tl.sum(gates, 1)
    made = active(gate + gate_base, act) * (made + base) if gated else active(made + base, act)
    made += more
    tl.store(out + row * n + cols, made.to(out.dtype.element_ty), mask=cols < n)


def linear_rows_(
    x: tl.tensor, w: tl.tensor, bias: tl.tensor, add: tl.tensor, out: tl.tensor, rows: tl.tensor, n: tl.constexpr,
    k: tl.constexpr, biased: tl.constexpr, act: tl.constexpr, gated: tl.constexpr, added: tl.constexpr,
    parts: tl.constexpr, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr, early: tl.constexpr,
) -> None:  # fmt: skip
    """Linear layer on tensor cores, bm rows by bn outputs; with `parts` (split-K), sums over one part of the inputs."""
    row, cols = tl.program_id(1) * bm + tl.arange(0, bm), tl.program_id(0) * bn + tl.arange(0, bn)
    here, there, from_ = row < rows, cols < n, x + row[:, None].to(tl.int64) * k
    base, gate_base = biases(bias, cols, n, biased, gated)
    if early:
        gdc_launch_dependents()
        gdc_wait()
    sums, gates = tl.zeros((bm, bn), tl.float32), tl.zeros((bm, bn), tl.float32)
    per = (k + parts * bk - 1) // (parts * bk) * bk
    for start in range(tl.program_id(2) * per, tl.minimum(k, (tl.program_id(2) + 1) * per), bk):
        j = start + tl.arange(0, bk)
        given = tl.load(from_ + j[None, :], mask=here[:, None] & (j < k)[None, :], other=0.0)
        at = w + cols[None, :].to(tl.int64) * k + j[:, None]
        inside = there[None, :] & (j < k)[:, None]
        one = tl.load(at, mask=inside, other=0.0)
        if gated:
            gates = tl.dot(given, one, gates)
            one = tl.load(at + n * k, mask=inside, other=0.0)
        sums = tl.dot(given, one, sums)
    to = row[:, None].to(tl.int64) * n + cols[None, :]
    if parts > 1:
        to += tl.program_id(2).to(tl.int64) * rows * n
        # stored separately and summed in order by `sum_parts`: atomic additions have no fixed order, so bits would vary
        tl.store(out + to, sums, mask=here[:, None] & there[None, :])
        return
    sums += base[None, :]
    sums = active(gates + gate_base[None, :], act) * sums if gated else active(sums, act)
    if added:
        sums += tl.load(add + to, mask=here[:, None] & there[None, :], other=0.0).to(tl.float32)
    tl.store(out + to, sums.to(out.dtype.element_ty), mask=here[:, None] & there[None, :])


def sum_parts_(
    sums: tl.tensor, bias: tl.tensor, add: tl.tensor, gain: tl.tensor, shift: tl.tensor, out: tl.tensor,
    even: tl.tensor, rows: tl.tensor, n: tl.constexpr, eps: tl.constexpr, offset: tl.constexpr, norm: tl.constexpr,
    gained: tl.constexpr, shifted: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, parts: tl.constexpr,
    size: tl.constexpr, early: tl.constexpr,
) -> None:  # fmt: skip
    """Sum the parts of `linear_rows` in order, with bias and residual; and apply the next norm."""
    row, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * size + tl.arange(0, size)
    base, _ = biases(bias, j, n, biased, False)
    times, plus = gains(gain, shift, j, n, offset, gained, shifted)
    if early:
        gdc_launch_dependents()
        gdc_wait()
    made = tl.zeros((size,), tl.float32)
    for part in tl.static_range(0, parts):
        made += tl.load(sums + (part * rows + row) * n + j, mask=j < n, other=0.0)
    made += base
    if added:
        made += tl.load(add + row * n + j, mask=j < n, other=0.0).to(tl.float32)
    said = made.to(out.dtype.element_ty)
    tl.store(out + row * n + j, said, mask=j < n)
    if norm != "none":  # the norm needs a stored row, of which one program has all columns
        said = said.to(tl.float32)
        mean, by = spread(said, j, n, eps, norm)
        tl.store(even + row * n + j, ((said - mean) * by * times + plus).to(out.dtype.element_ty), mask=j < n)


def norm_row_(
    x: tl.tensor, gain: tl.tensor, shift: tl.tensor, out: tl.tensor, k: tl.constexpr, eps: tl.constexpr,
    offset: tl.constexpr, norm: tl.constexpr, gained: tl.constexpr, shifted: tl.constexpr, whole: tl.constexpr,
    early: tl.constexpr,
) -> None:  # fmt: skip
    """The norm of one row, computed once: otherwise many programs would repeat it for all rows."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, whole)
    times, plus = gains(gain, shift, i, k, offset, gained, shifted)
    if early:
        gdc_launch_dependents()
        gdc_wait()
    every = tl.load(x + row * k + i, mask=i < k, other=0.0).to(tl.float32)
    mean, by = spread(every, i, k, eps, norm)
    tl.store(out + row * k + i, ((every - mean) * by * times + plus).to(out.dtype.element_ty), mask=i < k)


# ---------------------------------------------------------------- argmax


def argmax_part_(
    logits: tl.tensor, barred: tl.tensor, tops: tl.tensor, places: tl.tensor, vocab: tl.constexpr, parts: tl.constexpr,
    size: tl.constexpr, early: tl.constexpr,
) -> None:  # fmt: skip
    """The largest value of one part of one row, the first of ties; NaN counts as infinity."""
    b, p = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = p * size + tl.arange(0, size)
    never = tl.load(barred + j, mask=j < vocab, other=1) != 0
    if early:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(logits + b * vocab + j, mask=j < vocab, other=-float("inf")).to(tl.float32)
    x = tl.where(never, -float("inf"), x)
    x = tl.where(x != x, float("inf"), x)  # NaN wins, so that `argmax_join` detects it; tl.max would ignore it
    most = tl.max(x, 0)
    tl.store(tops + b * parts + p, most)
    tl.store(places + b * parts + p, tl.min(tl.where(x == most, j, vocab), 0))


def argmax_join_(
    tops: tl.tensor, places: tl.tensor, chosen: tl.tensor, ids: tl.tensor, broken: tl.constexpr, parts: tl.constexpr,
    few: tl.constexpr, early: tl.constexpr,
) -> None:  # fmt: skip
    """The argmax over all parts, as output and as the next input id; `broken` if the largest is not finite."""
    if early:
        gdc_launch_dependents()
        gdc_wait()
    b, p = tl.program_id(0).to(tl.int64), tl.arange(0, few)
    x = tl.load(tops + b * parts + p, mask=p < parts, other=-float("inf"))
    most = tl.max(x, 0)
    there = (p < parts) & (x == most)
    place = tl.min(tl.where(there, tl.load(places + b * parts + p, mask=there, other=0), 2147483647), 0)
    sound = (most < float("inf")) & (most > -float("inf"))
    tl.store(chosen + b, tl.where(sound, place, broken).to(tl.int64))
    tl.store(ids + b, tl.where(sound, place, 0).to(tl.int64))  # 0 where broken: the next step embeds it before the host
    # has seen `broken` and raises


# ---------------------------------------------------------------- cache slots


def begin_slot_(
    order: tl.tensor, real: tl.tensor, length: tl.tensor, next: tl.tensor, now: tl.tensor, slots: tl.tensor,
    capacity: tl.constexpr, ring: tl.constexpr,
) -> None:  # fmt: skip
    """The cache slot of a row's new token. Launched without `early`: later kernels start after its end, and may read
    the slot before any wait."""
    b = tl.program_id(0).to(tl.int64)
    place = tl.load(length + b)
    slot = place % capacity if ring else place
    tl.store(slots + b, slot)
    tl.store(order + b * capacity + slot, tl.load(now + b))
    tl.store(real + b * capacity + slot, 1)
    tl.store(length + b, place + 1)
    tl.store(next + b, tl.load(next + b) + 1)


every = (linear_row_, linear_rows_, sum_parts_, norm_row_, argmax_part_, argmax_join_, begin_slot_)
linear_row, linear_rows, sum_parts, norm_row, argmax_part, argmax_join, begin_slot = (triton.jit(one) for one in every)
