"""An engine says in a crowd what it says alone, bit for bit, and what a session says."""

import random

import pytest
import torch
from engine.clients import HOT, MODELS, alone, ask, client, play, run, small, some
from generation.builders import V, both, prompts, written
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.engine.engine import Engine
from regard.generation.params import GenerationDefaults
from regard.native.library import load_library

SIZES = dict(slots=5, max_context=41, chunk=4, max_queue=6, prefixes=3)
NATIVE = pytest.mark.skipif(load_library() is None, reason="there is no compiler here")
EVERY = pytest.mark.parametrize("name", MODELS)


# ---------------------------------------------------------------- alone and in a crowd


@pytest.mark.slow
@EVERY
def test_whatever_happens_around_it_a_request_is_told_the_bits_it_is_told_alone(name):
    one, dice = small(name), random.Random(7)
    crowd, reference = Engine(one, **SIZES), Engine(one, **SIZES | {"prefixes": 0})
    stayed = play(crowd, some(dice, 29, 23), dice)

    assert len(stayed) > 15 and crowd.stats.hits
    assert [each.bits for each in stayed] == [alone(each, reference) for each in stayed]


@pytest.mark.slow
@settings(max_examples=12)
@given(st.integers(0, 9999), st.sampled_from(sorted(MODELS)), st.integers(1, 7), st.integers(4, 9))
def test_so_it_is_with_any_arrivals_slots_and_pieces(seed, name, slots, chunk):
    torch.manual_seed(seed)
    one, dice, sizes = small(name), random.Random(seed), SIZES | {"slots": slots, "chunk": chunk}
    stayed = play(Engine(one, **sizes), some(dice, 7, 13), dice)
    reference = Engine(one, **sizes | {"prefixes": 0})

    assert [each.bits for each in stayed] == [alone(each, reference) for each in stayed]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "count"), [
    (torch.float32, 1), (torch.float64, 1), (torch.bfloat16, 1),
    pytest.param(torch.float32, 2, marks=[pytest.mark.slow, NATIVE]),
])  # fmt: skip
def test_every_slot_gives_the_same_bits(dtype, count, threads):
    """Of five rows in double precision the fifth is computed another way, so there are eight."""
    threads(count)
    one, text = small("grouped", double=True).to(dtype), prompts(30)[0]
    engine, clients = Engine(one, **SIZES), [client(text, max_new_tokens=9, logprobs=2) for _ in range(5)]
    ask(engine, *clients)
    while len(engine.steps.rows) < 5:
        engine.step()
    slots = {engine.steps.rows[each.ticket] for each in clients}
    while engine.step():
        pass

    assert slots == set(range(5)) and len(clients[0].bits) > 1
    assert [each.bits for each in clients] == [clients[0].bits] * 5


def test_rows_that_can_never_agree_are_said_aloud():
    class Crooked(Engine):
        def forward(self, ids, cache):
            return super().forward(ids, cache) + torch.arange(len(ids))[:, None]

    with pytest.warns(UserWarning, match="slots: with 5 rows this model's logits differ between rows"):
        Crooked(small("alibi"), **SIZES)


def test_the_thread_gives_the_bits_of_the_steps_by_hand():
    one, dice = small("grouped"), random.Random(3)
    clients = some(dice, 9, 13)
    with Engine(one, **SIZES) as engine:
        ask(engine, *clients)
    reference = Engine(one, **SIZES | {"prefixes": 0})

    assert all(each.ticket.finished.is_set() for each in clients)
    assert [each.bits for each in clients] == [alone(each, reference) for each in clients]


# ---------------------------------------------------------------- what a session says


@EVERY
@pytest.mark.parametrize("chunk", [4, 7, 64])
def test_greedy_ids_are_those_of_a_session_however_prompts_are_cut(name, chunk):
    one, texts = small(name, double=True), prompts(5, 11, 4, 23)
    clients = [client(text, max_new_tokens=17) for text in texts]
    run(Engine(one, slots=3, max_context=41, chunk=min(chunk, 41)), *clients)

    assert [each.ids for each in clients] == written(one, texts, max_new_tokens=17, ends=frozenset({3}))


def test_drawn_ids_are_those_of_a_session_with_the_same_seed():
    one, texts = small("alibi", double=True), prompts(5, 11, 4)
    how = HOT | dict(top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3, max_new_tokens=15)
    clients = [client(text, seed=seed, **how) for seed, text in enumerate(texts)]
    run(Engine(one, **SIZES), *clients)

    for seed, (each, text) in enumerate(zip(clients, texts, strict=True)):
        assert [each.ids] == written(one, [text], seed=seed, ends=frozenset({3}), **how)


