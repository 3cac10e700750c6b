"""Soft and hard lookup, and the pictures that the lecture draws of them."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention.additive import additive_score, hard_lookup, soft_lookup
from regard.core.kernels import AttentionArgs, AttentionSpec, make_plan
from regard.core.masks import FULL
from regard.core.tokens import sequence_tokens

B, Q, K, D, E = 2, 5, 7, 3, 4


def dictionary(queries=Q):
    return (torch.randn(size, dtype=torch.float64) for size in ((queries, D), (K, D), (K, E)))


def test_a_soft_lookup_is_what_the_reference_kernel_does():
    q, k, v = dictionary()
    ask = AttentionSpec(mask=FULL, q=sequence_tokens(q[None]), k=sequence_tokens(k[None]))

    soft, _ = soft_lookup(q, k, v, temperature=D**0.5)

    assert_close(
        soft, make_plan("reference", ask).run(*(x[None, None] for x in (q, k, v)), AttentionArgs(D**-0.5))[0, 0]
    )


def test_the_weights_of_a_soft_lookup_are_shares():
    _, weights = soft_lookup(*dictionary())

    assert weights.shape == (Q, K) and (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones(Q, dtype=torch.float64))


def test_a_hard_lookup_returns_one_of_the_values_unchanged():
    q, k, v = dictionary()

    for query, found in zip(q, hard_lookup(q, k, v), strict=True):
        assert any(found.equal(value) for value in v)
        assert found.equal(hard_lookup(query, k, v))


@pytest.mark.spec("S013")
@pytest.mark.parametrize("temperature", [1, 0.1, 0.01])
def test_soft_differs_from_hard_by_no_more_than_the_bound(example, temperature):
    q, k, v = dictionary(queries=100)

    rows = [example.cool(query, k, v, [temperature])[0] for query in q]

    rounding = 4 * torch.finfo(v.dtype).eps * v.abs().max()  # the bound falls below what float64 can tell apart
    assert all(row.difference <= row.bound + rounding for row in rows)


@pytest.mark.spec("S013")
def test_a_cold_soft_lookup_is_the_hard_one():
    q, k, v = dictionary()

    assert_close(soft_lookup(q, k, v, temperature=1e-6)[0], hard_lookup(q, k, v))


@pytest.mark.parametrize("temperature", [0, -1.0])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature):
    with pytest.raises(ValueError, match="not above 0; the limit at 0 is hard_lookup"):
        soft_lookup(*dictionary(), temperature=temperature)


@pytest.mark.spec("S009")
def test_the_additive_score_takes_queries_and_keys_of_different_widths_and_has_the_right_gradient():
    sizes = ((B, Q, 24), (B, K, 16), (11, 24), (11, 16), (11,))
    parts = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]

    assert additive_score(*parts).shape == (B, Q, K)
    assert torch.autograd.gradcheck(additive_score, parts)


@pytest.mark.spec("S009")
def test_the_additive_score_is_its_formula_for_each_query_and_key():
    sizes = ((Q, 24), (K, 16), (11, 24), (11, 16), (11,))
    q, k, w_q, w_k, w_v = (torch.randn(size, dtype=torch.float64) for size in sizes)

    one_by_one = [[w_v @ torch.tanh(w_q @ asks + w_k @ offers) for offers in k] for asks in q]

    assert_close(additive_score(q, k, w_q, w_k, w_v), torch.tensor(one_by_one, dtype=torch.float64))


@pytest.mark.spec("S019")
def test_the_scores_of_students_become_shares(example):
    weights = example.shares(example.STUDENT_SCORES)

    assert [round(weight, 2) for weight in weights.tolist()] == [0.42, 0.04, 0.13, 0.40]
    assert_close(weights, example.STUDENT_SCORES / 2.25)


@pytest.mark.spec("S019")
def test_the_slides_scores_are_no_shares_and_ours_are(example):
    for scores, total in [(example.BOOK_SCORES, 1.5), (example.STUDENT_SCORES, 2.25)]:
        assert scores.sum().item() == pytest.approx(total)
        assert example.shares(scores).sum().item() == pytest.approx(1)


@pytest.mark.spec("S019")
def test_the_search_engine_finds_the_restaurant_and_colder_still_more_so(example):
    warm, cold = example.search()[1], example.search(0.25)[1]

    assert example.PLACES[warm.argmax()] == "Pizzeria"
    assert cold.max() > warm.max()


@pytest.mark.spec("S178")
def test_what_a_page_says_changes_what_is_read_and_not_what_is_found(example):
    query, book = torch.tensor([0.0, 1, 1], dtype=torch.float64), example.COOKBOOK.clone()
    read, weights = example.consult(query)

    book[:, 3:] *= 2
    more, same = example.consult(query, book=book)

    assert_close(same, weights)
    assert_close(more, 2 * read)


@pytest.mark.spec("S178")
def test_with_values_made_like_keys_only_headings_come_back(example):
    query, blank = torch.tensor([0.0, 1, 1], dtype=torch.float64), example.COOKBOOK.clone()
    blank[:, 3:] = 0
    read, empty = (example.consult(query, w_value=example.W_KEY, book=book)[0] for book in (example.COOKBOOK, blank))

    assert_close(read, empty)


@pytest.mark.slow
@pytest.mark.spec("S019")
def test_the_script_shows_every_demo_and_the_bound_beside_the_difference(printed):
    text = printed()

    assert all(demo in text for demo in ("A library", "A table", "A search engine", "From soft to hard", "An index"))
    assert all(erratum in text for erratum in ("E16", "E28"))
    for name, weight in [("Alice", "0.42"), ("Bob", "0.04"), ("Carol", "0.13"), ("Dave", "0.40")]:
        assert next(line for line in text.splitlines() if name in line).endswith(weight)
