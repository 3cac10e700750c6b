"""POST /v1/completions, asked by OpenAI's own client: the texts are those of the engine that nobody else uses."""

import asyncio
import json
import math

import jsonschema
import openai
import pytest
import torch
from serve.served_models import events

from regard.engine.engine import Engine
from regard.engine.text_engine import TextEngine


@pytest.fixture(scope="module")
def alone(models):
    """The reference: an engine with one request."""
    model = models["writer"]
    return lambda prompt, **settings: TextEngine(Engine(model, slots=1), model).complete([prompt], **settings)[0]


def test_a_text_is_the_one_that_is_made_offline(client, alone):
    told = client.completions.create(model="writer", prompt="the cat", max_tokens=21, temperature=0.8, seed=5)
    want = alone("the cat", max_new_tokens=21, temperature=0.8, seed=5)

    assert (told.choices[0].text, told.choices[0].finish_reason) == (want.text, "length")
    assert (told.object, told.model, told.id[:5]) == ("text_completion", "writer", "cmpl-")
    assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.total_tokens) == (7, 21, 28)


def test_a_stream_is_the_same_text_in_pieces(client):
    asked = dict(model="writer", prompt="the cat", max_tokens=21, temperature=0.8, seed=5)
    whole = client.completions.create(**asked)
    parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))

    assert "".join(part.choices[0].text for part in parts[:-1]) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts[-3:-1]] == [None, "length"]
    assert parts[-1].choices == [] and parts[-1].usage == whole.usage and parts[0].usage is None
    assert len({part.id for part in parts}) == 1


def test_many_at_once_are_what_each_is_alone(server, client, alone):
    prompts = ["the", "a dog", "cats and dogs, ", "m", "no"]

    async def one(other, place, stream):
        told = await other.completions.create(model="writer", prompt=prompts[place], max_tokens=9 + place, seed=place,
                                              stream=stream)  # fmt: skip
        if stream:
            return "".join([part.choices[0].text async for part in told])
        return told.choices[0].text

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=30) as other:
            return await asyncio.gather(*(one(other, place % 5, place >= 5) for place in range(10)))

    want = [alone(prompt, max_new_tokens=9 + place, seed=place).text for place, prompt in enumerate(prompts)]
    assert asyncio.run(all_of_them()) == want * 2


@pytest.mark.parametrize("prompt, texts", [
    ("the cat", 1), (["the cat"], 1), (["the", "a dog", "m"], 3), ([1, 4, 2], 1), ([[1, 4, 2], [3]], 2),
])  # fmt: skip
def test_a_prompt_is_a_text_or_ids_or_several_of_them(client, models, alone, prompt, texts):
    told = client.completions.create(model="writer", prompt=prompt, max_tokens=5, temperature=0)
    rows = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    known = models["writer"].tokenizer
    rows = [row if isinstance(row, str) else known.decode(row) for row in rows]

    assert [choice.index for choice in told.choices] == list(range(texts))
    assert [choice.text for choice in told.choices] == [
        alone(row, max_new_tokens=5, temperature=0.0).text for row in rows
    ]


def test_each_of_n_texts_has_a_seed_of_its_own_and_the_first_is_that_of_one(client, alone):
    told = client.completions.create(model="writer", prompt=["the", "a dog"], max_tokens=7, n=3, seed=11)

    assert [choice.index for choice in told.choices] == list(range(6))
    assert [choice.text for choice in told.choices] == [
        alone(prompt, max_new_tokens=7, seed=11 + place).text for prompt in ("the", "a dog") for place in range(3)
    ]
    assert told.usage.prompt_tokens == 3 + 5 and told.usage.completion_tokens == 6 * 7


def test_stop_strings_end_a_text_before_them(client, alone):
    whole = alone("the", max_new_tokens=30, seed=3).text
    stop = whole[9:11]
    told = client.completions.create(model="writer", prompt="the", max_tokens=30, seed=3, stop=[stop, "zzzz"])

    assert told.choices[0].text == whole[: whole.index(stop)] and told.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("given, ours", [
    ({"top_p": 0.4}, {"top_p": 0.4}), ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
    ({"frequency_penalty": -1.5}, {"frequency_penalty": -1.5}),
    ({"logit_bias": {"3": 9, "5": -100}}, {"logit_bias": {3: 9, 5: -100}}),
    ({"extra_body": {"top_k": 2, "repetition_penalty": 1.7}}, {"top_k": 2, "repetition_penalty": 1.7}),
    ({"extra_body": {"min_p": 0.5, "typical_p": 0.9}}, {"min_p": 0.5, "typical_p": 0.9}),
    ({"extra_body": {"no_repeat_ngram_size": 2, "min_new_tokens": 4}},
     {"no_repeat_ngram_size": 2, "min_new_tokens": 4}),
    ({"extra_body": {"regex": "(ab|c)+"}}, {"regex": "(ab|c)+"}),
], ids=str)  # fmt: skip
def test_every_setting_reaches_the_model(client, alone, given, ours):
    asked = dict(model="writer", prompt="the", max_tokens=17, seed=2)

    assert (
        client.completions.create(**asked, **given).choices[0].text
        == alone("the", max_new_tokens=17, seed=2, **ours).text
    )
    assert alone("the", max_new_tokens=17, seed=2, **ours).text != alone("the", max_new_tokens=17, seed=2).text


