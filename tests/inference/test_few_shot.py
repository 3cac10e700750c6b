"""Few-shot prompts: what is rendered can be read back, nothing is cut in half, and a small model learns from them."""

import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as some

from regard import config as C
from regard import text
from regard.data.records import Record
from regard.inference.few_shot import FewShotPrompt, PromptTemplate, build_prompt, choose_examples, fits_context
from regard.inference.likelihood import rank_labels
from regard.inference.model import Model
from regard.studies import in_context

MOODS = PromptTemplate("Review: {text}\nMood: {label}")
EXAMPLES = [{"text": f"text {number}", "label": "good" if number % 2 else "bad"} for number in range(7)]
QUESTION = {"text": "the last one"}


@pytest.mark.spec("S111")
def test_a_prompt_is_examples_and_a_question_without_its_answer():
    made = build_prompt(MOODS, EXAMPLES[:2], QUESTION, intro="What do they think?")

    assert made == FewShotPrompt(text="What do they think?\n\nReview: text 0\nMood: bad\n\nReview: text 1\nMood: "
                                      "good\n\n"
                               "Review: the last one\nMood: ", examples=2)  # fmt: skip


words = some.text(some.characters(blacklist_categories=["Cs"]), max_size=9)


@settings(deadline=None, max_examples=300)
@example(
    [{"text": "-", "label": ""}, {"text": "", "label": ""}], ("{label}|{text}", "---")
)  # the separator begins in a text
@given(some.lists(some.fixed_dictionaries({"text": words, "label": words}), min_size=1, max_size=3),
       some.sampled_from([("{text}={label}", ";"), ("Q: {text}\nA: {label}.", "\n\n"), ("{{{text}}} -> {label}", "\n"),
                          ("{label}|{text}", "---")]))  # fmt: skip
def test_what_is_rendered_is_parsed_back_or_refused(examples, form):
    template = PromptTemplate(*form)
    try:
        text_ = template.separator.join(template.render(each) for each in examples)
    except C.DataError:
        marks = {template.separator[0], *"".join(literal for literal, _ in template.parts)}
        assert any(marks & set(value) for each in examples for value in each.values()), "nothing could be mistaken"
    else:
        assert template.parse(text_) == examples


@given(some.integers(0, 7), some.integers(0, 99))
def test_the_same_seed_chooses_the_same_examples_and_none_twice(shots, seed):
    picked = choose_examples(EXAMPLES, shots, seed)

    assert picked == choose_examples(EXAMPLES, shots, seed) and len(picked) == shots
    assert all(each in EXAMPLES for each in picked) and len({each["text"] for each in picked}) == shots
    assert choose_examples(EXAMPLES, shots, seed, "given") == [each for each in EXAMPLES if each in picked]
    assert choose_examples(EXAMPLES, shots) == EXAMPLES[:shots]


@pytest.mark.parametrize("most", [34, 60, 120, 10_000])
def test_what_does_not_fit_loses_its_first_examples_whole(most):
    whole = build_prompt(MOODS, EXAMPLES, QUESTION).text
    if len(whole) <= most:
        made = build_prompt(MOODS, EXAMPLES, QUESTION, fits=lambda text_: len(text_) <= most)
    else:
        with pytest.warns(UserWarning, match="the first . of 7 are left out"):
            made = build_prompt(MOODS, EXAMPLES, QUESTION, fits=lambda text_: len(text_) <= most)

    kept = MOODS.parse(made.text)
    assert len(made.text) <= most and made.examples + made.dropped == 7
    assert kept == [*EXAMPLES[made.dropped :], QUESTION | {"label": ""}]
    if made.dropped:
        assert len(build_prompt(MOODS, EXAMPLES[made.dropped - 1 :], QUESTION).text) > most, (
            "one more would have fitted"
        )


