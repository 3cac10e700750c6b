"""Whatever is wrong with a request is one sentence with a 4xx, and nothing else is disturbed."""

import json

import openai
import pytest
from serve.served_models import ROOM

GOOD = {"model": "writer", "prompt": "the", "max_tokens": 2}
TALK = {"model": "talker", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}

BODIES = {
    "nothing": (b"", "body is missing"),
    "no JSON": (b"{", "no JSON"),
    "a text": (b'"the"', "expected a JSON object"),
    "a list": (b"[]", "expected a JSON object"),
    "null": (b"null", "body"),
    "NaN": (b'{"model": "writer", "prompt": "a", "temperature": NaN}', "NaN"),
    "Infinity": (b'{"model": "writer", "prompt": "a", "temperature": -Infinity}', "Infinity"),
    "too large a number": (b'{"model": "writer", "prompt": "a", "temperature": 1e999}', "1e999"),
    "a long number": (b'{"model": "writer", "prompt": "a", "seed": ' + b"9" * 5000 + b"}", "digits"),
    "deep": (b'{"model": "writer", "prompt": ' + b"[" * 90 + b"]" * 90 + b"}", "64 deep"),
    "very deep": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "64 deep"),
    "twice": (b'{"model": "writer", "prompt": "a", "prompt": "b"}', "'prompt' is given twice"),
    "twice inside": (b'{"model": "writer", "prompt": "a", "logit_bias": {"1": 2, "1": 3}}', "'1' is given twice"),
    "no UTF-8": (b'{"model": "writer", "prompt": "\xff"}', "byte 31 is not UTF-8"),
    "half a pair": (b'{"model": "writer", "prompt": "\\ud83d"}', "surrogate"),
    "half a pair as a name": (b'{"\\ud83d": 1, "prompt": "a"}', "surrogate"),
    "a byte order mark": (b'\xef\xbb\xbf{"prompt": "a"}', "no JSON"),
    "two": (b'{"prompt": "a"} {"prompt": "b"}', "extra data"),
}


@pytest.mark.parametrize("body, word", BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_request_is_refused(plain, body, word):
    told = plain.post("/v1/completions", body)

    assert told.status == 400 and word in told.error["message"] and told.error["type"] == "invalid_request_error"


FIELDS = [
    ({"prompt": 5}, "prompt", "expected a text, a list of texts, a list of ids"),
    ({"prompt": None}, "prompt", "expected a text"),
    ({"prompt": {}}, "prompt", "expected a text"),
    ({"prompt": ["a", 5]}, "prompt", "expected a text"),
    ({"prompt": [1, "a"]}, "prompt", "expected a text"),
    ({"prompt": [1.5]}, "prompt", "expected a text"),
    ({"prompt": [-1]}, "prompt", "expected a text"),
    ({"prompt": [True]}, "prompt", "expected a text"),
    ({"prompt": []}, "prompt", "empty list"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": [10_000]}, "prompt", "no id 10000"),
    ({"prompt": "Ünsay"}, "prompt", "not in the vocabulary"),
    ({"prompt": "a" * (ROOM + 1)}, "prompt", f"more than the {ROOM}"),
    ({"prompt": ["a"] * 200}, "prompt", "more than the 128"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"max_tokens": "9"}, "max_tokens", "integer"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"max_tokens": 100_000}, "max_tokens", "more than the 4,096"),
    ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
    ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
    ({"temperature": "warm"}, "temperature", "number"),
    ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 100, "prompt": ["a", "b"]}, "n", "200 texts are more than the 128"),
    ({"stop": ["a"] * 17}, "stop", "at most 16"),
    ({"stop": [""]}, "stop", "empty string"),
    ({"stop": 5}, "stop", "a text, or a list"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"seed": 1 << 63}, "seed", "less than"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
    ({"logprobs": True}, "logprobs", "integer"),
    ({"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "'a' is no id"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "less than or equal to 100"),
    ({"logit_bias": {"9999": 1}}, "logit_bias", "9999"),
    ({"logit_bias": [1]}, "logit_bias", "dictionary"),
    ({"suffix": "end"}, "suffix", "leave suffix out"),
    ({"best_of": 1, "n": 2}, "best_of", "less than n"),
    ({"best_of": 3, "stream": True}, "best_of", "nothing to stream"),
    ({"echo": 1}, "echo", "boolean"),
    ({"typical_p": 0}, "typical_p", "0"),
    ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
    ({"regex": "("}, "regex", "("),
    ({"response_format": {"type": "yaml"}}, "response_format", "json_object"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema goes with"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "colour"}}}}, "response_format",
     "colour"),
    ({"temprature": 1}, None, "there is no 'temprature' here; did you mean 'temperature'?"),
    ({"stream_options": {"include_usage": True}}, None, "stream_options are for streams"),
    ({"model": 5}, "model", "string"),
]  # fmt: skip


@pytest.mark.parametrize("wrong, param, word", FIELDS, ids=[json.dumps(each[0])[:40] for each in FIELDS])
def test_a_field_that_is_wrong_is_named(plain, wrong, param, word):
    told = plain.post("/v1/completions", GOOD | wrong)

    assert told.status == 400 and told.error["param"] == param and told.error["type"] == "invalid_request_error"
    assert word in told.error["message"]


TALKS = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": ["hi"]}, "messages", "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages", "messages[0].role: it is missing"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages", "messages[0].role: 'tool' is refused"),
    ({"messages": [{"role": "user"}]}, "messages", "content is missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages[0].content: expected a text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages",
     "messages[0].content: expected a text"),
    ({"messages": [{"role": "user", "content": "a " * ROOM}]}, "messages", f"more than the {ROOM}"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "tool calls are not supported"),
    ({"tool_choice": "auto"}, "tool_choice", "tool calls are not supported"),
    ({"store": True}, "store", "never stored"),
    ({"top_logprobs": 2}, None, "set logprobs as well"),
    ({"max_completion_tokens": 5}, None, "keep one of the two"),
    ({"functions": []}, None, "there is no 'functions' here"),
]  # fmt: skip


