"""Products in C equal torch's own, whatever the sizes; and a row's bits do not depend on who asks beside it."""

import pytest
import torch
import torch.nn.functional as F

from regard import config
from regard.core.kernels import KERNELS, Ask, How, plan
from regard.core.masks import CAUSAL, EVERYTHING, PADDING
from regard.core.tokens import Places
from regard.native.held import hold, rounded
from regard.native.products import FEW, attended, few, mapped

SIZES = [(1, 1, 1), (1, 7, 15), (2, 33, 16), (3, 5, 129), (5, 130, 257), (16, 9, 1000), (4, 3, 3072)]
KINDS = ["fp32", "bf16", "int8"]


def kept(weight, kind):
    held = hold(weight, kind)
    return held.kept, held.scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("B, N, K", SIZES)
def test_a_map_is_torchs_own(B, N, K, kind):
    torch.manual_seed(B + N + K)
    x, weight, bias = torch.randn(B, K), torch.randn(N, K), torch.randn(N)
    numbers, scale = kept(weight, kind)
    meant = numbers.double() if scale is None else numbers.double() * scale[:, None].double()

    for given in (bias, None):
        said = mapped(x, numbers, scale, given)
        right = F.linear(x.double(), meant, None if given is None else given.double())
        assert torch.allclose(said.double(), right, rtol=1e-5, atol=1e-5 * K**0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_alone_and_beside_any_others(kind):
    x, weight = torch.randn(FEW, 333), torch.randn(70, 333)
    numbers, scale = kept(weight, kind)
    together = mapped(x, numbers, scale, None)
    alone = torch.cat([mapped(row[None], numbers, scale, None) for row in x])
    shuffled = mapped(x.flip(0), numbers, scale, None).flip(0)

    assert torch.equal(together, alone) and torch.equal(together, shuffled)


def test_threads_change_no_bits():
    x, weight = torch.randn(3, 200), torch.randn(501, 200)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(mapped(x, weight, None, None))
    finally:
        torch.set_num_threads(before)

    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_rows_may_lie_apart_in_memory():
    x, weight = torch.randn(5, 2, 64).transpose(0, 1), torch.randn(9, 64)

    assert torch.allclose(mapped(x, weight, None, None), F.linear(x, weight), atol=1e-5)


def test_few_rows_in_fp32_without_gradients_are_for_c():
    assert few(torch.randn(FEW, 8)) and not few(torch.randn(FEW + 1, 8)) and not few(torch.randn(2, 8).double())
    assert not few(torch.randn(2, 8, requires_grad=True)) and not few(torch.randn(0, 8))
    with torch.no_grad():
        assert few(torch.randn(2, 8, requires_grad=True))


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
