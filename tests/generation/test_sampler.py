"""A chooser remembers what it must, forbids what it should, and branches with its memory and its random numbers."""

import math

import pytest
import torch
from generation.builders import V, model, prompts, session, written
from torch import Tensor

from regard import config as C
from regard import text
from regard.generation.limits import GenerationLimits
from regard.generation.params import sampling_params
from regard.generation.sampler import Sampler

NONE = torch.zeros(V, dtype=torch.bool)
WRONG = {
    "max_new_tokens": -1, "min_new_tokens": -1, "temperature": math.nan, "top_k": 0, "top_p": math.nan, "min_p": -0.1,
    "typical_p": 0.0, "repetition_penalty": math.inf, "frequency_penalty": math.nan, "presence_penalty": -math.inf,
    "no_repeat_ngram_size": 0, "logit_bias": {3: math.nan}, "seed": -1, "stop": ("",),
}  # fmt: skip


class Only:
    """A rule: these ids, one after the other, then the end."""

    def __init__(self, ids: list[int], end: int | None = None) -> None:
        self.ids, self.end, self.heard = ids, end, list[int]()

    def allowed_tokens(self) -> Tensor:
        left = self.ids[len(self.heard) :]
        may = left[:1] or ([] if self.end is None else [self.end])
        return torch.isin(torch.arange(V), torch.tensor(may, dtype=torch.long))

    def advance(self, id: int) -> None:
        self.heard.append(id)

    def copy(self) -> "Only":
        other = Only(self.ids, self.end)
        other.heard = list(self.heard)
        return other


def ruled(rules: list, **settings) -> list[list[int]]:
    from regard.generation.session import DecodeSession

    limits = GenerationLimits(ends=settings.pop("ends", frozenset()))
    one = DecodeSession(model(), prompts(*[4] * len(rules)), C.SamplingParams(**settings), limits, rules=rules)
    rows: list[list[int]] = [[] for _ in rules]
    for ids in one:
        for row, id in zip(rows, ids, strict=True):
            row += [] if id is None else [id]
    return rows


@pytest.mark.parametrize("warmth", [0.0, 1.3])
def test_a_rule_is_kept_by_its_row_alone(warmth):
    free, bound = ruled(
        [None, Only([5, 3, 5, 9], 2)], max_new_tokens=9, temperature=warmth, seed=1, ends=frozenset({2})
    )

    assert bound == [5, 3, 5, 9, 2] and len(free) <= 9


def test_a_row_that_may_say_nothing_more_has_ended_without_an_end_token():
    assert ruled([Only([5, 3])], max_new_tokens=9) == [[5, 3]]


@pytest.mark.parametrize("warmth", [0.0, 1.3])
def test_no_token_comes_twice_and_when_all_are_said_the_text_is_over(warmth):
    texts = prompts(2)
    (said,) = written(model(), texts, max_new_tokens=99, no_repeat_ngram_size=1, temperature=warmth, seed=1)

    assert sorted({*said, *texts[0]}) == list(range(V)) and len(said) == V - len(set(texts[0]))


@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_that_may_say_nothing_more_has_found_what_it_has(beams):
    one, texts = model(), prompts(2, 5)
    for text_, found in zip(
        texts,
        one.beam_search(texts, max_new_tokens=99, num_beams=beams, num_return_sequences=beams, no_repeat_ngram_size=1),
        strict=True,
    ):
        assert len(found) == beams
        assert all(sorted({*text_, *each.ids}) == list(range(V)) for each in found)
        assert all(len(each.ids) == V - len(set(text_)) for each in found)


@pytest.mark.parametrize("size", [2, 3])
def test_no_run_comes_twice(size):
    texts = prompts(5, 9)
    for text_, said in zip(texts, written(model(), texts, max_new_tokens=80, no_repeat_ngram_size=size), strict=True):
        whole = [*text_, *said]
        runs = [tuple(whole[place : place + size]) for place in range(len(whole) - size + 1)]
        assert len(set(runs[len(text_) - size + 1 :])) == len(runs) - (len(text_) - size + 1)


def test_frequency_and_presence_are_paid_for_what_was_said_and_not_for_the_prompt():
    chooser = Sampler(C.SamplingParams(frequency_penalty=0.5, presence_penalty=0.25), [[3, 3], [4]], NONE, seed=0)
    assert torch.equal(chooser.filtered_logits(torch.zeros(2, V)), torch.zeros(2, V, dtype=torch.float64))
    for ids in ([5, 6], [5, None], [7, None]):
        chooser.update(ids)
    left = chooser.filtered_logits(torch.zeros(2, V))

    assert left[0, [3, 5, 6, 7]].tolist() == [0, -1.25, 0, -0.75]
    assert left[1, [4, 5, 6]].tolist() == [0, 0, -0.75]


def test_a_high_price_on_frequency_makes_a_text_more_varied():
    texts = prompts(5, 9)
    plain, dear = (written(model(), texts, max_new_tokens=40, frequency_penalty=price) for price in (0.0, 5.0))

    assert sum(len(set(row)) for row in dear) > sum(len(set(row)) for row in plain)


