"""Products in C equal torch's own, whatever the sizes; and a row's bits do not depend on who asks beside it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from regard import config
from regard.core.kernels import KERNELS, AttentionArgs, AttentionSpec, make_plan
from regard.core.masks import CAUSAL, FULL, PADDING
from regard.core.tokens import TokenLayout
from regard.native import library as built
from regard.native.library import (
    MAX_ROWS,
    can_multiply,
    copy_slots,
    decode_attention,
    gather_rows,
    load_library,
    logsumexp_rows,
    pack_panels,
    packed_linear,
    topk_rows,
    unpack_panels,
)
from regard.native.quantize import pack_weight, quantize_int8

SIZES = [(1, 1, 1), (1, 7, 15), (2, 33, 16), (3, 64, 129), (5, 130, 257), (16, 9, 1000), (4, 3, 3072), (17, 65, 31),
         (40, 200, 96), (131, 64, 64)]  # fmt: skip
KINDS = ["fp32", "bf16", "int8"]


def told():
    """What this processor says that it can do."""
    about = Path("/proc/cpuinfo")
    return about.read_text() if about.exists() else ""


def kept(weight, kind):
    held = pack_weight(weight, kind)
    return held.kept, len(weight), held.scale


def meant(x, kind):
    """What of these rows is multiplied: many are rounded to bf16, where the weights are."""
    return x.bfloat16().double() if kind != "fp32" and len(x) > MAX_ROWS and load_library().halves() else x.double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("M, N, K", SIZES)
def test_a_map_is_torchs_own(M, N, K, kind):
    torch.manual_seed(M + N + K)
    x, weight, bias = torch.randn(M, K), torch.randn(N, K), torch.randn(N)
    plain = pack_weight(weight, kind).to_fp32().double()

    for given in (bias, None):
        said = packed_linear(x, *kept(weight, kind), given)
        right = F.linear(meant(x, kind), plain, None if given is None else given.double())
        assert torch.allclose(said.double(), right, rtol=1e-5, atol=1e-5 * K**0.5)


@pytest.mark.skipif("avx2" not in told(), reason="what is built for older x86 processors runs on a newer one alone")
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"])
def test_builds_for_other_processors_answer_the_same(processor, monkeypatch):
    others = tuple(f"-march={processor}" if flag == "-march=native" else flag for flag in built.COMPILER_FLAGS)
    for name, value in {"COMPILER_FLAGS": others, "WIDE": (), "LOADED": []}.items():
        monkeypatch.setattr(built, name, value)
    assert load_library() is not None and load_library().side() == 16 and not load_library().halves()

    for M, N, K in SIZES:
        for kind in KINDS:
            x, weight = torch.randn(M, K), torch.randn(N, K)
            right = F.linear(x.double(), pack_weight(weight, kind).to_fp32().double())
            said = packed_linear(x, *kept(weight, kind), None).double()
            assert torch.allclose(said, right, rtol=1e-5, atol=1e-5 * K**0.5)
    q, k, v = torch.randn(2, 4, 1, 40), torch.randn(2, 4, 21, 40), torch.randn(2, 4, 21, 40)
    assert torch.allclose(
        decode_attention(q, k, v, None, 0.3), F.scaled_dot_product_attention(q, k, v, scale=0.3), atol=1e-6
    )
    logits = torch.randn(3, 1003) * 9
    assert torch.allclose(logsumexp_rows(logits), logits.logsumexp(-1, keepdim=True), atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("N, K", [(1, 1), (64, 8), (65, 7), (200, 33)])
def test_panels_hold_the_same_numbers(N, K, kind):
    weight = torch.randint(-127, 128, (N, K)).to(kind)
    table, ids = pack_panels(weight), torch.randint(0, N, (3, 4))

    assert torch.equal(unpack_panels(table, N, K), weight) and torch.equal(gather_rows(table, ids, K), weight[ids])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [MAX_ROWS, 3 * MAX_ROWS])
def test_a_row_has_the_same_bits_alone_and_beside_any_others(kind, count):
    x, weight = torch.randn(count, 333), torch.randn(70, 333)
    given = kept(weight, kind)
    together = packed_linear(x, *given, None)
    shuffled = packed_linear(x.flip(0), *given, None).flip(0)
    others = packed_linear(torch.cat([x[:1], torch.randn(count - 1, 333)]), *given, None)

    assert torch.equal(together, shuffled) and torch.equal(together[:1], others[:1])
    if kind == "fp32" or count == MAX_ROWS:
        assert torch.equal(together, torch.cat([packed_linear(row[None], *given, None) for row in x]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 50])
def test_threads_change_no_bits(kind, count):
    x, given = torch.randn(count, 200), kept(torch.randn(501, 200), kind)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(packed_linear(x, *given, None))
    finally:
        torch.set_num_threads(before)

    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 40])
def test_what_is_not_a_number_stays_with_its_row(kind, count):
    x = torch.randn(count, 64)
    x[1, 3] = torch.nan
    said = packed_linear(x, *kept(torch.randn(70, 64), kind), None)

    assert said[1].isnan().all() and said[0].isfinite().all()


def test_rows_may_lie_apart_in_memory():
    x, weight = torch.randn(5, 2, 64).transpose(0, 1), torch.randn(9, 64)

    assert torch.allclose(packed_linear(x, *kept(weight, "fp32"), None), F.linear(x, weight), atol=1e-5)


def test_rows_in_fp32_without_gradients_are_for_c():
    assert (
        can_multiply(torch.randn(99, 8))
        and not can_multiply(torch.randn(2, 8).double())
        and not can_multiply(torch.randn(0, 8))
    )
    assert not can_multiply(torch.randn(2, 8, requires_grad=True))
    with torch.no_grad():
        assert can_multiply(torch.randn(2, 8, requires_grad=True))


def test_rounding_to_bytes_loses_at_most_half_a_step():
    weight = torch.randn(11, 50) * torch.logspace(-6, 6, 11)[:, None]
    numbers, scale = quantize_int8(weight)

    assert numbers.dtype == torch.int8 and numbers.abs().amax(1).eq(127).all()
    assert ((numbers * scale[:, None] - weight).abs() <= scale[:, None] * 0.501).all()
    assert torch.equal(quantize_int8(torch.zeros(2, 3))[0], torch.zeros(2, 3, dtype=torch.int8))


# ---------------------------------------------------------------- attention


def asked(mask, B=3, Q=2, K=37, bias=False, **rest):
    real = torch.rand(B, K) > 0.3
    q = TokenLayout(order=torch.arange(K - Q, K).expand(B, Q), is_real=None)
    return AttentionSpec(
        mask=mask & PADDING,
        q=q,
        k=TokenLayout(order=torch.arange(K).expand(B, K), is_real=real),
        bias=bias,
        cached=True,
        **rest,
    )


@pytest.mark.parametrize("heads, kv_heads, head_dim, value_head_dim", [(4, 4, 64, 64), (6, 2, 20, 12), (5, 1, 7, 33)])
@pytest.mark.parametrize("mask", [CAUSAL, FULL])
def test_attention_over_what_is_filled_is_the_reference(mask, heads, kv_heads, head_dim, value_head_dim):
    torch.manual_seed(heads)
    ask = asked(mask)
    shapes = ((heads, 2, head_dim), (kv_heads, 37, head_dim), (kv_heads, 37, value_head_dim))
    q, k, v = (torch.randn(3, *shape) for shape in shapes)
    made, right = (make_plan(name, ask) for name in ("native_decode", "reference"))
    how = AttentionArgs(scale=head_dim**-0.5)

    assert torch.allclose(made.run(q, k, v, how), right.run(q, k, v, how), atol=2e-6)


def test_what_is_added_to_scores_counts_and_minus_infinity_forbids():
    q, k, v = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 19, 8), torch.randn(2, 3, 19, 8)
    table = torch.randn(1, 3, 1, 19).masked_fill(torch.rand(1, 3, 1, 19) > 0.6, -torch.inf)
    right = F.scaled_dot_product_attention(q, k, v, attn_mask=table.expand(2, 3, 1, 19), scale=0.3)

    assert torch.allclose(decode_attention(q, k, v, table, 0.3), right, atol=2e-6)


def test_who_may_look_at_nobody_gets_zeros():
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)

    assert decode_attention(q, k, v, torch.zeros(1, 1, 1, 5, dtype=torch.bool), 1.0).eq(0).all()


def test_slots_that_nobody_may_see_are_not_read():
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    allowed = torch.tensor([True, True, False, True, False, False])
    right = decode_attention(q, k, v, allowed[None, None, None], 1.0)
    k[:, :, ~allowed], v[:, :, ~allowed] = torch.nan, torch.nan

    assert torch.equal(decode_attention(q, k, v, allowed[None, None, None], 1.0), right)


@pytest.mark.parametrize("change, why", [
    (dict(grad=True), "no gradients"), (dict(dropout=True), "no dropout"), (dict(Q=9), "8 queries at most"),
    (dict(dtype=torch.float64), "fp32 on the CPU"),
])  # fmt: skip
def test_what_it_cannot_do_it_refuses(change, why):
    with pytest.raises(ValueError, match=why):
        make_plan("native_decode", asked(CAUSAL, **change))


def test_it_claims_a_step_and_not_a_prompt():
    assert make_plan("auto", asked(CAUSAL)).kernel is KERNELS["native_decode"]
    assert make_plan("auto", asked(CAUSAL, Q=30)).kernel is not KERNELS["native_decode"]
    with pytest.raises(ValueError, match="kernel"):
        config.Attention(heads=2, kernel="native_decode")


@pytest.mark.parametrize("R, V", [(1, 1), (3, 15), (4, 16), (2, 1003)])
def test_rows_weigh_what_torch_says(R, V):
    load_library()
    logits = torch.randn(R, V) * 20
    logits[0, -1] = -torch.inf if V > 1 else 3.0

    assert torch.allclose(
        logsumexp_rows(logits).double(), logits.double().logsumexp(-1, keepdim=True), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_what_cannot_be_weighed_is_not_finite(odd):
    load_library()
    logits = torch.randn(2, 40)
    logits[1, 7] = odd

    assert logsumexp_rows(logits).isfinite().flatten().tolist() == [True, False]
    assert logsumexp_rows(torch.full((1, 20), -torch.inf)).item() == -torch.inf


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 1, 1, 4, 0], [2, 0, 0, 0, 3]])
def test_beams_take_over_the_slots_of_those_they_grew_from(rows):
    load_library()
    table, rows, none = torch.randn(5, 3, 9, 4), torch.tensor(rows), torch.zeros(5, dtype=torch.long)
    right = table.clone()
    right[:, :, 2:7] = table[rows][:, :, 2:7]
    copy_slots(table, rows, 2, 7, none)

    assert torch.equal(table, right)
    copy_slots(table, rows, 7, 7, none)
    assert torch.equal(table, right)


def test_slots_that_are_alike_already_are_left_where_they_are():
    load_library()
    table, rows, alike = torch.randn(4, 3, 9, 4), torch.tensor([1, 0, 3, 2]), torch.tensor([0, 2, 5, 4])
    right = table.clone()
    for row, (other, start) in enumerate(zip(rows.tolist(), (alike + 2).tolist(), strict=True)):
        right[row, :, start:7] = table[other, :, start:7]
    copy_slots(table, rows, 2, 7, alike)

    assert torch.equal(table, right)


@pytest.mark.parametrize("V, count", [(1, 1), (7, 7), (255, 3), (256, 64), (1003, 8)])
def test_the_largest_of_a_row_are_in_order_and_of_equals_the_first(V, count):
    load_library()
    table = torch.randint(-40, 40, (5, V)).float().masked_fill(torch.rand(5, V) > 0.9, -torch.inf)
    best, places = topk_rows(table, count)
    right, order = table.sort(dim=1, descending=True, stable=True)

    assert torch.equal(best, right[:, :count]) and torch.equal(places, order[:, :count])


@pytest.mark.parametrize("table", [None, torch.rand(6, 1, 1, 9) > 0.4], ids=["free", "padded"])
def test_beams_of_a_text_read_one_source(table):
    q, k, v = torch.randn(6, 4, 1, 40), torch.randn(2, 2, 9, 40), torch.randn(2, 2, 9, 24)
    right = decode_attention(q, k.repeat_interleave(3, 0), v.repeat_interleave(3, 0), table, 0.3)

    assert torch.equal(decode_attention(q, k, v, table, 0.3), right)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("N, K", [(128, 32), (130, 31)])
def test_panels_do_not_ask_how_a_weight_lies(N, K, kind):
    weight = torch.randn(N, K)
    turned = weight.T.contiguous().T

    assert torch.equal(pack_weight(turned, kind).kept, pack_weight(weight, kind).kept)


def test_an_answer_may_be_written_over_the_one_before():
    x, weight = torch.randn(3, 20), torch.randn(70, 20)
    room = torch.full((3, 70), torch.nan)
    said = packed_linear(x, *kept(weight, "fp32"), None, room)

    assert said is room and torch.equal(said, packed_linear(x, *kept(weight, "fp32"), None))


def test_keys_and_values_may_lie_apart_in_memory():
    q, k, v = torch.randn(2, 4, 1, 8), *(torch.randn(2, 6, 4, 8).transpose(1, 2) for _ in range(2))

    assert torch.allclose(
        decode_attention(q, k, v, None, 0.3), F.scaled_dot_product_attention(q, k, v, scale=0.3), atol=1e-6
    )


@pytest.mark.parametrize("width", [3, 16, 64, 80, 130])
def test_attention_over_few_and_far_scores_is_torchs_own(width):
    q, k, v = torch.randn(1, 2, 1, 5) * 9, torch.randn(1, 2, 37, 5) * 9, torch.randn(1, 2, 37, width)

    assert torch.allclose(
        decode_attention(q, k, v, None, 1.0), F.scaled_dot_product_attention(q, k, v, scale=1.0), atol=1e-5
    )
