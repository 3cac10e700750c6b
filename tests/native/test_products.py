"""Products in C equal torch's own, whatever the sizes; and a row's bits do not depend on who asks beside it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from regard import config
from regard.core.kernels import KERNELS, Ask, How, plan
from regard.core.masks import CAUSAL, EVERYTHING, PADDING
from regard.core.tokens import Places
from regard.native import build
from regard.native.build import library
from regard.native.held import hold, rounded
from regard.native.products import FEW, attended, mapped, ours, panels, ranked, rows_of, take_over, unpaneled, weighed

SIZES = [(1, 1, 1), (1, 7, 15), (2, 33, 16), (3, 64, 129), (5, 130, 257), (16, 9, 1000), (4, 3, 3072), (17, 65, 31),
         (40, 200, 96), (131, 64, 64)]  # fmt: skip
KINDS = ["fp32", "bf16", "int8"]


def told():
    """What this processor says that it can do."""
    about = Path("/proc/cpuinfo")
    return about.read_text() if about.exists() else ""


def kept(weight, kind):
    held = hold(weight, kind)
    return held.kept, len(weight), held.scale


def meant(x, kind):
    """What of these rows is multiplied: many are rounded to bf16, where the weights are."""
    return x.bfloat16().double() if kind != "fp32" and len(x) > FEW and library().halves() else x.double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("M, N, K", SIZES)
def test_a_map_is_torchs_own(M, N, K, kind):
    torch.manual_seed(M + N + K)
    x, weight, bias = torch.randn(M, K), torch.randn(N, K), torch.randn(N)
    plain = hold(weight, kind).plain().double()

    for given in (bias, None):
        said = mapped(x, *kept(weight, kind), given)
        right = F.linear(meant(x, kind), plain, None if given is None else given.double())
        assert torch.allclose(said.double(), right, rtol=1e-5, atol=1e-5 * K**0.5)


@pytest.mark.skipif("avx2" not in told(), reason="what is built for older x86 processors runs on a newer one alone")
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"])
def test_builds_for_other_processors_answer_the_same(processor, monkeypatch):
    others = tuple(f"-march={processor}" if flag == "-march=native" else flag for flag in build.FLAGS)
    for name, value in {"FLAGS": others, "WIDE": (), "FOUND": []}.items():
        monkeypatch.setattr(build, name, value)
    assert library() is not None and library().side() == 16 and not library().halves()

    for M, N, K in SIZES:
        for kind in KINDS:
            x, weight = torch.randn(M, K), torch.randn(N, K)
            right = F.linear(x.double(), hold(weight, kind).plain().double())
            said = mapped(x, *kept(weight, kind), None).double()
            assert torch.allclose(said, right, rtol=1e-5, atol=1e-5 * K**0.5)
    q, k, v = torch.randn(2, 4, 1, 40), torch.randn(2, 4, 21, 40), torch.randn(2, 4, 21, 40)
    assert torch.allclose(attended(q, k, v, None, 0.3), F.scaled_dot_product_attention(q, k, v, scale=0.3), atol=1e-6)
    logits = torch.randn(3, 1003) * 9
    assert torch.allclose(weighed(logits), logits.logsumexp(-1, keepdim=True), atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("N, K", [(1, 1), (64, 8), (65, 7), (200, 33)])
def test_panels_hold_the_same_numbers(N, K, kind):
    weight = torch.randint(-127, 128, (N, K)).to(kind)
    table, ids = panels(weight), torch.randint(0, N, (3, 4))

    assert torch.equal(unpaneled(table, N, K), weight) and torch.equal(rows_of(table, ids, K), weight[ids])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [FEW, 3 * FEW])
def test_a_row_has_the_same_bits_alone_and_beside_any_others(kind, count):
    x, weight = torch.randn(count, 333), torch.randn(70, 333)
    given = kept(weight, kind)
    together = mapped(x, *given, None)
    shuffled = mapped(x.flip(0), *given, None).flip(0)
    others = mapped(torch.cat([x[:1], torch.randn(count - 1, 333)]), *given, None)

    assert torch.equal(together, shuffled) and torch.equal(together[:1], others[:1])
    if kind == "fp32" or count == FEW:
        assert torch.equal(together, torch.cat([mapped(row[None], *given, None) for row in x]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 50])
def test_threads_change_no_bits(kind, count):
    x, given = torch.randn(count, 200), kept(torch.randn(501, 200), kind)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(mapped(x, *given, None))
    finally:
        torch.set_num_threads(before)

    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 40])
def test_what_is_not_a_number_stays_with_its_row(kind, count):
    x = torch.randn(count, 64)
    x[1, 3] = torch.nan
    said = mapped(x, *kept(torch.randn(70, 64), kind), None)

    assert said[1].isnan().all() and said[0].isfinite().all()


def test_rows_may_lie_apart_in_memory():
    x, weight = torch.randn(5, 2, 64).transpose(0, 1), torch.randn(9, 64)

    assert torch.allclose(mapped(x, *kept(weight, "fp32"), None), F.linear(x, weight), atol=1e-5)


def test_rows_in_fp32_without_gradients_are_for_c():
    assert ours(torch.randn(99, 8)) and not ours(torch.randn(2, 8).double()) and not ours(torch.randn(0, 8))
    assert not ours(torch.randn(2, 8, requires_grad=True))
    with torch.no_grad():
        assert ours(torch.randn(2, 8, requires_grad=True))


def test_rounding_to_bytes_loses_at_most_half_a_step():
    weight = torch.randn(11, 50) * torch.logspace(-6, 6, 11)[:, None]
    numbers, scale = rounded(weight)

    assert numbers.dtype == torch.int8 and numbers.abs().amax(1).eq(127).all()
    assert ((numbers * scale[:, None] - weight).abs() <= scale[:, None] * 0.501).all()
    assert torch.equal(rounded(torch.zeros(2, 3))[0], torch.zeros(2, 3, dtype=torch.int8))


# ---------------------------------------------------------------- attention


def asked(mask, B=3, Q=2, K=37, bias=False, **rest):
    real = torch.rand(B, K) > 0.3
    q = Places(order=torch.arange(K - Q, K).expand(B, Q), real=None)
    return Ask(mask=mask & PADDING, q=q, k=Places(order=torch.arange(K).expand(B, K), real=real), bias=bias,
               cached=True, **rest)  # fmt: skip


@pytest.mark.parametrize("heads, groups, width, value", [(4, 4, 64, 64), (6, 2, 20, 12), (5, 1, 7, 33)])
@pytest.mark.parametrize("mask", [CAUSAL, EVERYTHING])
def test_attention_over_what_is_filled_is_the_reference(mask, heads, groups, width, value):
    torch.manual_seed(heads)
    ask = asked(mask)
    q, k, v = (torch.randn(3, *shape) for shape in ((heads, 2, width), (groups, 37, width), (groups, 37, value)))
    made, right = (plan(name, ask) for name in ("steps", "reference"))
    how = How(scale=width**-0.5)

    assert torch.allclose(made.run(q, k, v, how), right.run(q, k, v, how), atol=2e-6)


def test_what_is_added_to_scores_counts_and_minus_infinity_forbids():
    q, k, v = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 19, 8), torch.randn(2, 3, 19, 8)
    table = torch.randn(1, 3, 1, 19).masked_fill(torch.rand(1, 3, 1, 19) > 0.6, -torch.inf)
    right = F.scaled_dot_product_attention(q, k, v, attn_mask=table.expand(2, 3, 1, 19), scale=0.3)

    assert torch.allclose(attended(q, k, v, table, 0.3), right, atol=2e-6)


def test_who_may_look_at_nobody_gets_zeros():
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)

    assert attended(q, k, v, torch.zeros(1, 1, 1, 5, dtype=torch.bool), 1.0).eq(0).all()


def test_slots_that_nobody_may_see_are_not_read():
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    allowed = torch.tensor([True, True, False, True, False, False])
    right = attended(q, k, v, allowed[None, None, None], 1.0)
    k[:, :, ~allowed], v[:, :, ~allowed] = torch.nan, torch.nan

    assert torch.equal(attended(q, k, v, allowed[None, None, None], 1.0), right)


@pytest.mark.parametrize("change, why", [
    (dict(grad=True), "no gradients"), (dict(dropout=True), "no dropout"), (dict(Q=9), "8 queries at most"),
    (dict(dtype=torch.float64), "fp32 on the CPU"),
])  # fmt: skip
def test_what_it_cannot_do_it_refuses(change, why):
    with pytest.raises(ValueError, match=why):
        plan("steps", asked(CAUSAL, **change))


def test_it_claims_a_step_and_not_a_prompt():
    assert plan("auto", asked(CAUSAL)).kernel is KERNELS["steps"]
    assert plan("auto", asked(CAUSAL, Q=30)).kernel is not KERNELS["steps"]
    with pytest.raises(ValueError, match="kernel"):
        config.Attention(heads=2, kernel="steps")


@pytest.mark.parametrize("R, V", [(1, 1), (3, 15), (4, 16), (2, 1003)])
def test_rows_weigh_what_torch_says(R, V):
    library()
    logits = torch.randn(R, V) * 20
    logits[0, -1] = -torch.inf if V > 1 else 3.0

    assert torch.allclose(weighed(logits).double(), logits.double().logsumexp(-1, keepdim=True), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_what_cannot_be_weighed_is_not_finite(odd):
    library()
    logits = torch.randn(2, 40)
    logits[1, 7] = odd

    assert weighed(logits).isfinite().flatten().tolist() == [True, False]
    assert weighed(torch.full((1, 20), -torch.inf)).item() == -torch.inf


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 1, 1, 4, 0], [2, 0, 0, 0, 3]])
def test_beams_take_over_the_slots_of_those_they_grew_from(rows):
    library()
    table, rows, none = torch.randn(5, 3, 9, 4), torch.tensor(rows), torch.zeros(5, dtype=torch.long)
    right = table.clone()
    right[:, :, 2:7] = table[rows][:, :, 2:7]
    take_over(table, rows, 2, 7, none)

    assert torch.equal(table, right)
    take_over(table, rows, 7, 7, none)
    assert torch.equal(table, right)


def test_slots_that_are_alike_already_are_left_where_they_are():
    library()
    table, rows, alike = torch.randn(4, 3, 9, 4), torch.tensor([1, 0, 3, 2]), torch.tensor([0, 2, 5, 4])
    right = table.clone()
    for row, (other, start) in enumerate(zip(rows.tolist(), (alike + 2).tolist(), strict=True)):
        right[row, :, start:7] = table[other, :, start:7]
    take_over(table, rows, 2, 7, alike)

    assert torch.equal(table, right)


@pytest.mark.parametrize("V, count", [(1, 1), (7, 7), (255, 3), (256, 64), (1003, 8)])
def test_the_largest_of_a_row_are_in_order_and_of_equals_the_first(V, count):
    library()
    table = torch.randint(-40, 40, (5, V)).float().masked_fill(torch.rand(5, V) > 0.9, -torch.inf)
    best, places = ranked(table, count)
    right, order = table.sort(dim=1, descending=True, stable=True)

    assert torch.equal(best, right[:, :count]) and torch.equal(places, order[:, :count])


@pytest.mark.parametrize("table", [None, torch.rand(6, 1, 1, 9) > 0.4], ids=["free", "padded"])
def test_beams_of_a_text_read_one_source(table):
    q, k, v = torch.randn(6, 4, 1, 40), torch.randn(2, 2, 9, 40), torch.randn(2, 2, 9, 24)
    right = attended(q, k.repeat_interleave(3, 0), v.repeat_interleave(3, 0), table, 0.3)

    assert torch.equal(attended(q, k, v, table, 0.3), right)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("N, K", [(128, 32), (130, 31)])
def test_panels_do_not_ask_how_a_weight_lies(N, K, kind):
    weight = torch.randn(N, K)
    turned = weight.T.contiguous().T

    assert torch.equal(hold(turned, kind).kept, hold(weight, kind).kept)


def test_an_answer_may_be_written_over_the_one_before():
    x, weight = torch.randn(3, 20), torch.randn(70, 20)
    room = torch.full((3, 70), torch.nan)
    said = mapped(x, *kept(weight, "fp32"), None, room)

    assert said is room and torch.equal(said, mapped(x, *kept(weight, "fp32"), None))


def test_keys_and_values_may_lie_apart_in_memory():
    q, k, v = torch.randn(2, 4, 1, 8), *(torch.randn(2, 6, 4, 8).transpose(1, 2) for _ in range(2))

    assert torch.allclose(attended(q, k, v, None, 0.3), F.scaled_dot_product_attention(q, k, v, scale=0.3), atol=1e-6)


@pytest.mark.parametrize("width", [3, 16, 64, 80, 130])
def test_attention_over_few_and_far_scores_is_torchs_own(width):
    q, k, v = torch.randn(1, 2, 1, 5) * 9, torch.randn(1, 2, 37, 5) * 9, torch.randn(1, 2, 37, width)

    assert torch.allclose(attended(q, k, v, None, 1.0), F.scaled_dot_product_attention(q, k, v, scale=1.0), atol=1e-5)
