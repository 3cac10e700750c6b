"""What grows with a request has an end, and happens where nobody else waits for it."""

import asyncio
import json
import socket
import threading
import time
from contextlib import closing

import pytest
from serve.served_models import Gate, Plain, until

from regard.config.errors import ConfigError
from regard.generation import structured_output
from regard.generation.cancellation import Cancelled, CancelToken
from regard.inference.translation import Translator
from regard.serve.schemas import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest
from regard.web.errors import ApiError, dump_json, shorten_value, to_json_bytes
from regard.web.strict_json import NAMES, TABLES, parse_body, validate_body
from regard.web.workers import WorkerPool

# ---------------------------------------------------------------- bodies


def refused(body, form=CompletionRequest):
    began = time.process_time()
    with pytest.raises(ApiError) as told:
        validate_body(form, body)
    assert told.value.status_code == 400 and "\n" not in told.value.detail
    return told.value.detail, time.process_time() - began


def test_a_name_that_is_given_twice_is_found_among_many_in_no_time():
    """Looking through all names for each of them took minutes."""
    names = [b'"%d":1' % number for number in range(NAMES - 1)]
    sentence, seconds = refused(b"{%s,%s}" % (b",".join(names), names[-1]))

    assert f"'{NAMES - 2}' is given twice" in sentence and seconds < 0.5


def test_a_table_of_too_many_names_is_not_made():
    sentence, _ = refused(b"{%s}" % b",".join(b'"%d":1' % number for number in range(NAMES + 1)))

    assert f"an object has {NAMES + 1:,} keys" in sentence


@pytest.mark.parametrize("element", [b"[]", b"{}", b'{"a":[]}'])
def test_too_many_tables_and_lists_are_counted_before_they_are_made(element):
    many = b"[%s]" % b",".join([element] * (TABLES + 1))
    sentence, seconds = refused(many)
    inside = json.dumps(many.decode()).encode()  # the same as a text is one text

    assert f"more than {TABLES:,} objects and lists" in sentence and seconds < 0.5
    assert parse_body(inside) == many.decode()


@pytest.mark.parametrize("text", ['\\"' * 9, "\\\\", "\\\\\\", "[", "\\", 'a"b', "\n"])
def test_a_text_that_is_cut_off_is_counted_like_any_other(text):
    """What begins with a quote is one mark, to its end or that of the body: nothing is looked at twice."""
    body = b"[" * (TABLES + 1) + b'"' + text.encode() * 30_000
    _, seconds = refused(body)

    assert seconds < 0.5


@pytest.mark.parametrize(
    "form, body, word",
    [
        (CompletionRequest, {"prompt": [{}] * 9_000}, "prompt: expected a text"),
        (CompletionRequest, {"prompt": [1] * 140_000}, "140,000 texts or ids are more than the 131,072"),
        (CompletionRequest, {"prompt": [[1] * 1000] * 140}, "140,000 texts or ids are more than the 131,072"),
        (
            CompletionRequest,
            {"prompt": "a", "logit_bias": {str(id): "x" for id in range(2000)}},
            "2,000 entries are more than",
        ),
        (CompletionRequest, {"prompt": "a", "stop": ["x"] * 9_000}, "a list of at most 16"),
        (CompletionRequest, {"prompt": "a", "stop": "x" * 9_000}, "stop"),
        (CompletionRequest, {"prompt": "a", "regex": "x" * 9_000}, "at most 4096 characters"),
        (ChatCompletionRequest, {"messages": [{}] * 9_000}, "9,000 messages are more than the 2,048"),
        (ChatCompletionRequest, {"messages": [{}] * 2_000}, "messages[0].role: it is missing"),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": [{}] * 9_000}]},
            "9,000 parts are more than the 2,048",
        ),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": "a"}], "metadata": dict.fromkeys(map(str, range(99)), 1)},
            "99 entries are more than the 64",
        ),
        (EmbeddingRequest, {"input": [{}] * 9_000}, "9,000 texts are more than the 4,096"),
        (EmbeddingRequest, {"input": [{}] * 4_000}, "input: expected a text"),
        (DetokenizeRequest, {"ids": ["a"] * 20_000}, "20,000 ids are more than the 16,384"),
        (DetokenizeRequest, {"ids": ["a"] * 16_000}, "ids[0]: 'a' is refused"),
    ],
)
def test_lists_are_counted_first_and_one_mistake_is_enough(form, body, word, monkeypatch):
    """A complaint for each element and each way to read it took gigabytes."""
    counted = []
    monkeypatch.setattr("regard.web.strict_json.first_error", lambda errors: counted.append(len(errors)) or ("", None))
    refused(json.dumps(body).encode(), form)
    monkeypatch.undo()

    assert counted[0] <= 8
    assert word in refused(json.dumps(body).encode(), form)[0]


