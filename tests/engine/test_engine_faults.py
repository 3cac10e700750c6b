"""What goes wrong in one request is its own affair; slots come back, nobody waits for ever, nothing is lost."""

import random
import threading

import pytest
import torch
from engine.clients import Client, alone, ask, client, play, run, small, some
from generation.builders import model, prompts, translator

from regard import config as C
from regard.engine.engine import Engine
from regard.engine.request_queue import GenerationRequest, QueueFull

SIZES = dict(slots=3, max_context=41, chunk=4, max_queue=5, prefixes=2)
BAD = 7  # the token whose vector is damaged


@pytest.fixture(scope="module")
def one():
    torch.manual_seed(0)
    return small("grouped")


# ---------------------------------------------------------------- poisoned requests


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grouped", "alibi", "linear", "lstm"])
def test_who_reads_or_says_a_damaged_token_ends_there_and_nobody_else_notices(name):
    poisoned, dice = small(name), random.Random(5)
    with torch.no_grad():
        poisoned.embed.tokens.weight[BAD] = torch.nan
    clients = some(dice, 23, 13)
    play(crowd := Engine(poisoned, **SIZES), clients, dice)
    stayed = [each for each in clients if each.reason != "cancelled"]
    ends = {each.reason for each in stayed}

    assert {"error", "length"} <= ends and crowd.stats.running == 0
    assert all("not finite" in each.told[-1].problem for each in stayed if each.reason == "error")
    for each in stayed:  # a reference that has never met a NaN
        assert each.bits == alone(each, Engine(poisoned, **SIZES | {"prefixes": 0}))


class Broken:
    """A rule that fails when it has heard enough."""

    def __init__(self, patience: int, where: str) -> None:
        self.patience, self.where = patience, where

    def allowed_tokens(self):
        if self.where == "allowed" and not self.patience:
            raise ZeroDivisionError("a rule broke")
        return torch.ones(19, dtype=torch.bool)

    def advance(self, id):
        self.patience -= 1
        if self.where == "tell" and not self.patience:
            raise ZeroDivisionError("a rule broke")

    def copy(self):
        return Broken(self.patience, self.where)


@pytest.mark.parametrize("where", ["allowed", "tell"])
def test_a_rule_that_breaks_ends_its_own_text(one, where):
    engine, (text,) = Engine(one, **SIZES), prompts(6)
    bad, good = (
        client(text, rule=Broken(2, where), max_new_tokens=9),
        client(text, max_new_tokens=9, seed=1, temperature=1.0),
    )
    run(engine, bad, good)

    assert bad.reason == "error" and bad.told[-1].problem == "ZeroDivisionError: a rule broke"
    assert len(bad.ids) == (2 if where == "allowed" else 1)
    assert good.bits == alone(good, Engine(one, **SIZES))


def test_a_text_of_which_nothing_more_may_be_said_has_ended(one):
    class Over(Broken):
        def allowed_tokens(self):
            return torch.full((19,), self.patience > 0)

    asked = client(prompts(6)[0], rule=Over(2, ""), logit_bias={3: -99.0})
    run(Engine(one, **SIZES), asked)

    assert len(asked.ids) == 2 and asked.bits[-1] == (None, 0.0, (), "eos")


def test_who_cannot_hear_is_let_go_and_not_told_again(one):
    engine, calls = Engine(one, **SIZES), []

    def deaf(told):
        calls.append(told)
        raise OSError("nobody is there")

    other = client(prompts(5)[0])
    ticket = engine.submit(client(prompts(6)[0]).asked, deaf)
    run(engine, other)

    assert len(calls) == 1 and ticket.reason == "error" and isinstance(ticket.problem, OSError)
    assert other.reason in ("length", "eos") and engine.stats.running == 0


def test_who_has_heard_enough_leaves_at_once(one):
    engine, heard = Engine(one, **SIZES), []

    def hear(told):
        heard.append(told)
        return len(heard) == 2

    ticket = engine.submit(client([1, 2, 4, 5, 6], max_new_tokens=30).asked, hear)
    engine.step(), engine.step(), engine.step()

    assert len(heard) == 2 and ticket.reason == "stop" and engine.stats.running == 0 and not engine.busy