@pytest.mark.parametrize("wrong, param, word", TALKS, ids=[json.dumps(each[0])[:40] for each in TALKS])
def test_a_chat_that_is_wrong_says_where(plain, wrong, param, word):
    told = plain.post("/v1/chat/completions", TALK | wrong)

    assert told.status == 400 and told.error["param"] == param and word in told.error["message"]


OTHERS = [
    ("/v1/embeddings", {"input": []}, "a list of texts that is not empty"),
    ("/v1/embeddings", {"input": [1, 2]}, "a text, or a list of texts"),
    ("/v1/embeddings", {"input": ""}, "is empty"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "'float' or 'base64'"),
    ("/v1/embeddings", {"input": ["a"] * 200}, "more than the 128"),
    ("/v1/classify", {"input": ["a", "b"], "pair": ["c"]}, "1 texts for 2"),
    ("/v1/fill", {"input": "no blank"}, "[MASK]"),
    ("/v1/translate", {"input": "a", "num_beams": 0}, "greater than or equal to 1"),
    ("/v1/translate", {"input": "a", "max_tokens": 9999}, "more than the 4,096"),
    ("/v1/translate", {"input": "a " * 3000}, "more than the"),
    ("/tokenize", {"text": 5}, "text"),
    ("/detokenize", {"ids": [1, -1]}, "greater than or equal to 0"),
    ("/detokenize", {"ids": [10_000]}, "no id 10000"),
]  # fmt: skip
FOR = {"/v1/embeddings": "masked", "/v1/classify": "judge", "/v1/fill": "masked", "/v1/translate": "en-fr",
       "/tokenize": "writer", "/detokenize": "writer"}  # fmt: skip


@pytest.mark.parametrize("path, wrong, word", OTHERS, ids=[f"{each[0]} {json.dumps(each[1])[:30]}" for each in OTHERS])
def test_other_routes_name_what_is_wrong_too(plain, path, wrong, word):
    told = plain.post(path, {"model": FOR[path]} | wrong)

    assert told.status == 400 and word in told.error["message"]


@pytest.mark.parametrize("path, asked", [
    ("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": TALK["messages"]}),
    *((path, {"input": "a"}) for path in ("/v1/embeddings", "/v1/classify", "/v1/fill", "/v1/translate")),
    ("/tokenize", {"text": "a"}), ("/detokenize", {"ids": [1]}),
])  # fmt: skip
def test_no_model_is_guessed(plain, path, asked):
    unknown, unsaid = plain.post(path, asked | {"model": "riter"}), plain.post(path, asked)

    assert unknown.status == 404 and unknown.error["code"] == "model_not_found" and unknown.error["param"] == "model"
    assert "did you mean 'writer'?" in unknown.error["message"]
    assert unsaid.status == 400 and "name one of writer" in unsaid.error["message"]


def test_the_client_raises_what_it_raises_for_openai(client):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-5", prompt="a")
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="writer", prompt="a" * 999)

    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert long.value.code == "context_length_exceeded"


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/v1/completions", 405), ("DELETE", "/v1/models", 405), ("POST", "/health", 405), ("PUT", "/tokenize", 405),
    ("GET", "/", 404), ("GET", "/v1/models/nobody", 404), ("GET", "/docs", 404), ("GET", "/v1/completions/", 404),
    ("OPTIONS", "/v1/completions", 405), ("GET", "/v1/../../etc/passwd", 404), ("GET", "/%ff%00", 404),
])  # fmt: skip
def test_what_is_not_there_is_refused_in_the_same_form(plain, method, path, status):
    told = plain.ask(method, path)

    assert told.status == status and told.error["message"]
    assert "access-control-allow-origin" not in told.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_read_so_no_page_of_another_site_can_ask(plain, kind):
    told = plain.post("/v1/completions", GOOD, Content_Type=kind)

    assert told.status == 415 and "application/json" in told.error["message"]


def test_a_body_must_come_as_it_is(plain):
    assert plain.post("/v1/completions", GOOD, Content_Encoding="gzip").status == 415


def test_after_all_that_the_server_answers_as_before(plain):
    assert plain.post("/v1/completions", GOOD).status == 200