@pytest.mark.slow
def test_greedy_ids_and_their_chances_are_those_of_transformers():
    theirs, ours = both("gpt2", ("transformer.ln_f.weight", "trunk.final_norm.weight"), -3.0)
    texts = [torch.randint(3, 40, (length,)) for length in (5, 9, 2)]
    clients = [client(text.tolist(), max_new_tokens=11, logprobs=2) for text in texts]
    run(Engine(ours, slots=2, max_context=24, chunk=4), *clients)

    for each, text in zip(clients, texts, strict=True):
        out = theirs.generate(text[None], max_new_tokens=11, do_sample=False, pad_token_id=0, eos_token_id=None,
                              output_logits=True, return_dict_in_generate=True)  # fmt: skip
        logs = torch.cat(out.logits).log_softmax(-1)
        assert each.ids == out.sequences[0, len(text) :].tolist()
        torch.testing.assert_close(torch.tensor([told.logprob for told in each.told]).double(), logs.amax(-1).double(),
                                   atol=1e-6, rtol=1e-5)  # fmt: skip
        assert [[id for id, _ in told.others] for told in each.told] == logs.topk(2).indices.tolist()


def test_chances_are_told_as_the_model_has_them_before_anything_is_filtered():
    one, (text,) = small("grouped", double=True), prompts(6)
    asked = client(text, max_new_tokens=5, seed=2, logprobs=3, temperature=2.5, top_k=4, logit_bias={5: 9.0, 3: -99.0})
    run(Engine(one, **SIZES), asked)
    with torch.no_grad():
        logs = one(torch.tensor([text + asked.ids]))[0, len(text) - 1 : -1].log_softmax(-1)

    for told, row in zip(asked.told, logs, strict=True):
        assert told.logprob == pytest.approx(float(row[told.id]), abs=1e-9)
        assert [value for _, value in told.others] == pytest.approx(row.topk(3).values.tolist(), abs=1e-9)


# ---------------------------------------------------------------- beginnings that were read before


@EVERY
def test_a_beginning_that_was_read_before_is_not_read_again_and_changes_no_bit(name):
    one, (text, end) = small(name), prompts(13, 5)
    engine = Engine(one, **SIZES)
    first, again, longer = client(text, logprobs=3), client(text, logprobs=3), client([*text, *end], logprobs=3)
    for each in (first, again, longer):
        run(engine, each)
    reference = Engine(one, **SIZES | {"prefixes": 0})

    assert first.told[-1].cached == 0 and again.told[-1].cached == 12 and longer.told[-1].cached >= 12 - 12 % 4
    assert engine.stats.copied == again.ticket.cached + longer.ticket.cached
    assert engine.stats.read + engine.stats.copied == 13 + 13 + 18
    assert first.bits == again.bits == alone(first, reference) and longer.bits == alone(longer, reference)


def test_two_that_read_the_same_beginning_by_turns_read_it_once():
    engine, (text,) = Engine(small("alibi"), **SIZES), prompts(17)
    run(engine, client(text), client(text))

    assert engine.stats.read == 17 + 1


def test_kept_beginnings_never_fill_more_than_their_room_and_the_oldest_make_room():
    engine = Engine(small("alibi"), **SIZES | {"prefixes": 1})
    texts = prompts(17, 17, 17)
    for text in texts:
        run(engine, client(text, max_new_tokens=1))
        assert 0 < engine.kept.bytes <= engine.kept.room
    last, first = client(texts[2], max_new_tokens=1), client(texts[0], max_new_tokens=1)
    run(engine, last)
    run(engine, first)

    assert last.ticket.cached == 16 and first.ticket.cached == 0


def test_padding_in_a_prompt_is_not_read():
    from generation.builders import model

    from regard import config as C

    one = model(embed=C.TextEmbedding(vocab=V, pad_id=0))
    plain, padded = client([4, 5, 6, 7, 8], max_new_tokens=7), client([0, 0, 4, 5, 0, 6, 7, 8], max_new_tokens=7)
    run(Engine(one, **SIZES), plain, padded)

    assert plain.bits == padded.bits and [plain.ids] == written(one, [[4, 5, 6, 7, 8]], max_new_tokens=7)


# ---------------------------------------------------------------- ends


def test_a_text_ends_at_its_length_at_the_capacity_or_by_an_end_token():
    one, (text,) = small("alibi", double=True), prompts(9)
    one.generation_defaults = GenerationDefaults()
    short, full, none = client(text, max_new_tokens=6), client(text, max_new_tokens=99), client(text, max_new_tokens=0)
    engine = Engine(one, slots=2, max_context=20, chunk=4)
    run(engine, short, full, none)
    one.generation_defaults = GenerationDefaults(ends=frozenset({short.ids[2]}))
    ended = client(text, max_new_tokens=6)
    run(Engine(one, slots=2, max_context=20, chunk=4), ended)

    assert (len(short.ids), short.reason) == (6, "length") and (len(full.ids), full.reason) == (20 - 9 + 1, "length")
    assert full.ids == written(one, [text], max_new_tokens=12)[0] and (none.ids, none.reason) == ([], "length")
    assert ended.ids == short.ids[: short.ids.index(short.ids[2]) + 1] and ended.reason == "eos"
    assert engine.stats.made == 6 + 12


def test_a_request_that_has_its_last_token_is_no_longer_counted_as_running():
    """A client may ask for the figures as soon as it has its answer."""
    engine = Engine(small("alibi"), slots=2, max_context=20, chunk=4)
    running = []
    request = client(prompts(5)[0], max_new_tokens=3)
    engine.submit(request.asked, lambda event: running.append(engine.stats.running))
    while engine.step():
        pass

    assert running[-1] == 0 and set(running[:-1]) <= {1}