def test_a_prompt_that_cannot_be_read_ends_alone(one):
    class Choking(Engine):
        def forward(self, ids, cache):
            if ids.shape[0] == 1 and 11 in ids:
                raise MemoryError("too much")
            return super().forward(ids, cache)

    engine = Choking(one, **SIZES)
    bad, good = client([1, 2, 4, 5, 6, 11, 2, 2, 2]), client([1, 2, 4, 5, 6, 8, 2, 2, 2])
    run(engine, bad, good)

    assert bad.bits == [(None, 0.0, (), "error")] and bad.told[-1].problem == "MemoryError: too much"
    assert good.bits == alone(good, Engine(one, **SIZES))


def test_a_model_that_fails_is_said_to_all_and_to_whoever_comes(one):
    class Failing(Engine):
        failing = False

        def forward(self, ids, cache):
            if self.failing and len(ids) > 1:  # a step
                raise RuntimeError("the device is gone")
            return super().forward(ids, cache)

    engine = Failing(one, **SIZES)
    clients = [client(text, max_new_tokens=20) for text in prompts(5, 5, 5, 5)]
    ask(engine, *clients)
    work = engine.run_in_thread(lambda: 1)
    engine.failing = True
    engine.start()

    assert all(each.ticket.wait(20) for each in clients)
    engine.stop()
    assert {each.reason for each in clients} == {"error"} and str(engine.problem) == "the device is gone"
    assert clients[0].told[-1].problem == "RuntimeError: the device is gone" and work.result() == 1
    with pytest.raises(C.RunError, match="the engine has failed .*the device is gone"):
        ask(engine, client([1, 2, 4, 5]))


# ---------------------------------------------------------------- slots and memory


def tables(engine):
    return [table.data_ptr() for cache in (engine.slots.cache, engine.nursery.cache) for table in cache.tables()]


@pytest.mark.slow
def test_a_thousand_requests_leave_nothing_behind(one):
    engine, dice = Engine(one, **SIZES), random.Random(2)
    run(engine, client(prompts(9)[0]))
    before, room = tables(engine), engine.stats.bytes - engine.kept.bytes
    clients = [
        *some(dice, 50, 9),
        *(client(text, max_new_tokens=dice.choice([1, 1, 2])) for text in prompts(*[4] * 950)),
    ]
    dice.shuffle(clients)
    play(engine, clients, dice)
    figures = engine.stats

    assert all(each.reason is not None for each in clients)
    assert (figures.running, figures.waiting, engine.line.here) == (0, 0, 0) and len(engine.slots.free) == 3
    assert tables(engine) == before and figures.bytes - engine.kept.bytes == room
    assert not engine.slots.live.any() and not engine.slots.running and engine.slots.filled == [0, 0, 0]


def test_a_slot_is_free_one_step_after_its_text_was_cancelled_and_the_next_one_has_it(one):
    engine = Engine(one, **SIZES)
    clients = [client(text, max_new_tokens=30) for text in prompts(5, 5, 17, 5, 5)]
    ask(engine, *clients)
    for _ in range(4):
        engine.step()
    for each in (clients[0], clients[2], clients[4]):  # one speaks, one is being read, one waits
        engine.cancel(each.ticket)
        each.ticket.cancel()  # once more does no harm
    engine.step()

    assert [each.reason for each in clients] == ["cancelled", None, "cancelled", None, "cancelled"]
    assert engine.stats.running == 2 and engine.stats.waiting == 0 and clients[3].ticket in engine.steps.rows
    count = len(clients[0].told)
    engine.step()
    assert len(clients[0].told) == count


# ---------------------------------------------------------------- who comes next


