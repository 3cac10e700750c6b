"""Many texts at once are the texts that each prompt gets alone: streamed, stopped, counted, spelt."""

import json
import re
import threading

import pytest
import torch
from generation.builders import lively, translator, trunk

from regard import config as C
from regard.engine.engine import Engine
from regard.engine.request_queue import QueueFull
from regard.engine.text_engine import CompletionChunk, TextEngine
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

TEXT = "Der Jubel hallt über die Äcker: „ahoi!“ 日本 ☂ — naïve café, the the the cat sat on the mat. 0123456789\n" * 3
KINDS = {
    "char": C.CharTokenizer(),
    "byte": C.ByteTokenizer(),
    "bpe": C.SubwordTokenizer(vocab=400),
    "wordpiece": C.SubwordTokenizer(kind="wordpiece", vocab=600),
    "unigram": C.SubwordTokenizer(kind="unigram", vocab=400),
}
EVERY = pytest.mark.parametrize("kind", KINDS)
PROMPTS = ["the cat", "Der Jubel hallt", "on", "ahoi! the mat", "naïve café, the", "mat", "the the the cat sat"]
NEW = 23
SIZES = dict(slots=3, max_context=97, chunk=4, max_queue=2)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {name: train_tokenizer(kind, [TEXT]) for name, kind in KINDS.items()}


def speaker(tokenizer: Tokenizer):
    torch.manual_seed(1)
    embed = C.TextEmbedding(vocab=len(tokenizer) + 3)
    one = lively(C.Transformer(embed=embed, trunk=trunk(), head=C.LMHead(tied=False)))
    one.tokenizer = tokenizer
    return one


def heard(one, prompt, **settings) -> list[CompletionChunk]:
    """All pieces of one text."""
    engine, pieces = Engine(one, **SIZES), []
    TextEngine(engine, one).submit(prompt, pieces.append, **settings)
    while engine.step():
        pass
    return pieces


def whole(pieces: list[CompletionChunk]) -> str:
    return "".join(piece.text for piece in pieces)


def facts(completion) -> tuple:
    return completion.prompt, completion.text, completion.ids, completion.reason


# ---------------------------------------------------------------- texts


@EVERY
def test_texts_are_those_of_complete(kind, tokenizers):
    one = speaker(tokenizers[kind])
    alone = [one.complete(prompt, max_new_tokens=NEW, temperature=0.0) for prompt in PROMPTS]
    many = TextEngine(Engine(one, **SIZES), one).complete(PROMPTS, max_new_tokens=NEW, temperature=0.0)

    assert list(map(facts, many)) == list(map(facts, alone))