def test_an_end_waits_for_the_shortest_text():
    free = written(model(), prompts(5), max_new_tokens=30)[0]
    end = free[2]
    one, texts = model(), prompts(5)
    soon = written(one, texts, max_new_tokens=30, ends=frozenset(range(V)))[0]
    late = written(one, texts, max_new_tokens=30, ends=frozenset({end, *range(V // 2)}), min_new_tokens=12)[0]

    assert len(soon) == 1 and len(late) > 12


def test_a_bias_moves_one_token_and_minus_infinity_forbids_it():
    one, texts = model(), prompts(5)
    free = written(one, texts, max_new_tokens=20)[0]

    assert free[0] not in written(one, texts, max_new_tokens=20, logit_bias={free[0]: -math.inf})[0]
    assert set(written(one, texts, max_new_tokens=20, logit_bias={7: 1e6})[0]) == {7}


def test_ids_that_may_not_begin_come_later():
    chooser = Sampler(C.SamplingParams(temperature=0.0), [[1]], NONE, seed=0, begin=frozenset({4}))
    logits = torch.zeros(1, V).index_fill(1, torch.tensor([4]), 3.0)
    first = int(chooser.choose(logits))
    chooser.update([first])

    assert first != 4 and int(chooser.choose(logits)) == 4


def test_plain_choosing_is_greedy_with_nothing_to_remember():
    greedy = dict(temperature=0.0)

    assert Sampler(C.SamplingParams(**greedy), [[1]], NONE, seed=0).is_greedy
    assert Sampler(C.SamplingParams(**greedy, top_k=3, typical_p=0.5), [[1]], NONE, seed=0).is_greedy
    for other in (
        dict(no_repeat_ngram_size=2),
        dict(repetition_penalty=1.1),
        dict(presence_penalty=0.1),
        dict(logit_bias={1: 1.0}),
    ):
        assert not Sampler(C.SamplingParams(**greedy, **other), [[1]], NONE, seed=0).is_greedy
    assert not Sampler(C.SamplingParams(**greedy), [[1]], NONE, seed=0, rules=[Only([1])]).is_greedy


def test_plain_choosing_is_choosing():
    logits, barred = torch.randn(5, V), torch.arange(V) % 3 == 0
    logits[2, 4] = torch.nan
    plain = Sampler(C.SamplingParams(temperature=0.0), [[1]] * 5, barred, seed=0)
    other = Sampler(C.SamplingParams(temperature=0.0, no_repeat_ngram_size=9), [[1]] * 5, barred, seed=0)

    assert plain.choose(logits).tolist() == other.choose(logits).tolist()
    assert plain.choose(logits)[2] == -1


def test_a_branch_remembers_and_neither_hears_the_other():
    c = C.SamplingParams(frequency_penalty=1.0, repetition_penalty=1.2, no_repeat_ngram_size=2)
    one = Sampler(c, [[1, 2], [3]], NONE, seed=4, rules=[None, Only([5, 6, 7])])
    one.update([4, 5])
    other = one.copy()
    logits = torch.randn(2, V, dtype=torch.float64)

    assert torch.equal(one.filtered_logits(logits), other.filtered_logits(logits))
    assert [one.choose(logits).tolist() for _ in range(9)] == [other.choose(logits).tolist() for _ in range(9)]
    one.update([9, 6])
    assert not torch.equal(one.filtered_logits(logits), other.filtered_logits(logits))


@pytest.mark.parametrize("name, value", WRONG.items(), ids=WRONG)
def test_a_setting_that_means_nothing_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=rf"^({name}|bias): "):
        C.SamplingParams(**{name: value})
    with pytest.raises(C.ConfigError, match=rf"^{name}"):
        sampling_params({name: value})


def test_a_bias_is_given_in_many_ways_and_means_the_same():
    spoken = text.train_tokenizer(C.CharTokenizer(), ["abc"])
    [id] = spoken.encode("b")
    want = (C.LogitBias(token_id=id, bias=-2.0),)

    for bias in ({id: -2}, {"b": -2.0}, [f"{id}=-2"], ["b=-2"], want, [{"token_id": id, "bias": -2}]):
        assert sampling_params({"logit_bias": bias}, spoken).logit_bias == want


ODD = {
    "twice": ([{"token_id": 3, "bias": 1}, {"token_id": 3, "bias": 2}], "^logit_bias: token 3 is given twice"),
    "no number": (["3=x"], "^logit_bias: '3=x' is not a token and a number"),
    "text without a tokenizer": ({"b": 1}, "^logit_bias: 'b' is a text, and this model has no tokenizer"),
    "an id below zero": ({-1: 2}, r"^logit_bias\[0\].token_id: -1 is less than 0"),
}


@pytest.mark.parametrize("bias, message", ODD.values(), ids=ODD)
def test_a_bias_that_means_nothing_is_told_in_a_sentence(bias, message):
    with pytest.raises(C.ConfigError, match=message):
        sampling_params({"logit_bias": bias})


def test_a_bias_beyond_the_vocabulary_is_refused():
    with pytest.raises(C.ConfigError, match=f"^logit_bias: token {V} is outside the model's vocabulary of {V}"):
        session(model(), prompts(3), logit_bias={V: 1.0})


def test_a_model_that_may_say_nothing_is_refused():
    with pytest.raises(C.ConfigError, match="^every token is forbidden"):
        session(model(), prompts(3), known=0)