def test_slots_are_given_in_the_order_of_coming_and_nobody_waits_for_ever(one):
    engine, first = Engine(one, **SIZES | {"slots": 2, "max_queue": 20}), []
    for place in range(17):
        said = first.append
        engine.submit(client([1, 2, 4, 5], max_new_tokens=1 + place % 3, temperature=1.0).asked,
                      lambda told, place=place, said=said: said(place))  # fmt: skip
    while engine.step():
        pass
    began = list(dict.fromkeys(first))

    assert sorted(began) == list(range(17)) and all(abs(place - rank) < 2 for rank, place in enumerate(began))


def test_a_long_prompt_makes_neither_a_short_one_nor_a_speaking_one_wait(one):
    engine = Engine(one, **SIZES)
    speaking, long, short = (
        client([1, 2, 4, 5], max_new_tokens=38),
        client(prompts(40)[0], max_new_tokens=2),
        client(prompts(5)[0], max_new_tokens=2),
    )
    one_more = Client(
        GenerationRequest(ids=speaking.asked.ids, c=C.SamplingParams(max_new_tokens=38, temperature=1.0, seed=4))
    )
    ask(engine, one_more)
    engine.step()
    ask(engine, long, short)
    said = []
    while long.reason is None:
        engine.step()
        said.append((len(one_more.told), bool(short.told), bool(long.told)))

    assert [count for count, *_ in said[:9]] == list(range(2, 11))  # a token a step, whatever is read
    assert said.index(next(each for each in said if each[1])) < 5 and len(long.ids) == 2


def test_who_is_too_many_is_told_when_to_come_again(one):
    engine = Engine(one, **SIZES)
    clients = [client(text, max_new_tokens=2) for text in prompts(*[5] * 8)]
    ask(engine, *clients)
    with pytest.raises(QueueFull, match=r"the queue is full \(8 requests\); retry in about \d+ seconds") as busy:
        ask(engine, client([1, 2, 4, 5]))
    while engine.step():
        pass

    assert 0.5 <= busy.value.seconds <= 60 and isinstance(busy.value, C.RunError)
    assert all(each.reason in ("length", "eos") for each in clients)
    run(engine, late := client([1, 2, 4, 5]))
    assert late.reason is not None


# ---------------------------------------------------------------- the thread