@EVERY
def test_drawn_and_stopped_texts_are_those_of_complete(kind, tokenizers):
    """A stop string that does come, cut out of the middle of the text that comes without it."""
    one, how = speaker(tokenizers[kind]), dict(max_new_tokens=NEW, temperature=1.2, top_k=9, seed=5)
    free = one.complete(PROMPTS[0], **how).text
    how["stop"] = (free[len(free) // 2 :][:2], "never said")
    alone = one.complete(PROMPTS[0], **how)
    pieces = heard(one, PROMPTS[0], **how)
    (again,) = TextEngine(Engine(one, **SIZES), one).complete(PROMPTS[:1], **how)

    assert pieces[-1].reason == alone.reason == "stop" and facts(again) == facts(alone) and again.seed == 5
    assert whole(pieces) == alone.text == free[: free.find(how["stop"][0])]
    assert tuple(token.id for piece in pieces for token in piece.tokens) == alone.ids


@EVERY
def test_pieces_are_those_of_a_stream(kind, tokenizers):
    one = speaker(tokenizers[kind])
    how = dict(max_new_tokens=NEW, temperature=1.3, seed=3)
    pieces = heard(one, PROMPTS[0], **how)

    assert [piece.text for piece in pieces if piece.text] == list(one.stream(PROMPTS[0], **how))
    assert [piece.reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_a_stop_string_frees_the_slot_at_once(tokenizers):
    one = speaker(tokenizers["char"])
    free = one.complete("the", max_new_tokens=9, temperature=0.0).text
    engine, pieces = Engine(one, **SIZES), []
    ticket = TextEngine(engine, one).submit("the", pieces.append, max_new_tokens=9, temperature=0.0, stop=free[2])
    while not pieces or pieces[-1].reason is None:
        engine.step()

    assert ticket.reason == "stop" and engine.stats.running == 0 and engine.stats.made <= 3


def test_ids_may_be_asked_as_well(tokenizers):
    one = speaker(tokenizers["bpe"])
    ids = tokenizers["bpe"].encode(PROMPTS[1])

    assert heard(one, ids, max_new_tokens=9, seed=1) == heard(one, PROMPTS[1], max_new_tokens=9, seed=1)


def test_a_form_is_kept(tokenizers):
    one = speaker(tokenizers["char"])
    digits = heard(one, "the", max_new_tokens=20, seed=2, regex=r"[0-9]{4}")
    number = heard(
        one,
        "the",
        max_new_tokens=30,
        seed=2,
        json_schema=json.dumps({"type": "integer", "minimum": 100, "maximum": 999}),
    )

    assert re.fullmatch(r"[0-9]{4}", whole(digits)) and digits[-1].reason == "eos"
    assert 100 <= json.loads(whole(number)) <= 999


# ---------------------------------------------------------------- tokens and usage


@EVERY
def test_tokens_carry_their_chances_and_what_they_spell(kind, tokenizers):
    one = speaker(tokenizers[kind])
    pieces = heard(one, PROMPTS[0], max_new_tokens=11, temperature=1.5, seed=4, logprobs=3)
    tokens = [token for piece in pieces for token in piece.tokens]
    ids = one.encode_prompts(PROMPTS[:1])[1][0] + [token.id for token in tokens]
    with torch.no_grad():
        logs = one(torch.tensor([ids]))[0, -len(tokens) - 1 : -1].log_softmax(-1)

    for token, row in zip(tokens, logs, strict=True):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-9)
        assert [other.logprob for other in token.others] == pytest.approx(row.topk(3).values.tolist(), abs=1e-9)
        assert [other.id for other in token.others] == row.topk(3).indices.tolist()
    if kind != "wordpiece":  # where a space depends on the neighbours
        assert b"".join(token.bytes for token in tokens).decode("utf-8", "replace") == whole(pieces)


def test_what_it_cost_is_told_with_the_last_piece(tokenizers):
    one = speaker(tokenizers["char"])
    engine, first, again = Engine(one, **SIZES), [], []
    for pieces in (first, again):
        TextEngine(engine, one).submit("the the cat", pieces.append, max_new_tokens=5, temperature=0.0)
        while engine.step():
            pass

    assert [piece.usage for piece in first[:-1]] == [None] * (len(first) - 1)
    assert (first[-1].usage.prompt, first[-1].usage.cached, first[-1].usage.made) == (11, 0, 5)
    assert (again[-1].usage.prompt, again[-1].usage.cached, again[-1].usage.made) == (11, 8, 5)
    assert whole(first) == whole(again)


# ---------------------------------------------------------------- threads, limits, mistakes


def test_more_prompts_than_fit_are_all_answered_by_the_thread_too(tokenizers):
    one, prompts = speaker(tokenizers["char"]), PROMPTS * 3
    alone = TextEngine(Engine(one, **SIZES), one).complete(prompts, max_new_tokens=9, temperature=0.0)
    with Engine(one, **SIZES) as engine:
        many = TextEngine(engine, one).complete(prompts, max_new_tokens=9, temperature=0.0)

    assert list(map(facts, many)) == list(map(facts, alone)) and len(many) == 21


def test_where_others_fill_the_engine_it_says_so(tokenizers):
    one = speaker(tokenizers["char"])
    engine = Engine(one, **SIZES)
    for _ in range(5):
        TextEngine(engine, one).submit("the", lambda piece: None, max_new_tokens=5)

    with pytest.raises(QueueFull, match=r"the queue is full \(5 requests\)"):
        TextEngine(engine, one).complete(["the"])


def test_a_text_that_is_broken_off_says_why(tokenizers):
    one, pieces, seen = speaker(tokenizers["char"]), [], threading.Event()
    with Engine(one, **SIZES) as engine:
        ticket = TextEngine(engine, one).submit(
            "the", lambda piece: (pieces.append(piece), seen.set()), max_new_tokens=80, seed=1
        )
        seen.wait(20)
        ticket.cancel()
        ticket.wait(20)
    with torch.no_grad():
        one.head.weight.fill_(torch.nan)
    broken = heard(one, "the", max_new_tokens=5)

    assert pieces[-1].reason == "cancelled" and broken[-1].reason == "error"
    assert broken[-1].problem.startswith("the model's logits are not finite") and whole(broken) == ""
    with pytest.raises(C.RunError, match="generation was interrupted: the model's logits are not finite"):
        TextEngine(Engine(one, **SIZES), one).complete(["the"], max_new_tokens=5)


@pytest.mark.parametrize(("prompt", "settings", "error", "why"), [
    ("the", {"num_beams": 4}, C.ConfigError, "num_beams: an engine has no beam search"),
    ("the", {"tempreture": 1.0}, C.ConfigError, "did you mean 'temperature'"),
    ("the", {"temperature": -1.0}, C.ConfigError, "temperature"),
    ("the", {"regex": "("}, C.ConfigError, "regex"),
    ("the" * 50, {}, C.DataError, "prompt: 150 tokens exceed max_context, 97"),
    ([9999], {}, C.DataError, "id 9999 is outside the model's vocabulary"),
])  # fmt: skip
def test_a_mistake_is_told_at_once(tokenizers, prompt, settings, error, why):
    with pytest.raises(error, match=re.escape(why)):
        heard(speaker(tokenizers["char"]), prompt, **settings)


def test_a_model_without_a_tokenizer_is_asked_in_ids(tokenizers):
    one = speaker(tokenizers["char"])
    one.tokenizer = None

    with pytest.raises(C.DataError, match="this model has no tokenizer"):
        heard(one, [1, 2])


def test_a_translator_is_not_asked_to_go_on():
    with pytest.raises(C.ConfigError, match="this is an encoder-decoder; use translate"):
        Engine(translator(), **SIZES)