def test_a_model_has_room_for_the_prompt_and_its_answer():
    words_ = text.train_tokenizer(C.CharTokenizer(), ["Review: text 0123456789\nMood: goodba the last one"])
    one = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(words_)), trunk=C.Trunk(dim=8, depth=1, mask="causal",
                                    attention=C.Attention(heads=1))))  # fmt: skip
    one.tokenizer, one.context = words_, 90

    with pytest.warns(UserWarning):
        made = build_prompt(MOODS, EXAMPLES, QUESTION, fits=fits_context(one, 4))

    assert (
        len(words_.encode(made.text)) + 4 <= 90 < len(words_.encode(build_prompt(MOODS, EXAMPLES, QUESTION).text)) + 4
    )


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("form, said", [
    ("no fields", "has the fields none"), ("{text}", "has the fields text"), ("{text} {text}", "the fields text, text"),
    ("{text}{label}", "touch each other"), ("{text.__class__} {label}", "more than a name in braces"),
    ("{text!r} {label}", "more than a name"), ("{0} {label}", "more than a name"), ("{text} {label", "cannot be read"),
    ("{text:>9} {label}", "more than a name"), ("{} {label}", "more than a name"),
])  # fmt: skip
def test_a_form_that_means_nothing_is_refused(form, said):
    with pytest.raises(C.ConfigError, match=said):
        PromptTemplate(form)


def test_marks_that_do_not_part_examples_are_refused():
    with pytest.raises(C.ConfigError, match="separator: it is empty"):
        PromptTemplate("{text} {label}", "")
    with pytest.raises(C.ConfigError, match=r"separator: '\\n' also occurs in the template"):
        PromptTemplate("{text}\n{label}", "\n")
    with pytest.raises(C.DataError, match="cannot be told apart"):
        MOODS.render({"text": "one\n\ntwo", "label": "good"})


def test_an_example_that_lacks_something_is_told_by_its_place():
    with pytest.raises(C.DataError, match="rows.csv:3: no 'label', which the template needs; it has text"):
        build_prompt(MOODS, [Record({"text": "a"}, "rows.csv:3")], QUESTION)
    with pytest.raises(C.DataError, match="question: no 'text'"):
        build_prompt(MOODS, [], {})
    with pytest.raises(C.DataError, match="its text is None, and no text"):
        MOODS.format_question({"text": None})
    with pytest.raises(C.DataError, match="question: it exceeds the context window"):
        build_prompt(MOODS, EXAMPLES, QUESTION, fits=lambda text_: False)
    with pytest.raises(C.ConfigError, match="shots: 8 of 7 examples"):
        choose_examples(EXAMPLES, 8)


# ---------------------------------------------------------------- learning in context


POINT = PromptTemplate("{text}={label}", ";")


@pytest.mark.spec("S111")
def test_points_of_lines_are_such_prompts():
    """`regard compare in-context` asks its model in this form."""
    made = build_prompt(POINT, [{"text": 2, "label": "V"}, {"text": 7, "label": "L"}], {"text": 4})

    assert made.text == in_context.format_points([(2, "V"), (7, "L")], 4)


KEYS, VALUES = "abcde", "xyz"


def shown(dice: random.Random) -> list[dict[str, str]]:
    """In each text all letters have one value: which, only the examples tell."""
    value = dice.choice(VALUES)
    return [{"text": key, "label": value} for key in dice.sample(KEYS, 4)]


@pytest.mark.slow
@pytest.mark.spec("S111")
def test_a_small_model_answers_by_the_examples_in_its_prompt():
    """Nobody told it the value of a text: it reads it in the prompt. Without examples it can only guess."""
    torch.manual_seed(0)
    words_, dice = text.train_tokenizer(C.CharTokenizer(byte_fallback=False), [KEYS + VALUES + "=;"]), random.Random(0)
    trunk = C.Trunk(dim=32, depth=1, mask="causal", attention=C.Attention(heads=2), position=C.RotaryPosition(),
                    dropout=C.NO_DROPOUT)  # fmt: skip
    one = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(words_)), trunk=trunk))
    one.tokenizer = words_
    optimizer = torch.optim.AdamW(one.parameters(), lr=1e-2)
    for _ in range(40):
        texts = [POINT.separator.join(map(POINT.render, shown(dice))) for _ in range(32)]
        ids = torch.tensor([words_.encode(each) for each in texts])
        after = one(ids[:, :-1])[:, 1::4]  # behind every =
        loss = torch.nn.functional.cross_entropy(after.flatten(0, 1), ids[:, 2::4].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def right(shots: int) -> float:
        asked = [shown(dice) for _ in range(150)]
        texts = [build_prompt(POINT, each[:shots], each[-1]).text for each in asked]
        told = [max(shares, key=shares.get) for shares in rank_labels(one, texts, [*VALUES])]
        return sum(guess == each[-1]["label"] for guess, each in zip(told, asked, strict=True)) / len(asked)

    assert right(shots=2) > 0.95
    assert right(shots=0) < 0.6
