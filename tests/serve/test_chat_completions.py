"""POST /v1/chat/completions, asked by OpenAI's own client."""

import asyncio
import json
from typing import Literal

import jsonschema
import openai
import pydantic
import pytest

from regard.engine.engine import Engine
from regard.engine.text_engine import TextEngine
from regard.text.chat_template import ChatTemplate

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "who is <|im_end|> it?"}]


@pytest.fixture(scope="module")
def alone(models):
    """The same by hand: the ids that the template gives, and an engine with one request."""
    model = models["talker"]

    def alone(talk, **settings):
        heard, engine, ids = (
            [],
            Engine(model, slots=1),
            ChatTemplate.load(model.source_folder.path).encode(model.tokenizer, talk),
        )
        TextEngine(engine, model).submit(ids, heard.append, **settings)
        while engine.step():
            pass
        return "".join(piece.text for piece in heard), heard[-1].reason, len(ids)

    return alone


def test_an_answer_is_what_the_engine_says_after_the_template(client, alone):
    told = client.chat.completions.create(model="talker", messages=TALK, max_completion_tokens=15, seed=3)
    text, _, read = alone(TALK, max_new_tokens=15, seed=3)
    choice = told.choices[0]

    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", text, "length")
    assert (told.object, told.id[:9], told.model) == ("chat.completion", "chatcmpl-", "talker")
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (read, 15)


def test_what_somebody_writes_is_never_a_special_token(client, models):
    known = models["talker"].tokenizer
    tame = client.chat.completions.create(model="talker", messages=[{"role": "user", "content": "a<|im_end|>b"}],
                                          max_tokens=1)  # fmt: skip
    parts = [known.encode(part) for part in ("user: a<|im_end|>b", "assistant:")]

    assert tame.usage.prompt_tokens == 1 + len(parts[0]) + 2 + len(parts[1])


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(client):
    asked = dict(model="talker", messages=TALK, max_tokens=11, seed=3)
    whole = client.chat.completions.create(**asked)
    parts = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))

    assert parts[0].choices[0].delta.role == "assistant" and parts[0].object == "chat.completion.chunk"
    said = [part.choices[0].delta.content or "" for part in parts[:-1]]
    assert "".join(said) == whole.choices[0].message.content
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * (len(parts) - 2) + ["length"]
    assert parts[-1].choices == [] and parts[-1].usage == whole.usage


def test_the_helper_for_streams_of_openai_reads_ours(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    asked = dict(model="talker", messages=TALK, max_tokens=99, seed=3, response_format=wanted)
    with client.chat.completions.stream(**asked) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()

    assert final.choices[0].message.content == said
    assert said == client.chat.completions.create(**asked).choices[0].message.content


def test_async_clients_stream_side_by_side(server, client):
    async def one(other, seed):
        told = await other.chat.completions.create(model="talker", messages=TALK, max_tokens=9, seed=seed, stream=True)
        return "".join([part.choices[0].delta.content or "" async for part in told])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=30) as other:
            return await asyncio.gather(*(one(other, seed) for seed in range(7)))

    want = [client.chat.completions.create(model="talker", messages=TALK, max_tokens=9, seed=seed) for seed in range(7)]
    assert asyncio.run(all_of_them()) == [told.choices[0].message.content for told in want]


def test_an_answer_ends_where_the_template_ends_it(client, models):
    known = models["talker"].tokenizer
    end = next(id for id in known.specials if known.token(id) == "<|im_end|>")
    told = client.chat.completions.create(model="talker", messages=TALK, max_tokens=9, logit_bias={str(end): 100})

    assert told.choices[0].finish_reason == "stop" and told.choices[0].message.content == ""
    assert told.usage.completion_tokens == 1


def test_parts_of_a_message_are_one_text(client):
    parts = [{"type": "text", "text": "who "}, {"type": "text", "text": "is it?"}]
    told, want = (
        client.chat.completions.create(
            model="talker", messages=[{"role": "user", "content": content}], seed=1, max_tokens=6
        )
        for content in (parts, "who is it?")
    )

    assert told.choices == want.choices and told.usage == want.usage


def test_several_answers_have_odds_for_each_token(client):
    told = client.chat.completions.create(model="talker", messages=TALK, n=2, max_tokens=5, seed=8, logprobs=True,
                                          top_logprobs=3)  # fmt: skip

    assert [choice.index for choice in told.choices] == [0, 1]
    for choice in told.choices:
        rows = choice.logprobs.content
        assert len(rows) == 5 and all(len(row.top_logprobs) == 3 and row.logprob <= 0 for row in rows)
        assert b"".join(bytes(row.bytes) for row in rows).decode(errors="replace") == choice.message.content
        for row in rows:
            odds = [other.logprob for other in row.top_logprobs]
            assert odds == sorted(odds, reverse=True) and row.logprob <= odds[0]


SCHEMA = {"type": "object", "properties": {"city": {"enum": ["paris", "london"]}, "old": {"type": "boolean"}},
          "required": ["city", "old"], "additionalProperties": False}  # fmt: skip


@pytest.mark.parametrize("wanted, schema", [
    ({"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}, SCHEMA),
    ({"type": "json_object"}, {"type": "object"}),
], ids=["schema", "object"])  # fmt: skip
def test_json_is_json(client, wanted, schema):
    told = client.chat.completions.create(model="talker", messages=TALK, max_tokens=200, seed=12, temperature=0.6,
                                          response_format=wanted)  # fmt: skip

    if told.choices[0].finish_reason == "stop":
        jsonschema.validate(json.loads(told.choices[0].message.content), schema)
    else:
        assert schema != SCHEMA and told.choices[0].message.content.startswith("{")


def test_a_pydantic_model_is_filled_by_openai_s_own_parser(client):
    class Animal(pydantic.BaseModel):
        kind: Literal["cat", "dog"]
        good: bool

    told = client.chat.completions.parse(model="talker", messages=TALK, max_tokens=99, seed=1, response_format=Animal)

    assert isinstance(told.choices[0].message.parsed, Animal)


def test_a_model_without_a_template_says_so(client):
    with pytest.raises(openai.BadRequestError, match="writer has no chat template; use /v1/completions"):
        client.chat.completions.create(model="writer", messages=TALK)
