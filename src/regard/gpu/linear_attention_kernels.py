"""Triton kernels of causal linear attention: five, each over one segment of one head, chunk by chunk.

    phi(x) = elu(x) + 1       S = sum of phi(k) v'       z = sum of phi(k)       out = phi(q) S / phi(q) z

A segment starts from the sum of all segments before it (in backward, after it), so segments run independently, and only
the outputs and one state per segment are stored. `linear_attention.py` calls these.

Letters: d channels of q and k, e of v; `size` tokens in a chunk, `length` in a segment, `count` in all. A tensor has
three strides (row, head, token); rows past the end are read as zeros and never written.
"""

import triton
import triton.language as tl


def phi_(x: tl.tensor) -> tl.tensor:
    """The feature map elu(x) + 1."""
    return tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0.0)))


def phi_grad_(x: tl.tensor) -> tl.tensor:
    return tl.where(x > 0, 1.0, tl.exp(tl.minimum(x, 0.0)))


def load_rows_(
    x: tl.tensor, steps: tl.tensor, heads: tl.tensor, place: tl.tensor, count: tl.tensor, width: tl.constexpr
) -> tl.tensor:
    """(size, width) the rows of this head at these positions, in fp32."""
    head = tl.program_id(0)
    x += (head // heads).to(tl.int64) * steps[0] + (head % heads) * steps[1]
    where = x + place[:, None].to(tl.int64) * steps[2] + tl.arange(0, width)[None, :]
    return tl.load(where, mask=(place < count)[:, None], other=0.0).to(tl.float32)


def store_rows_(
    x: tl.tensor,
    steps: tl.tensor,
    heads: tl.tensor,
    place: tl.tensor,
    count: tl.tensor,
    width: tl.constexpr,
    given: tl.tensor,
) -> tl.tensor:
    head = tl.program_id(0)
    x += (head // heads).to(tl.int64) * steps[0] + (head % heads) * steps[1]
    where = x + place[:, None].to(tl.int64) * steps[2] + tl.arange(0, width)[None, :]
    tl.store(where, given.to(x.dtype.element_ty), mask=(place < count)[:, None])


def query_offsets_(x: tl.tensor, place: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The offset of a per-query number of this head."""
    return x + tl.program_id(0).to(tl.int64) * count + place


def state_offsets_(sums: tl.tensor, totals: tl.tensor, d: tl.constexpr, e: tl.constexpr) -> tl.tensor:
    """The offsets of this segment's state (d, e) and its total (d)."""
    one = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    i, j = tl.arange(0, d), tl.arange(0, e)
    return sums + one * d * e + i[:, None] * e + j[None, :], totals + one * d + i


phi, slope, read, write, each, state = (
    triton.jit(one) for one in (phi_, phi_grad_, load_rows_, store_rows_, query_offsets_, state_offsets_)
)


def segment_state_(
    k: tl.tensor, v: tl.tensor, sums: tl.tensor, totals: tl.tensor, ks: tl.tensor, vs: tl.tensor, heads: tl.tensor,
    count: tl.tensor, length: tl.constexpr, d: tl.constexpr, e: tl.constexpr, size: tl.constexpr, kind: tl.constexpr,
) -> None:  # fmt: skip
    """S and z of each segment alone."""
    s, z = tl.zeros((d, e), tl.float32), tl.zeros((d,), tl.float32)
    for start in range(0, length, size):
        place = tl.program_id(1) * length + start + tl.arange(0, size)
        key = tl.where((place < count)[:, None], phi(read(k, ks, heads, place, count, d)), 0.0)
        value = read(v, vs, heads, place, count, e).to(kind)
        s = tl.dot(tl.trans(key.to(kind)), value, s)
        z += tl.sum(key, 0)
    at_s, at_z = state(sums, totals, d, e)
    tl.store(at_s, s)
    tl.store(at_z, z)


def forward_kernel_(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, sums: tl.tensor, totals: tl.tensor, out: tl.tensor, whole: tl.tensor,
    qs: tl.tensor, ks: tl.tensor, vs: tl.tensor, outs: tl.tensor, heads: tl.tensor, count: tl.tensor,
    length: tl.constexpr, d: tl.constexpr, e: tl.constexpr, size: tl.constexpr, kind: tl.constexpr,
) -> None:  # fmt: skip
    """Forward kernel: out, and the sum of each query's weights."""
    at_s, at_z = state(sums, totals, d, e)
    s, z = tl.load(at_s), tl.load(at_z)
    for start in range(0, length, size):
        place = tl.program_id(1) * length + start + tl.arange(0, size)
        query = phi(read(q, qs, heads, place, count, d))
        key = tl.where((place < count)[:, None], phi(read(k, ks, heads, place, count, d)), 0.0)
        value = read(v, vs, heads, place, count, e).to(kind)
        score = tl.dot(query.to(kind), tl.trans(key.to(kind)))
        score = tl.where(place[:, None] >= place[None, :], score, 0.0)
        made = tl.dot(query.to(kind), s.to(kind))
        made = tl.dot(score.to(kind), value, made)
        total = tl.sum(score, 1) + tl.sum(query * z[None, :], 1)
        write(out, outs, heads, place, count, e, made / total[:, None])
        tl.store(each(whole, place, count), total, mask=place < count)
        s = tl.dot(tl.trans(key.to(kind)), value, s)
        z += tl.sum(key, 0)


def total_grads_(
    q: tl.tensor, g: tl.tensor, out: tl.tensor, whole: tl.tensor, sums: tl.tensor, totals: tl.tensor, less: tl.tensor,
    qs: tl.tensor, gs: tl.tensor, outs: tl.tensor, heads: tl.tensor, count: tl.tensor, length: tl.constexpr,
    d: tl.constexpr, e: tl.constexpr, size: tl.constexpr, kind: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of each total, and of each segment alone: S of queries and their gradients, z of their totals'."""
    s, z = tl.zeros((d, e), tl.float32), tl.zeros((d,), tl.float32)
    for start in range(0, length, size):
        place = tl.program_id(1) * length + start + tl.arange(0, size)
        query = phi(read(q, qs, heads, place, count, d))
        total = tl.load(each(whole, place, count), mask=place < count, other=1.0)
        up = read(g, gs, heads, place, count, e) / total[:, None]
        pulled = -tl.sum(up * read(out, outs, heads, place, count, e), 1)
        tl.store(each(less, place, count), pulled, mask=place < count)
        s = tl.dot(tl.trans(query.to(kind)), up.to(kind), s)
        z += tl.sum(query * pulled[:, None], 0)
    at_s, at_z = state(sums, totals, d, e)
    tl.store(at_s, s)
    tl.store(at_z, z)


def query_grads_(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, g: tl.tensor, whole: tl.tensor, less: tl.tensor, sums: tl.tensor,
    totals: tl.tensor, dq: tl.tensor, qs: tl.tensor, ks: tl.tensor, vs: tl.tensor, gs: tl.tensor, dqs: tl.tensor,
    heads: tl.tensor, count: tl.tensor, length: tl.constexpr, d: tl.constexpr, e: tl.constexpr, size: tl.constexpr,
    kind: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of the queries, from the states of the forward pass."""
    at_s, at_z = state(sums, totals, d, e)
    s, z = tl.load(at_s), tl.load(at_z)
    for start in range(0, length, size):
        place = tl.program_id(1) * length + start + tl.arange(0, size)
        key = tl.where((place < count)[:, None], phi(read(k, ks, heads, place, count, d)), 0.0)
        value = read(v, vs, heads, place, count, e).to(kind)
        total = tl.load(each(whole, place, count), mask=place < count, other=1.0)
        pulled = tl.load(each(less, place, count), mask=place < count, other=0.0)
        up = (read(g, gs, heads, place, count, e) / total[:, None]).to(kind)
        weight = tl.dot(up, tl.trans(value)) + pulled[:, None]
        weight = tl.where(place[:, None] >= place[None, :], weight, 0.0)
        made = tl.dot(up, tl.trans(s.to(kind))) + pulled[:, None] * z[None, :]
        made = tl.dot(weight.to(kind), key.to(kind), made)
        write(dq, dqs, heads, place, count, d, made * slope(read(q, qs, heads, place, count, d)))
        s = tl.dot(tl.trans(key.to(kind)), value, s)
        z += tl.sum(key, 0)


def key_value_grads_(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, g: tl.tensor, whole: tl.tensor, less: tl.tensor, sums: tl.tensor,
    totals: tl.tensor, dk: tl.tensor, dv: tl.tensor, qs: tl.tensor, ks: tl.tensor, vs: tl.tensor, gs: tl.tensor,
    dks: tl.tensor, dvs: tl.tensor, heads: tl.tensor, count: tl.tensor, length: tl.constexpr, d: tl.constexpr,
    e: tl.constexpr, size: tl.constexpr, kind: tl.constexpr,
) -> None:  # fmt: skip
    """The gradients of keys and values, from the end of the segment backwards: a key affects the queries after it."""
    at_s, at_z = state(sums, totals, d, e)
    s, z = tl.load(at_s), tl.load(at_z)
    for back in range(size, length + size, size):
        place = (tl.program_id(1) + 1) * length - back + tl.arange(0, size)
        query = phi(read(q, qs, heads, place, count, d))
        raw = read(k, ks, heads, place, count, d)
        key, value = phi(raw).to(kind), read(v, vs, heads, place, count, e).to(kind)
        total = tl.load(each(whole, place, count), mask=place < count, other=1.0)
        pulled = tl.load(each(less, place, count), mask=place < count, other=0.0)
        up = (read(g, gs, heads, place, count, e) / total[:, None]).to(kind)
        heard = place[:, None] <= place[None, :]  # keys in rows, queries in columns
        score = tl.where(heard, tl.dot(key, tl.trans(query.to(kind))), 0.0)
        weight = tl.where(heard, tl.dot(value, tl.trans(up)) + pulled[None, :], 0.0)
        made = tl.dot(key, s.to(kind))
        made = tl.dot(score.to(kind), up, made)
        write(dv, dvs, heads, place, count, e, made)
        made = tl.dot(value, tl.trans(s.to(kind))) + z[None, :]
        made = tl.dot(weight.to(kind), query.to(kind), made)
        write(dk, dks, heads, place, count, d, made * slope(raw))
        s = tl.dot(tl.trans(query.to(kind)), up, s)
        z += tl.sum(query * pulled[:, None], 0)


gather, forward, pull, queries, keys = (
    triton.jit(one) for one in (segment_state_, forward_kernel_, total_grads_, query_grads_, key_value_grads_)
)