def test_logprobs_are_those_of_the_model(client, models):
    model = models["writer"]
    told = client.completions.create(model="writer", prompt="the", max_tokens=5, temperature=0, logprobs=3).choices[0]
    ids = model.tokenizer.encode("the" + told.text)
    with torch.no_grad():
        want = model(torch.tensor([ids]))[0].float().log_softmax(-1)

    odds = told.logprobs
    assert odds.tokens == list(told.text) and odds.text_offset == list(range(5))
    for place, (own, others) in enumerate(zip(odds.token_logprobs, odds.top_logprobs, strict=True), 2):
        best = want[place].topk(3)
        assert own == pytest.approx(float(want[place, ids[place + 1]]), abs=1e-4)
        assert list(others) == [model.tokenizer.decode([id]) for id in best.indices.tolist()]
        assert list(others.values()) == pytest.approx(best.values.tolist(), abs=1e-4)


def test_echo_repeats_the_prompt_with_its_odds(client, models):
    model = models["writer"]
    asked = dict(model="writer", prompt=["the", "a dog"], temperature=0, logprobs=2)
    told = client.completions.create(**asked, max_tokens=4, echo=True)
    score = client.completions.create(**asked, max_tokens=0, echo=True)
    bare = client.completions.create(**asked, max_tokens=4)

    for prompt, long, short, rest in zip(asked["prompt"], told.choices, score.choices, bare.choices, strict=True):
        ids = model.tokenizer.encode(prompt)
        with torch.no_grad():
            want = model(torch.tensor([ids]))[0].float().log_softmax(-1)
        assert long.text == prompt + rest.text and short.text == prompt
        assert long.logprobs.token_logprobs[0] is None and long.logprobs.top_logprobs[0] is None
        assert short.logprobs.token_logprobs[1:] == pytest.approx(
            [float(want[place, id]) for place, id in enumerate(ids[1:])], abs=1e-4
        )
        assert long.logprobs.token_logprobs == short.logprobs.token_logprobs + rest.logprobs.token_logprobs
        assert long.logprobs.text_offset == list(range(len(prompt) + 4))


def test_a_stream_echoes_too(client):
    asked = dict(model="writer", prompt=["the", "m"], max_tokens=4, seed=3, n=2, echo=True, logprobs=1)
    whole = client.completions.create(**asked)
    texts, odds = [""] * 4, [[] for _ in range(4)]
    for part in client.completions.create(**asked, stream=True):
        for choice in part.choices:
            texts[choice.index] += choice.text
            odds[choice.index] += choice.logprobs.text_offset

    assert texts == [choice.text for choice in whole.choices]
    assert odds == [choice.logprobs.text_offset for choice in whole.choices]


def test_the_best_of_several_is_the_likeliest(client):
    asked = dict(model="writer", prompt=["the", "a"], max_tokens=6, seed=1, logprobs=0)
    all_of_them = client.completions.create(**asked, n=5).choices
    told = client.completions.create(**asked, n=2, best_of=5)

    def likely(choice):
        return -math.fsum(choice.logprobs.token_logprobs)

    want = [sorted(all_of_them[start : start + 5], key=likely)[:2] for start in (0, 5)]
    assert [choice.text for choice in told.choices] == [choice.text for row in want for choice in row]
    assert [choice.index for choice in told.choices] == [0, 1, 2, 3] and told.usage.completion_tokens == 60


def test_json_keeps_to_its_schema(client):
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99},
              "kind": {"enum": ["cat", "dog"]}}, "required": ["age", "kind"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": True}}
    told = client.completions.create(model="talker", prompt="An animal: ", max_tokens=99, seed=4,
                                     extra_body={"response_format": wanted})  # fmt: skip

    jsonschema.validate(json.loads(told.choices[0].text), schema)
    assert told.choices[0].finish_reason == "stop"


def test_half_a_character_is_told_by_its_bytes(client, models):
    known = models["talker"].tokenizer
    ids = known.encode("é☃")
    told = client.completions.create(model="talker", prompt=ids, max_tokens=0, echo=True, logprobs=0).choices[0]

    assert told.text == "é☃"
    assert told.logprobs.tokens[0] == "bytes:\\xc3" and len(told.logprobs.tokens) == len(ids)


def test_the_events_are_as_the_standard_has_them(plain):
    connection, answer = plain.stream("/v1/completions", {"model": "writer", "prompt": "the", "max_tokens": 3})

    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = events(answer)
    connection.close()
    assert len(parts) == 3 and all(part["object"] == "text_completion" for part in parts)
