"""Filters leave what they promise, and what is drawn has the frequencies that are promised."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from regard import config as C
from regard.generation.logits_process import (
    NO_TOKEN,
    TokenHistory,
    apply_temperature,
    filter_min_p,
    filter_top_k,
    filter_top_p,
    filter_typical,
    frequency_penalty,
    presence_penalty,
    process_logits,
    process_logits_steps,
    repeated_ngrams,
    repetition_penalty,
    row_generators,
    sample_tokens,
    seen_tokens,
)
from regard.generation.sampler import Sampler

B, V = 3, 17
THROWS = 4000

# coarse numbers, so that many are equal: ties are where filters go wrong
scores = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=V)
parts = st.floats(0, 1)


def row(numbers: list[float]) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def kept(logits: Tensor) -> Tensor:
    return logits > -torch.inf


def greedy() -> C.SamplingParams:
    return C.SamplingParams(temperature=0.0)


# ---------------------------------------------------------------- greedy and temperature


@pytest.mark.spec("S104")
def test_greedy_is_the_likeliest_token():
    logits = torch.randn(B, V)

    assert sample_tokens(logits, greedy(), row_generators(0, B)).tolist() == logits.argmax(-1).tolist()


def test_among_equally_likely_tokens_greedy_takes_the_lowest_id():
    logits = torch.zeros(B, V).index_fill(1, torch.tensor([5, 11]), 2.0)

    assert sample_tokens(logits, greedy(), row_generators(0, B)).tolist() == [5] * B


@pytest.mark.spec("S105")
@pytest.mark.parametrize("warmth", [1e-3, 1e-30, 1e-300, 5e-324])
def test_a_temperature_near_zero_is_greedy(warmth):
    logits = torch.randn(B, V)

    assert (
        sample_tokens(logits, C.SamplingParams(temperature=warmth), row_generators(0, B)).tolist()
        == logits.argmax(-1).tolist()
    )


@pytest.mark.spec("S105")
@given(scores, st.floats(0.05, 20), st.floats(1.01, 3))
def test_entropy_rises_with_temperature(numbers, warmth, factor):
    def entropy(warmth: float) -> float:
        chances = apply_temperature(row(numbers), warmth).softmax(-1)
        return float(torch.special.entr(chances).sum())

    assert entropy(warmth) <= entropy(warmth * factor) + 1e-12
    chances = apply_temperature(row(numbers), warmth).softmax(-1)
    if (chances[chances < chances.max() * 0.999] > 1e-6).any():  # else all that is likely is equally so
        assert entropy(warmth) < entropy(warmth * factor)


def test_at_infinite_temperature_allowed_tokens_are_equally_likely_and_forbidden_ones_stay_forbidden():
    logits = row([3.0, -torch.inf, 1.0, -9.0])

    assert_close(apply_temperature(logits, math.inf).softmax(-1), row([1 / 3, 0, 1 / 3, 1 / 3]))


# ---------------------------------------------------------------- what each filter leaves


@pytest.mark.spec("S106")
@given(scores, st.integers(1, V + 5))
def test_top_k_leaves_the_k_likeliest_and_never_more(numbers, count):
    left = kept(filter_top_k(row(numbers), count))[0]
    best = sorted(range(len(numbers)), key=lambda id: (-numbers[id], id))[:count]  # lowest ids first among equals

    assert left.nonzero()[:, 0].tolist() == sorted(best)


@pytest.mark.spec("S107")
@given(scores, parts)
def test_top_p_leaves_the_smallest_set_with_enough_mass(numbers, mass):
    logits = row(numbers)
    left, chances = kept(filter_top_p(logits, mass))[0], logits.softmax(-1)[0]
    ranked = chances.sort(descending=True).values
    smaller = ranked[: int(left.sum()) - 1].sum()  # no set of one token fewer has more than this

    assert left.any()
    assert chances[left].sum() >= mass - 1e-12
    assert len(chances[left]) == 1 or smaller < mass + 1e-12
    assert chances[left].min() >= chances[~left].max() if (~left).any() else True


def test_top_p_counts_a_token_that_reaches_the_mass_exactly():
    logits = row([0.5, 0.25, 0.125, 0.125]).log()

    assert kept(filter_top_p(logits, 0.75))[0].tolist() == [True, True, False, False]


def test_top_p_takes_the_lowest_ids_among_equals():
    assert kept(filter_top_p(torch.zeros(1, 5), 0.5))[0].tolist() == [True, True, True, False, False]


@given(scores, parts)
def test_min_p_leaves_what_is_likely_enough_beside_the_likeliest(numbers, part):
    logits = row(numbers)
    chances, left = logits.softmax(-1)[0], kept(filter_min_p(logits, part))[0]
    ratio = chances / chances.max()

    assert left[ratio >= part + 1e-12].all()
    assert not left[ratio < part - 1e-12].any()
    assert left[chances == chances.max()].all()


@given(scores, st.integers(1, V), parts, parts, st.floats(0.1, 5))
def test_filters_together_always_leave_the_likeliest_token_and_sum_to_one(numbers, count, mass, part, warmth):
    c = C.SamplingParams(temperature=warmth, top_k=count, top_p=mass, min_p=part)
    left = process_logits(row(numbers), c)

    assert left[0, max(range(len(numbers)), key=lambda id: (numbers[id], -id))] > -torch.inf
    assert_close(left.softmax(-1).sum(-1), torch.ones(1, dtype=torch.float64))


def test_settings_that_ask_for_nothing_change_nothing():
    logits = torch.randn(B, V, dtype=torch.float64)
    c, there = C.SamplingParams(top_p=1.0, min_p=0.0, top_k=V), TokenHistory(seen=torch.ones(B, V).bool())

    assert torch.equal(process_logits(logits, c, there), logits)


def test_repetition_makes_what_was_said_less_likely_whatever_its_sign():
    logits, seen = row([2.0, -2.0, 0.5, -0.5]), torch.tensor([[True, True, False, False]])

    assert repetition_penalty(logits, 4.0, seen).tolist() == [[0.5, -8.0, 0.5, -0.5]]


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4))
def test_no_token_may_end_a_run_that_was_said_before(text, size):
    runs = {tuple(text[place : place + size]) for place in range(len(text) - size + 1)}
    last = tuple(text[len(text) - size + 1 :]) if len(text) >= size - 1 else None
    want = [last is not None and (*last, id) in runs for id in range(V)]

    assert repeated_ngrams(torch.tensor([text], dtype=torch.long), size, V)[0].tolist() == want
    padded = torch.tensor([[-1, -1, -1, -1, *text]])
    assert repeated_ngrams(padded, size, V)[0].tolist() == want
    assert seen_tokens(padded, V)[0].nonzero()[:, 0].tolist() == sorted(set(text))


def test_frequency_is_paid_each_time_and_presence_once():
    logits, counts = row([1.0, 1.0, 1.0]), torch.tensor([[0.0, 1.0, 3.0]])

    assert frequency_penalty(logits, 0.5, counts).tolist() == [[1.0, 0.5, -0.5]]
    assert presence_penalty(logits, 0.5, counts).tolist() == [[1.0, 0.5, 0.5]]
    assert frequency_penalty(logits, -0.5, counts).tolist() == [[1.0, 1.5, 2.5]]


@given(scores, st.floats(0.01, 0.99))
def test_typical_leaves_the_tokens_nearest_to_the_expected_surprise(numbers, mass):
    logits = row(numbers)
    left, logs = kept(filter_typical(logits, mass))[0], logits.log_softmax(-1)[0]
    far = (-logs - torch.special.entr(logs.exp()).sum()).abs()

    assert left.any() and logs.exp()[left].sum() >= mass - 1e-12
    assert far[left].max() <= far[~left].min() + 1e-12 if (~left).any() else True


def test_typical_may_leave_out_the_likeliest_token_and_greedy_choosing_does_not_ask_it():
    logits = torch.tensor([[0.4, *[0.6 / 16] * 16]], dtype=torch.float64).log()

    assert filter_typical(logits, 0.3)[0, 0] == -torch.inf
    assert sample_tokens(logits, C.SamplingParams(temperature=0.0, typical_p=0.3), row_generators(0, 1)).tolist() == [0]


def test_where_all_tokens_are_forbidden_nothing_is_chosen():
    logits, none = torch.randn(B, V), torch.tensor([[False], [True], [False]]).expand(B, V)

    for c in (greedy(), C.SamplingParams(), C.SamplingParams(top_k=3, top_p=0.9, typical_p=0.5, temperature=0.7)):
        ids = sample_tokens(
            logits, c, row_generators(0, B), TokenHistory(forbidden={"no_repeat_ngram_size": none})
        ).tolist()
        assert [id == NO_TOKEN for id in ids] == [False, True, False]


def test_filters_stand_in_the_order_of_the_page():
    every = C.SamplingParams(temperature=0.7, top_k=5, top_p=0.8, min_p=0.1, typical_p=0.9, repetition_penalty=1.3,
                             frequency_penalty=0.2, presence_penalty=0.1)  # fmt: skip
    there = TokenHistory(seen=torch.ones(B, V).bool(), counts=torch.ones(B, V), added=torch.zeros(V),
                         forbidden={"no_repeat_ngram_size": torch.zeros(B, V).bool()})  # fmt: skip
    names = [name for name, _ in process_logits_steps(torch.randn(B, V), every, there)]

    assert names == ["logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty",
                     "no_repeat_ngram_size", "temperature", "top_k", "top_p", "min_p", "typical_p"]  # fmt: skip


def test_a_row_without_finite_logits_is_told_apart():
    logits = torch.randn(4, V)
    logits[0, 3], logits[2], logits[3, 5] = torch.nan, -torch.inf, torch.inf

    for c in (greedy(), C.SamplingParams(), C.SamplingParams(top_k=3, top_p=0.9, min_p=0.1, temperature=0.7)):
        ids = sample_tokens(logits, c, row_generators(0, 4)).tolist()
        assert [id < 0 for id in ids] == [True, False, True, True]


# ---------------------------------------------------------------- the same as transformers

# Random numbers have no ties, so at the border both sides must agree.
THEIRS = {
    "temperature": (TemperatureLogitsWarper(0.7), C.SamplingParams(temperature=0.7)),
    "hot": (TemperatureLogitsWarper(3.1), C.SamplingParams(temperature=3.1)),
    "top-k": (TopKLogitsWarper(5), C.SamplingParams(top_k=5)),
    "top-k beyond": (TopKLogitsWarper(V + 3), C.SamplingParams(top_k=V + 3)),
    "top-p": (TopPLogitsWarper(0.8), C.SamplingParams(top_p=0.8)),
    "top-p tiny": (TopPLogitsWarper(1e-4), C.SamplingParams(top_p=1e-4)),
    "min-p": (MinPLogitsWarper(0.1), C.SamplingParams(min_p=0.1)),
    "repetition": (RepetitionPenaltyLogitsProcessor(1.7), C.SamplingParams(repetition_penalty=1.7)),
    "encouraged": (RepetitionPenaltyLogitsProcessor(0.6), C.SamplingParams(repetition_penalty=0.6)),
    "typical": (TypicalLogitsWarper(0.7), C.SamplingParams(typical_p=0.7)),
    "typical tiny": (TypicalLogitsWarper(1e-4), C.SamplingParams(typical_p=1e-4)),
    "no run of two": (NoRepeatNGramLogitsProcessor(2), C.SamplingParams(no_repeat_ngram_size=2)),
    "no run of one": (NoRepeatNGramLogitsProcessor(1), C.SamplingParams(no_repeat_ngram_size=1)),
    "bias": (SequenceBiasLogitsProcessor([[[3], 2.5], [[0], -7.0]]), C.SamplingParams(logit_bias={3: 2.5, 0: -7.0})),
}


def remembered(c: C.SamplingParams, ids: Tensor) -> TokenHistory:
    """What a chooser remembers of some texts."""
    return Sampler(c, ids.tolist(), torch.zeros(V, dtype=torch.bool), seed=0).memory()


@pytest.mark.parametrize("theirs, ours", THEIRS.values(), ids=THEIRS)
def test_each_filter_leaves_the_chances_that_transformers_leaves(theirs, ours):
    logits, ids = 3 * torch.randn(29, V, dtype=torch.float64), torch.randint(V, (29, 11))

    assert_close(process_logits(logits, ours, remembered(ours, ids)).softmax(-1), theirs(ids, logits).softmax(-1))


def test_all_filters_in_a_row_leave_the_chances_that_transformers_leaves():
    logits, ids = 3 * torch.randn(29, V, dtype=torch.float64), torch.randint(V, (29, 11))
    want = logits
    for one in ("bias", "repetition", "no run of two", "temperature", "top-k", "top-p", "min-p", "typical"):
        want = THEIRS[one][0](ids, want)
    ours = C.SamplingParams(repetition_penalty=1.7, temperature=0.7, top_k=5, top_p=0.8, min_p=0.1, typical_p=0.7,
                            no_repeat_ngram_size=2, logit_bias={3: 2.5, 0: -7.0})  # fmt: skip

    assert_close(process_logits(logits, ours, remembered(ours, ids)).softmax(-1), want.softmax(-1))


# ---------------------------------------------------------------- frequencies


def fit(drawn: Tensor, chances: Tensor) -> float:
    """Pearson's chi-square: how often numbers further off than these would be drawn, if the chances are right."""
    counts, expected = drawn.bincount(minlength=len(chances)).double(), len(drawn) * chances
    if counts[chances == 0].any():
        return 0.0
    there = chances > 0
    square = ((counts - expected)[there] ** 2 / expected[there]).sum()
    freedom = torch.tensor(float(there.sum()) - 1)
    return float(torch.special.gammaincc(freedom / 2, square / 2))