@pytest.mark.parametrize("value", [
    None, 5, 1.5, True, "", "a", "it's", 'a"b', "x" * 38, "x" * 39, "x" * 9999, [], {}, [1, "a"],
    {"a": [1, {"b": None}]}, [[1, 2, 3]] * 99, {str(place): place for place in range(99)}, [[], {}], "\n☃",
])  # fmt: skip
def test_a_value_is_shown_by_its_beginning(value):
    whole = repr(value)

    assert shorten_value(value) == (whole if len(whole) <= 40 else f"{whole[:39]}…")


@pytest.mark.parametrize("value", [
    {}, [], {"a": []}, {"a": [], "b": {}, "c": None}, [[], {}], list(range(10_000)), [{"a": [1.5, "☃", None]}] * 9,
    {"choices": [{"logprobs": {"top_logprobs": [{"a": -1.0}, None], "tokens": ["a", "\ud800"]}}]}, "\ud800",
    {"1": {"2": [[[[[1]]]]]}},
])  # fmt: skip
def test_an_answer_in_pieces_is_the_same_json(value):
    assert json.loads(dump_json(value)) == json.loads(to_json_bytes(value))


def test_large_bodies_have_so_much_memory_together_and_small_ones_find_room(small, monkeypatch):
    monkeypatch.setattr("regard.web.middleware.LARGE", 1)
    server = small(body=200_000)
    plain = Plain(server.url)
    with socket.create_connection((plain.place.hostname, plain.place.port)) as slow:
        slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 199000\r\n\r\n" + b"a" * 198_000)  # fmt: skip
        until(lambda: server.house.held > 130_000)
        large = plain.post("/tokenize", {"text": "a" * 190_000})
        little = plain.post("/tokenize", {"text": "a" * 9_000})
    until(lambda: server.house.held == 0)

    assert large.status == 429 and "retry in a moment" in large.error["message"] and large.headers["retry-after"] == "1"
    assert little.status == 200
    assert plain.post("/tokenize", {"text": "a" * 190_000}).status == 200


# ---------------------------------------------------------------- workers


