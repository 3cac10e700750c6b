"""Guessing ahead changes when tokens come, and nothing about which."""

from itertools import pairwise

import pytest
import torch
from generation.builders import POSITIONS, V, lively, model, prompts, translator, trunk
from scipy.stats import chisquare

from regard import config as C
from regard import text
from regard.generation.logits_process import sample_from
from regard.generation.speculative import SpeculativeSession, accept_or_resample
from regard.inference.model import Model

LONG = 29


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def near(one: Model, noise: float = 0.1) -> Model:
    """A draft that often says what the model says."""
    other = Model(one.c).double().eval()
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(noise * torch.randn_like(weight))
    return other


def said(session) -> list[list[int]]:
    rows = [[] for _ in session.texts]
    for ids in session:
        for row, id in zip(rows, ids, strict=True):
            row += [] if id is None else [id]
    return rows


# ---------------------------------------------------------------- greedy


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("ahead", ["draft", "stranger", "lookup"])
def test_greedy_texts_are_those_of_the_model_alone(name, ahead):
    one = model(POSITIONS[name])
    given = {"draft": {"draft_model": near(one)}, "stranger": {"draft_model": model()}, "lookup": {"prompt_lookup": 3}}
    for text_ in prompts(1, 7):
        alone = said(one.session([text_], max_new_tokens=LONG, temperature=0))
        for guess in (1, 5):
            how = dict(max_new_tokens=LONG, temperature=0, num_speculative_tokens=guess) | given[ahead]
            assert said(one.session([text_], **how)) == alone


@pytest.mark.parametrize("settings", [
    {"repetition_penalty": 1.3}, {"frequency_penalty": 0.7, "presence_penalty": 0.3}, {"no_repeat_ngram_size": 3},
    {"logit_bias": {5: 9.0}}, {"min_new_tokens": 9},
], ids=str)  # fmt: skip
def test_what_is_remembered_of_the_text_counts_for_guesses_as_well(settings):
    one, text_ = model(), prompts(5)
    alone = said(one.session(text_, max_new_tokens=LONG, temperature=0, **settings))

    for given in ({"draft_model": near(one)}, {"prompt_lookup": 2}):
        assert said(one.session(text_, max_new_tokens=LONG, temperature=0, **settings, **given)) == alone


@pytest.mark.parametrize("window", [7, 12, 13])
@pytest.mark.parametrize("length", [3, 7, 19])
def test_a_text_slides_where_it_slides_without_guesses(window, length):
    one = model()
    one.context = window
    [text_] = prompts(length)
    small = near(one)
    small.context = 5  # the draft slides sooner

    with pytest.warns(UserWarning):
        alone = said(one.session([text_], max_new_tokens=LONG, temperature=0))
    for given in ({"draft_model": small}, {"prompt_lookup": 3}):
        with pytest.warns(UserWarning):
            assert said(one.session([text_], max_new_tokens=LONG, temperature=0, **given)) == alone


def test_rows_say_what_each_says_alone_and_end_where_they_end():
    one = model()
    one.generation_defaults = type(one.generation_defaults)(ends=frozenset({3, 11}))
    texts = prompts(2, 5, 9)
    alone = [said(one.session([text_], max_new_tokens=LONG, temperature=0))[0] for text_ in texts]
    assert {len(row) for row in alone} != {LONG}, "some row should end"

    for given in ({"draft_model": near(one)}, {"prompt_lookup": 2}):
        assert said(one.session(texts, max_new_tokens=LONG, temperature=0, **given)) == alone


def test_a_draft_that_is_the_model_is_always_right():
    one = model()

    session = one.session(prompts(5), max_new_tokens=31, temperature=0, draft_model=one, num_speculative_tokens=4)

    [row] = said(session)
    assert session.kept == session.guessed == [24]  # one by itself, then rounds of four and one
    assert len(row) == 31


def test_a_text_that_repeats_is_looked_up():
    one = model()
    one.forward = cycle  # says 0 1 2 3 4 0 1 2 ...

    session = one.session([[0, 1, 2, 3, 4, 0]], max_new_tokens=20, temperature=0, prompt_lookup=3)

    assert said(session) == [[1, 2, 3, 4, 0] * 4]
    assert session.kept == session.guessed != [0]


