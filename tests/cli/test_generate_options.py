"""regard generate with filters, beams and explanations: what is typed reaches the model, and mistakes are told."""

import json

import pytest

from regard.inference.explain_generation import format_explanation
from regard.inference.load import load_model

SETTINGS = {"max_new_tokens": 9, "min_new_tokens": 2, "temperature": 0.9, "typical_p": 0.8, "frequency_penalty": 0.5,
            "presence_penalty": -0.2, "no_repeat_ngram_size": 2, "seed": 4}  # fmt: skip


def words(settings: dict) -> list:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]


def test_new_settings_reach_the_model(say, checkpoint):
    assert say("generate", checkpoint, "the", *words(SETTINGS)).out == load_model(checkpoint).generate(
        "the", **SETTINGS
    )


def test_a_bias_is_typed_by_id_or_by_text(say, checkpoint):
    model = load_model(checkpoint)
    [id] = model.tokenizer.encode("t")
    want = model.generate("the", max_new_tokens=7, seed=3, logit_bias={id: 9.0})
    by_id = say("generate", checkpoint, "the", "--max-new-tokens", 7, "--seed", 3, "--logit-bias", f"{id}=9")

    assert by_id.out == want and want.count("t") > 3
    assert say("generate", checkpoint, "the", "--max-new-tokens", 7, "--seed", 3, "--logit-bias", "t=9").out == want
    assert (
        "t" not in say("generate", checkpoint, "the", "--max-new-tokens", 7, "--seed", 3, "--logit-bias", "t=-inf").out
    )


def test_beams_find_what_the_model_finds(say, checkpoint):
    made = load_model(checkpoint).complete(
        "the", max_new_tokens=6, num_beams=3, num_return_sequences=2, length_penalty=0.5
    )
    typed = ["generate", checkpoint, "the", "--max-new-tokens", 6, "--num-beams", 3, "--num-return-sequences", 2,
             "--length-penalty", 0.5]  # fmt: skip
    shown = json.loads(say(*typed, "--json").out)

    assert say(*typed).out == "\n---\n".join([made.text, made.others[0].text])
    assert [one["score"] for one in shown["texts"]] == [made.score, made.others[0].score]
    assert load_model(checkpoint).complete("the", **shown["search"]).text == made.text


@pytest.mark.parametrize("how", [["--top-k", 3, "--seed", 1], ["--num-beams", 3]], ids=["drawn", "searched"])
def test_an_explanation_is_of_the_text_that_is_made_without_one(say, checkpoint, how):
    typed = ["generate", checkpoint, "the", "--max-new-tokens", 5, *how]
    settings = {"max_new_tokens": 5} | ({"num_beams": 3} if "--num-beams" in how else {"top_k": 3, "seed": 1})
    plain, shown = say(*typed).out, say(*typed, "--explain")
    parts = json.loads(say(*typed, "--explain", "--json").out)

    assert parts["made"]["text"] == plain and shown.code == 0
    if "--num-beams" in how:  # no time is told, so the same is written again
        assert shown.out == format_explanation(load_model(checkpoint).explain_generation("the", **settings)) + "\n"
    assert len(parts["steps" if "--num-beams" in how else "choices"]) == 5


WRONG = {
    "a negative penalty on nothing": (["--no-repeat-ngram-size", 0], "--no-repeat-ngram-size: 0 is less than 1"),
    "no number": (["--temperature", "nan"], "--temperature: expected a number, got nan"),
    "an endless price": (["--frequency-penalty", "inf"], "--frequency-penalty: inf is not a finite number"),
    "a mass of two": (["--typical-p", 2], "--typical-p: 2.0 is not between 0 and 1"),
    "a bias of nothing": (
        ["--logit-bias", "17"],
        "--logit-bias: '17' is not a token and a number, as in 17=-100 or ' the'=-5",
    ),
    "best alone": (
        ["--num-return-sequences", 2],
        "--num-return-sequences: a setting of beam search; set num_beams as well, as in num_beams=4",
    ),
    "beams that draw": (["--num-beams", 2, "--top-k", 3], "--top-k: beam search does not sample"),
    "beams many times": (["--num-beams", 2, "--count", 3], "--num-beams: a search finds the same texts each time"),
    "several explained": (["--explain", "--count", 3], "--explain: one text at a time is explained"),
    "a form twice": (
        ["--regex", "a", "--json-schema", "{}"],
        "--json-schema: there is a regex as well; keep one of the two",
    ),
}


@pytest.mark.parametrize("typed, sentence", WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_sentence_and_names_what_was_typed(say, checkpoint, typed, sentence):
    made = say("generate", checkpoint, "the", *typed)

    assert made.code == 2 and made.out == ""
    assert made.err.startswith(f"regard: {sentence}") and made.err.count("\n") == 1


def test_a_bias_on_a_text_of_several_tokens_is_refused(say, checkpoint):
    made = say("generate", checkpoint, "the", "--logit-bias", "cat=3")

    assert made.code == 2 and "logit_bias: 'cat' is 3 tokens, c a t; give one token" in made.err