def test_a_pool_refuses_what_it_has_no_room_for_and_what_is_late():
    pool, gate = WorkerPool("trial", 1, 1, 0.2), threading.Event()

    async def fill():
        slow = [asyncio.create_task(pool.run(gate.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as full:
            await pool.run(int)
        late = await asyncio.gather(*slow, return_exceptions=True)
        gate.set()
        while pool.pending:
            await asyncio.sleep(0.001)
        return full.value, late, await pool.run(int, "7")

    full, late, seven = asyncio.run(fill())
    pool.stop()
    pool.join()

    assert full.status_code == 429 and full.headers["Retry-After"] == "1"
    assert [each.status_code for each in late] == [503, 429]  # the second had not begun
    assert seven == 7 and not pool.is_alive


def test_work_that_waits_is_not_done_for_a_client_that_has_left():
    pool, gate, did = WorkerPool("trial", 1, 9, 9.0), threading.Event(), []

    async def leave():
        first = asyncio.create_task(pool.run(gate.wait))
        second = asyncio.create_task(pool.run(did.append, 1))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.sleep(0)
        gate.set()
        await first
        await pool.run(did.append, 2)

    asyncio.run(leave())
    pool.stop()
    assert did == [2]


# ---------------------------------------------------------------- constraints


def test_a_schema_is_compiled_once_for_all_texts_of_a_request(plain, monkeypatch):
    made, compile = [], structured_output.GrammarConstraint.__init__
    monkeypatch.setattr(
        structured_output.GrammarConstraint, "__init__", lambda self, *given: made.append(1) or compile(self, *given)
    )
    asked = {"model": "talker", "prompt": ["a", "b"], "n": 3, "max_tokens": 4, "seed": 1, "regex": "[a-z]{9}"}
    told = plain.post("/v1/completions", asked)

    assert told.status == 200 and len(made) == 1
    alone = [plain.post("/v1/completions", asked | {"prompt": each, "n": 1, "seed": 1}).json for each in "ab"]
    assert [told.json["choices"][place]["text"] for place in (0, 3)] == [each["choices"][0]["text"] for each in alone]


def test_a_schema_of_many_optional_properties_is_refused_in_a_sentence(plain):
    """Its first token could not be taken, which was the server's fault."""
    schema = {"type": "object", "properties": {f"p{place}": {"type": "integer"} for place in range(1500)}}
    told = plain.post("/v1/completions", {"model": "talker", "prompt": "a", "max_tokens": 4, "response_format": {
        "type": "json_schema", "json_schema": {"schema": schema}}})  # fmt: skip

    assert told.status == 400 and told.error["param"] == "response_format"
    assert "the grammar is too expensive to match" in told.error["message"]


def test_a_regex_that_takes_too_long_to_compile_is_refused(models):
    with pytest.raises(ConfigError, match="it is too large to compile; make it simpler"):
        models["talker"].generate("a", max_new_tokens=2, regex=".?" * 900)


# ---------------------------------------------------------------- turns


def test_others_have_their_turn_between_two_prompts_that_are_read_aloud(small):
    """One request for many prompts kept all streams waiting until the last was read."""
    server = small(slots=2, max_queue=40)
    engine, plain = server.house.residents["writer"].engine, Plain(server.url)
    gate, answers = Gate(engine), {}
    gate.open.clear()
    body = {"prompt": ["abc"] * 20, "max_tokens": 0, "echo": True, "logprobs": 1}
    first = threading.Thread(target=lambda: answers.update(stream=plain.post("/v1/completions", {
        "prompt": "a", "max_tokens": 200})))  # fmt: skip
    first.start()
    until(lambda: engine.line.here == 1)
    steps = []
    do = engine.run_in_thread
    engine.run_in_thread = lambda work: do(lambda: steps.append(engine.steps.count) or work())
    second = threading.Thread(target=lambda: answers.update(aloud=plain.post("/v1/completions", body)))
    second.start()
    gate.open.set()
    first.join()
    second.join()

    assert {name: reply.status for name, reply in answers.items()} == {"stream": 200, "aloud": 200}
    assert len(steps) == 20 and len(set(steps)) == 20  # a step of the stream between each two of them


def test_more_log_probabilities_than_an_answer_may_have_are_refused_first(plain):
    told = plain.post("/v1/completions", {"model": "writer", "prompt": ["a" * 299] * 43, "max_tokens": 1, "echo": True,
                                          "logprobs": 20})  # fmt: skip

    assert told.status == 400 and told.error["param"] == "logprobs"
    assert "log-probabilities are more than the 262,144" in told.error["message"]


def test_a_text_that_is_certainly_too_long_is_not_tokenized(plain, models, monkeypatch):
    monkeypatch.setattr(type(models["writer"].tokenizer), "encode", None)
    for path, body in (("/v1/completions", {"prompt": "a" * 300_000}), ("/tokenize", {"text": "a" * 300_000}),
                       ("/v1/embeddings", {"input": ["a", "a" * 300_000]})):  # fmt: skip
        told = plain.post(path, {"model": "writer"} | body)
        assert told.status == 400 and "300,000 characters are more than the 262,144" in told.error["message"], path


def test_a_search_ends_when_it_is_cancelled(models):
    token, steps = CancelToken(), []

    def check():
        steps.append(1)
        if len(steps) == 3:
            token.cancel()
        token.check()

    with pytest.raises(Cancelled):
        Translator(models["en-fr"])(["A dog runs on the beach."], {"num_beams": 2}, check=check)
    assert len(steps) == 3


def test_work_of_a_client_that_left_is_cancelled_between_batches(small):
    """Each batch is a piece of work of its own, and those that wait are dropped."""
    server = small(slots=2, max_queue=9)
    engine = server.house.residents["writer"].engine
    done, do, gate = [], engine.run_in_thread, threading.Event()
    engine.run_in_thread = lambda work: do(lambda: done.append(1) or gate.wait(9) and work())
    body = json.dumps({"input": ["a" * 290] * 60}).encode()
    with closing(Plain(server.url).connect()) as link:
        link.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        until(lambda: done)
    until(lambda: not server.house.inside)
    gate.set()
    until(lambda: not engine.busy)

    assert len(done) == 1