@pytest.mark.slow
def test_many_threads_may_ask_and_cancel_at_once(one):
    clients = [client(text, seed=seed, temperature=1.0) for seed, text in enumerate(prompts(*range(4, 34)))]
    barrier = threading.Barrier(6)

    def come(mine):
        barrier.wait()
        for place, each in enumerate(mine):
            ask(engine, each)
            if place % 3 == 2:
                each.ticket.cancel()

    with Engine(one, **SIZES | {"max_queue": 40}) as engine:
        threads = [threading.Thread(target=come, args=(clients[start::6],)) for start in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(each.ticket.wait(30) for each in clients)
    reference = Engine(one, **SIZES)
    stayed = [each for each in clients if each.reason != "cancelled"]

    assert len(stayed) >= 20 and [each.bits for each in stayed] == [alone(each, reference) for each in stayed]


def test_it_sleeps_while_there_is_nothing_to_do(one):
    with Engine(one, **SIZES) as engine:
        for _ in range(3):
            ask(engine, each := client([1, 2, 4, 5], max_new_tokens=5, logit_bias={3: -99.0}))
            each.ticket.wait(20)

    assert engine.stats.steps == 3 * 5


def test_stopping_lets_texts_end_or_ends_them(one):
    drained, cut = (Engine(one, **SIZES | {"max_context": 300}) for _ in range(2))
    short = [client(text, max_new_tokens=6) for text in prompts(5, 5, 5, 5, 5)]
    ask(drained.start(), *short)
    drained.stop()
    heard = threading.Event()
    long = [client(text, max_new_tokens=290, logit_bias={3: -99.0}) for text in prompts(5, 5, 5, 5, 5)]
    ask(cut, *long)
    cut.submit(client([1, 2, 4, 5]).asked, lambda told: heard.set())
    late = cut.run_in_thread(lambda: heard.wait(0))
    cut.start()
    late.result(20)
    cut.stop(drain=0)

    assert {each.reason for each in short} <= {"length", "eos"}
    assert "cancelled" in {each.reason for each in long} <= {"cancelled", "length"}
    assert cut.stats.running == cut.stats.waiting == 0 and cut.thread is None
    with pytest.raises(C.RunError, match="the engine has stopped and takes no more requests"):
        ask(cut, client([1, 2, 4, 5]))
    ask(cut.start(), again := client([1, 2, 4, 5]))
    assert again.ticket.wait(20)
    cut.stop()


def test_other_work_is_done_between_steps_in_the_thread_of_the_engine(one):
    engine, text = Engine(one, **SIZES), client([1, 2, 4, 5], max_new_tokens=30)
    by_hand = engine.run_in_thread(threading.get_ident)
    engine.step()
    with engine:
        ask(engine, text)
        where = engine.run_in_thread(threading.get_ident).result(20)
        broken = engine.run_in_thread(lambda: 1 // 0)
        assert isinstance(broken.exception(20), ZeroDivisionError)
        with pytest.raises(RuntimeError, match="own thread takes the steps"):
            engine.step()
    left = Engine(one, **SIZES)
    never = left.run_in_thread(lambda: 1)
    left.stop(drain=0)

    assert by_hand.result() == threading.get_ident() != where
    assert text.bits == alone(text, Engine(one, **SIZES)) and never.cancelled()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("asked", "error", "why"), [
    (client([]), C.DataError, "prompt: 0 tokens are too few"),
    (client([1, 19]), C.DataError, "prompt: id 19 is outside the model's vocabulary of 19"),
    (client([1] * 42), C.DataError, "prompt: 42 tokens exceed max_context, 41; shorten it, or give"),
    (client([1], logprobs=-1), C.ConfigError, "logprobs: -1 is not from 0 to the vocabulary size, 19"),
    (client([1], logprobs=20), C.ConfigError, "logprobs: 20 is not from 0 to"),
    (client([1], stop=("a",)), C.ConfigError, "stop: an Engine works on ids and has no stop strings"),
    (client([1], regex="a"), C.ConfigError, "regex: an Engine needs its rule"),
    (client([1], json_schema="{}"), C.ConfigError, "json_schema: an Engine needs its rule"),
    (client([1], logit_bias={19: 1.0}), C.ConfigError, "logit_bias: token 19 is outside"),
], ids=lambda each: None)  # fmt: skip
def test_a_request_that_cannot_be_done_is_refused_in_a_sentence(one, asked, error, why):
    engine = Engine(one, **SIZES)

    with pytest.raises(error, match=why):
        ask(engine, asked)
    assert not engine.busy


@pytest.mark.parametrize(("make", "sizes", "why"), [
    (model, {"slots": 0}, "slots: 0 is too few; this model needs 1 or more"),
    (model, {"chunk": 0}, "chunk: 0 is too few"),
    (model, {"max_queue": -1}, "max_queue: -1 is too few"),
    (model, {"prefixes": -1}, "prefixes: -1 is too few"),
    (lambda: model(mask="prefix(5)"), {}, "chunk: 4 is too few; this model needs 5 or more"),
    (lambda: model(C.LearnedPosition(length=40)), {}, "max_context: 41 is more than the 40 tokens"),
    (translator, {}, "encoder: an engine runs decoders only, and this is an encoder-decoder"),
    (lambda: model(mask="full"), {}, "is not autoregressive"),
], ids=["slots", "chunk", "max_queue", "prefixes", "prefix", "learned", "encoder", "both ways"])  # fmt: skip
def test_an_engine_that_cannot_run_is_refused_in_a_sentence(make, sizes, why):
    with pytest.raises(C.ConfigError, match=why):
        Engine(make(), **SIZES | sizes)


def test_max_context_is_by_itself_what_the_model_reads_at_once():
    assert Engine(model(C.LearnedPosition(length=40)), slots=1).max_context == 40
    assert Engine(model(), slots=1).max_context == 1024