def renormalised(logits: Tensor, keep: list[int], warmth: float = 1.0) -> Tensor:
    """softmax(z/T) over some ids, by hand."""
    powers = [math.exp(z / warmth) if id in keep else 0.0 for id, z in enumerate(logits.tolist())]
    return torch.tensor(powers, dtype=torch.float64) / sum(powers)


LOGITS = torch.tensor([1.3, -0.4, 0.9, 0.0, 2.1, -1.7, 0.3, 1.1])
RANKED = [4, 0, 7, 2, 6, 3, 1, 5]  # by likelihood; chances .398 .179 .147 .120 .066 .049 .033 .009
DRAWN = {
    "plain": (C.SamplingParams(), RANKED, 1.0),
    "cold": (C.SamplingParams(temperature=0.6), RANKED, 0.6),
    "hot": (C.SamplingParams(temperature=1.9), RANKED, 1.9),
    "top-k": (C.SamplingParams(top_k=3), RANKED[:3], 1.0),
    "top-p": (C.SamplingParams(top_p=0.75), RANKED[:4], 1.0),
    "min-p": (C.SamplingParams(min_p=0.35), RANKED[:3], 1.0),
    "hot top-k": (C.SamplingParams(temperature=1.5, top_k=5), RANKED[:5], 1.5),
}


