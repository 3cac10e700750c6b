"""An explanation is of the text that is made without it, its numbers add up, and the spoiler spoils only the greedy."""

import dataclasses
import json
import math

import pytest
import torch
from generation.builders import POSITIONS, V, model

from regard import config as C
from regard import text
from regard.generation.logits_process import row_generators, sample_tokens
from regard.inference.explain_generation import BeamExplanation, SampledExplanation, format_explanation
from regard.inference.model import Model
from regard.studies.demo import WORD_GROUPS, WORD_PROBABILITIES, example_logits, group_shares

LETTERS = "abcdefghijklmnop .,"
HOW = {
    "greedy": dict(temperature=0),
    "plain": dict(seed=3),
    "cut": dict(temperature=0.7, top_k=7, top_p=0.8, min_p=0.02, seed=3),
    "dear": dict(
        repetition_penalty=1.4,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        no_repeat_ngram_size=1,
        logit_bias={"a": 3.0, "b": -math.inf},
        seed=3,
    ),
    "typical_p": dict(typical_p=0.4, seed=3),
}
EVERY = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


@pytest.fixture
def one() -> Model:
    made = model(POSITIONS["rotary"])
    made.tokenizer = text.train_tokenizer(C.CharTokenizer(byte_fallback=False), [LETTERS * 3])
    assert len(made.tokenizer) <= V
    return made


@EVERY
def test_the_text_is_the_one_that_is_made_without_an_explanation(one, how):
    made = one.explain_generation("abc", max_new_tokens=6, **how)

    assert isinstance(made, SampledExplanation) and made.made.text == one.generate("abc", max_new_tokens=6, **how)
    assert [choice.chosen.id for choice in made.choices] == list(made.made.ids)


@EVERY
def test_what_is_kept_and_what_is_removed_is_all_there_was(one, how):
    made = one.explain_generation("abc", max_new_tokens=6, **how)
    with torch.no_grad():  # the first step's chances by the model itself, without a cache
        first = one(torch.tensor([one.tokenizer.encode("abc")]))[0, -1].softmax(-1)
    choice = made.choices[0]

    for candidate in choice.candidates:
        assert candidate.before == pytest.approx(float(first[candidate.id]))
        assert candidate.token == one.tokenizer.token_text(candidate.id)
    assert choice.kept + sum(cut.removed for cut in choice.cuts) == V
    assert 0 < choice.mass <= 1 + 1e-9 and choice.chosen.after > 0
    if not any(cut.removed for cut in choice.cuts):
        assert choice.mass == pytest.approx(1)


def test_each_filter_is_named_in_turn_with_what_it_removed(one):
    made = one.explain_generation(
        "abc", max_new_tokens=3, temperature=0.5, top_k=4, logit_bias={"b": -math.inf}, seed=1
    )
    names = [cut.name for cut in made.choices[0].cuts if cut.name != "never"]
    bias, _, top_k = made.choices[0].cuts[-3:]

    assert names == ["logit_bias", "temperature", "top_k"]
    assert (bias.removed, bias.tokens) == (1, ("b",)) and top_k.removed == V - 1 - 4 - never(made)
    assert made.choices[0].kept == 4


def never(made: SampledExplanation) -> int:
    return sum(cut.removed for cut in made.choices[0].cuts if cut.name == "never")


def test_where_nothing_is_left_to_say_the_last_choice_is_none(one):
    known = len(one.tokenizer)
    made = one.explain_generation("abc", max_new_tokens=40, no_repeat_ngram_size=1, seed=1)

    assert len(made.choices) == known - 3 + 1 and made.choices[-1].chosen is None and made.choices[-1].kept == 0
    assert made.made.reason == "eos" and "nothing may be said" in format_explanation(made)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_tree_holds_every_text_that_was_found_and_its_probability(one, beams):
    made = one.explain_generation("abc", max_new_tokens=5, num_beams=beams, num_return_sequences=beams)
    assert isinstance(made, BeamExplanation)
    for found in (made.made, *made.made.others):
        [end] = [place for place, last in enumerate(made.steps[-1]) if last.fate == "ended" and last.score ==
                 pytest.approx(found.score)]  # fmt: skip
        ids, place = [], end
        for step in reversed(made.steps):
            ids.insert(0, step[place].id)
            place = step[place].parent
        assert tuple(ids) == found.ids and place is None
    with torch.no_grad():
        logs = one(torch.tensor([[*one.tokenizer.encode("abc"), *made.made.ids]])).log_softmax(-1)[0, 2:-1]
    best = float(logs.gather(1, torch.tensor(made.made.ids)[:, None]).sum())

    assert made.made.text == one.generate("abc", max_new_tokens=5, num_beams=beams)
    assert max(last.log_p for last in made.steps[-1] if last.fate == "ended") == pytest.approx(best)


def test_as_many_live_as_there_are_beams_and_only_they_have_children(one):
    made = one.explain_generation("abc", max_new_tokens=5, num_beams=3)
    for step, after in zip(made.steps, made.steps[1:], strict=False):
        assert sum(each.fate == "lives" for each in step) == 3
        assert {each.parent for each in after} <= {place for place, each in enumerate(step) if each.fate == "lives"}


def test_a_tree_is_drawn_with_the_best_text_marked_once(one):
    made = one.explain_generation("abc", max_new_tokens=4, num_beams=3)
    drawing = format_explanation(made)

    assert drawing.startswith("'abc'\n") and drawing.count("◄ best") == 1
    lived = sum(each.fate != "died" for step in made.steps for each in step)
    assert sum("†" not in line for line in drawing.splitlines()) == 1 + lived


@pytest.mark.parametrize("how", [dict(top_k=3, seed=1), dict(num_beams=2)], ids=["drawn", "searched"])
def test_an_explanation_is_plain_data(one, how):
    made = dataclasses.asdict(one.explain_generation("abc", max_new_tokens=4, **how))

    assert json.loads(json.dumps(made))["made"]["text"] == one.generate("abc", max_new_tokens=4, **how)


def test_guesses_ahead_have_no_explanation(one):
    with pytest.raises(C.ConfigError, match="^prompt_lookup: speculative decoding changes the speed"):
        one.explain_generation("abc", max_new_tokens=4, prompt_lookup=2)


# ---------------------------------------------------------------- the spoiler effect


@pytest.mark.spec("S109")
def test_the_likeliest_word_speaks_for_the_minority_and_the_few_likeliest_for_the_majority():
    assert sum(WORD_PROBABILITIES.values()) == pytest.approx(1) and sum(WORD_GROUPS["bad"].values()) < 0.5 < sum(
        WORD_GROUPS["good"].values()
    )
    [greedy] = sample_tokens(example_logits(), C.SamplingParams(temperature=0.0), row_generators(0, 1)).tolist()

    assert list(WORD_PROBABILITIES)[greedy] in WORD_GROUPS["bad"]
    assert group_shares(temperature=0) == {"bad": 1.0, "good": 0.0}
    for k in range(3, len(WORD_PROBABILITIES) + 1):
        assert group_shares(top_k=k)["good"] > 0.5


@pytest.mark.spec("S109")
def test_words_drawn_among_the_five_likeliest_are_mostly_good():
    dice, c, words = row_generators(4, 400), C.SamplingParams(top_k=5), list(WORD_PROBABILITIES)
    said = [words[id] for id in sample_tokens(example_logits().expand(400, -1), c, dice).tolist()]
    good = sum(word in WORD_GROUPS["good"] for word in said) / len(said)

    assert good == pytest.approx(group_shares(top_k=5)["good"], abs=0.07)