def cycle(ids, cache=None, **_):
    if cache is not None:
        cache.length += ids.shape[1]
    return 9.0 * torch.nn.functional.one_hot((ids + 1) % 5, V)


# ---------------------------------------------------------------- drawn


def table_model(chances: torch.Tensor) -> Model:
    """A model whose next token depends on the last one alone, by a table (V, V)."""
    made = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(chances)), trunk=trunk(position=C.NoPosition())))

    def forward(ids, cache=None, **_):
        if cache is not None:
            cache.length += ids.shape[1]
        return chances.log()[ids]

    made.forward = forward
    return made


SETTINGS = [{}, {"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.7}, {"temperature": 1.5, "min_p": 0.2}]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("ahead", ["draft", "lookup"])
def test_what_is_drawn_has_the_chances_of_the_model(settings, ahead):
    """Chi-square of what comes after each word in a long text (Leviathan et al. 2023, appendix A.1)."""
    target, other = (torch.rand(5, 5).double().square() + 0.02 for _ in range(2))
    one, small = (table_model(table / table.sum(-1, keepdim=True)) for table in (target, other))
    given = {"num_speculative_tokens": 3} | ({"draft_model": small} if ahead == "draft" else {"prompt_lookup": 2})

    session = one.session([[0]], max_new_tokens=1500, seed=5, **settings, **given)
    [row] = said(session)

    assert 0 < session.kept[0] < session.guessed[0]
    for word in range(5):
        after = torch.tensor([sum(pair == (word, next) for pair in pairwise([0, *row])) for next in range(5)])
        chances = session.sampler.filtered_logits(one(torch.tensor([[word]]))[:, -1]).softmax(-1)[0]
        assert not after[chances == 0].any()
        if (chances > 0).sum() > 1 and after.any():
            wanted = chances[chances > 0]
            assert chisquare(after[chances > 0], wanted * after.sum()).pvalue > 0.001


@pytest.mark.parametrize("sure", [False, True])
def test_a_guess_that_is_judged_is_a_draw_from_the_model(sure):
    """Chi-square of single draws, with guesses that were drawn and with guesses that were not."""
    one, draws = model(), 4000
    chooser = one.session([[1]], max_new_tokens=3, seed=2, top_k=7).sampler
    logits, other = torch.randn(2, 1, V).double() * 2
    p, q = (chooser.filtered_logits(each).softmax(-1) for each in (logits, other))
    dice = [torch.Generator().manual_seed(seed) for seed in range(draws)]
    guesses = [4] * draws if sure else sample_from(q.expand(draws, -1), dice)

    found = [accept_or_resample(chooser, logits, int(guess), None if sure else q[0]) for guess in guesses]

    counts = torch.bincount(torch.tensor(found), minlength=V)
    assert not counts[p[0] == 0].any()
    assert chisquare(counts[p[0] > 0], p[0, p[0] > 0] * draws).pvalue > 0.001


def test_the_same_seed_draws_the_same_text_and_another_seed_another():
    one = model()
    text_, small = prompts(5), near(one)

    first, again, other = (
        said(one.session(text_, max_new_tokens=LONG, seed=seed, draft_model=small)) for seed in (3, 3, 4)
    )

    assert first == again != other


# ---------------------------------------------------------------- texts


@pytest.fixture
def speaker():
    words = text.train_tokenizer(C.CharTokenizer(), ["the cat sat on the mat. the dog sat on the cat."])
    one = lively(C.Transformer(embed=C.TextEmbedding(vocab=len(words)), trunk=trunk(), head=C.LMHead(tied=False)))
    one.tokenizer = words
    return one


def test_a_text_streams_as_it_does_without_guesses(speaker):
    plain = "".join(speaker.stream("the cat", max_new_tokens=LONG, temperature=0))

    assert "".join(speaker.stream("the cat", max_new_tokens=LONG, temperature=0, prompt_lookup=3)) == plain
    assert speaker.generate("the cat", max_new_tokens=LONG, temperature=0, draft_model=near(speaker)) == plain


def test_a_stop_string_ends_a_text_in_the_middle_of_its_guesses(speaker):
    plain = speaker.complete("the cat", max_new_tokens=LONG, temperature=0)
    stop = plain.text[11:14]

    ended = speaker.complete("the cat", max_new_tokens=LONG, temperature=0, stop=stop)
    ahead = speaker.complete("the cat", max_new_tokens=LONG, temperature=0, stop=stop, draft_model=speaker)

    assert (ahead.text, ahead.ids, ahead.reason) == (ended.text, ended.ids, "stop")


def test_a_completion_tells_how_many_guesses_stayed(speaker):
    sure = speaker.complete("the cat", max_new_tokens=LONG, temperature=0, draft_model=speaker)
    plain = speaker.complete("the cat", max_new_tokens=LONG, temperature=0)

    assert sure.guessed == sure.kept > 0 and sure.acceptance == 1
    assert plain.guessed == 0 and plain.acceptance is None


def test_ids_go_in_and_out(speaker):
    ids = torch.tensor(speaker.tokenizer.encode("the cat"))

    plain, ahead = (
        speaker.generate(ids, max_new_tokens=9, temperature=0, **given) for given in ({}, {"prompt_lookup": 2})
    )

    assert torch.equal(plain, ahead)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("given, told", [
    ({"num_speculative_tokens": 3}, "num_speculative_tokens: no drafting method is set; set draft_model"),
    ({"prompt_lookup": 0}, "prompt_lookup: 0 is not a whole number"),
    ({"prompt_lookup": 2, "num_speculative_tokens": 0}, "num_speculative_tokens: 0 is not a whole number"),
    ({"prompt_lookup": 2, "num_speculative_tokens": 1.5}, "num_speculative_tokens: 1.5 is not a whole number"),
    ({"prompt_lookup": 2, "draft_model": "gpt2"}, "both are given"),
    ({"draft_model": "gpt2"}, "draft_model: expected a model"),
], ids=str)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(given, told):
    with pytest.raises(C.ConfigError, match=told):
        model().session([[1]], max_new_tokens=3, **given)


def test_a_draft_of_another_vocabulary_is_refused(speaker):
    other = Model(speaker.c)
    other.tokenizer = text.train_tokenizer(C.CharTokenizer(), ["xyz"])
    with pytest.raises(C.ConfigError, match="draft_model: its tokens are not those of the model"):
        speaker.generate("the", draft_model=other)
    with pytest.raises(C.ConfigError, match="draft_model: it has 7 tokens, and the model 19"):
        model().session([[1]], draft_model=model(embed=C.TextEmbedding(vocab=7)))


@pytest.mark.parametrize(
    "given", [{"prompt_lookup": 2}, {"draft_model": model()}], ids=["prompt_lookup", "draft_model"]
)
def test_a_state_that_cannot_forget_is_refused(given):
    sums = model(C.NoPosition(), attention=C.Attention(heads=3, head_dim=4, kernel="linear"))

    with pytest.raises(C.ConfigError, match="this model has a cache that cannot be rolled back"):
        sums.session([[1]], **given)
    with pytest.raises(C.ConfigError, match="the draft model has a cache that cannot be rolled back"):
        model().session([[1]], draft_model=sums)


def test_an_encoder_decoder_is_refused():
    with pytest.raises(C.ConfigError, match="prompt_lookup: this model is an encoder-decoder"):
        translator().session([[1]], prompt_lookup=2)
    with pytest.raises(C.ConfigError, match="draft_model: it is an encoder-decoder"):
        model().session([[1]], draft_model=translator())
    with pytest.raises(C.ConfigError, match="speculative decoding does not take a source"):
        translator().session([[1]], prompt_lookup=2, source=torch.tensor([[1]]))


def test_beams_have_no_guesses():
    with pytest.raises(C.ConfigError, match="prompt_lookup"):
        model().generate(torch.tensor([1]), num_beams=2, prompt_lookup=2)


def test_a_session_that_guesses_is_a_session():
    assert isinstance(model().session([[1]], max_new_tokens=3, prompt_lookup=2), SpeculativeSession)