def drawn(c: C.SamplingParams, seed: int = 3) -> Tensor:
    dice = row_generators(seed, B)
    logits = LOGITS.expand(B, -1)
    return torch.stack([sample_tokens(logits, c, dice) for _ in range(THROWS // B)]).flatten()


@pytest.mark.spec("S105", "S106", "S107")
@pytest.mark.parametrize("c, keep, warmth", DRAWN.values(), ids=DRAWN)
def test_frequencies_match_the_renormalised_distribution(c, keep, warmth):
    assert fit(drawn(c), renormalised(LOGITS, keep, warmth)) > 0.01


WRONG = {
    "another temperature": (DRAWN["cold"][0], RANKED, 0.7),
    "no temperature": (DRAWN["hot"][0], RANKED, 1.0),
    "one token more": (DRAWN["top-k"][0], RANKED[:4], 1.0),
    "one token fewer": (DRAWN["top-p"][0], RANKED[:3], 1.0),
    "another token": (DRAWN["min-p"][0], [4, 0, 2], 1.0),
    "a temperature forgotten beside a filter": (DRAWN["hot top-k"][0], RANKED[:5], 1.0),
}


@pytest.mark.parametrize("c, keep, warmth", WRONG.values(), ids=WRONG)
def test_a_wrong_filter_would_be_noticed(c, keep, warmth):
    assert fit(drawn(c), renormalised(LOGITS, keep, warmth)) < 1e-4


def test_the_tail_of_chi_square_is_that_of_the_tables():
    """Five per cent of all squares are beyond 3.841, 9.488 and 18.307 with 1, 4 and 10 degrees of freedom."""
    freedom, square = torch.tensor([1.0, 4.0, 10.0]), torch.tensor([3.841, 9.488, 18.307])

    assert_close(torch.special.gammaincc(freedom / 2, square / 2), torch.full((3,), 0.05), atol=1e-4, rtol=0)


# ---------------------------------------------------------------- seeds and rows


def said(seed: int, rows: int, steps: int = 40) -> list[list[int]]:
    dice = row_generators(seed, rows)
    return torch.stack(
        [sample_tokens(torch.zeros(rows, V), C.SamplingParams(), dice) for _ in range(steps)], 1
    ).tolist()


def test_one_seed_is_one_text():
    assert said(5, B) == said(5, B)
    assert said(5, B) != said(6, B)


def test_a_row_draws_the_same_whoever_stands_beside_it():
    assert said(5, 1)[0] == said(5, B)[0]


def test_no_row_of_a_seed_repeats_a_row_of_another():
    every = [tuple(text) for seed in range(20) for text in said(seed, 20)]

    assert len(set(every)) == len(every)


def test_drawing_leaves_the_global_random_numbers_alone():
    before = torch.get_rng_state()
    said(5, B)

    assert torch.equal(torch.get_rng_state(), before)
