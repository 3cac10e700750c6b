"""Vectors, classes, blanks and translations: over HTTP they are what the library gives."""

import base64
import struct

import openai
import pytest
import torch
import transformers as hf
from hub.text_folders import bytelevel, saved
from serve.served_models import Plain, served

from regard.inference.load import load_model
from regard.report.image_rows import encode_png

TEXTS = ["The cat sat.", "Ada Lovelace wrote to a big old man in London!", "who is it?"]


def test_vectors_are_those_of_the_library(client, models):
    told = client.embeddings.create(model="masked", input=TEXTS)
    want = models["masked"].embeddings(TEXTS).tolist()

    assert [row.index for row in told.data] == [0, 1, 2]
    assert [row.embedding for row in told.data] == [pytest.approx(row, abs=1e-6) for row in want]
    assert told.usage.prompt_tokens == told.usage.total_tokens > sum(len(text.split()) for text in TEXTS)


def test_vectors_come_as_numbers_or_as_bytes(plain, models):
    numbers, packed = (plain.post("/v1/embeddings", {"model": "masked", "input": "a dog", "encoding_format": form}).json
                       for form in ("float", "base64"))  # fmt: skip
    raw = base64.b64decode(packed["data"][0]["embedding"])

    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == numbers["data"][0]["embedding"]
    assert len(raw) == 4 * 36


def test_a_decoder_and_a_translator_give_vectors_too(client, models):
    for name in ("writer", "en-fr"):
        want = models[name].embeddings(["a dog"]).tolist()[0]
        assert client.embeddings.create(model=name, input="a dog").data[0].embedding == pytest.approx(want, abs=1e-6)


def test_a_text_that_would_be_cut_is_refused(plain):
    told = plain.post("/v1/embeddings", {"model": "masked", "input": ["a cat", "a dog " * 40]})

    assert told.status == 400 and told.error["code"] == "context_length_exceeded" and told.error["param"] == "input"
    assert told.error["message"].startswith("input[1]: ") and "37" in told.error["message"]


def test_dimensions_are_those_of_the_model(plain):
    asked = {"model": "masked", "input": "a dog"}

    assert plain.post("/v1/embeddings", asked | {"dimensions": 36}).status == 200
    assert "36" in plain.post("/v1/embeddings", asked | {"dimensions": 8}).error["message"]


def test_classes_are_those_of_the_library(plain, models):
    told = plain.post("/v1/classify", {"model": "judge", "input": TEXTS}).json
    want = models["judge"].classify(TEXTS)

    for row, classes in zip(told["data"], want, strict=True):
        assert [each["label"] for each in row["classes"]] == list(classes)
        assert [each["probability"] for each in row["classes"]] == pytest.approx(list(classes.values()), abs=1e-6)
        assert sum(each["probability"] for each in row["classes"]) == pytest.approx(1, abs=1e-5)


def test_classes_of_pairs(plain, models):
    told = plain.post("/v1/classify", {"model": "judge", "input": TEXTS[:2], "pair": "it was good", "top_k": 1}).json
    want = models["judge"].classify(TEXTS[:2], ["it was good"] * 2)

    assert [row["classes"][0]["label"] for row in told["data"]] == [next(iter(row)) for row in want]
    assert all(len(row["classes"]) == 1 for row in told["data"])


def test_blanks_are_filled_as_the_library_fills_them(plain, models):
    text = "The [MASK] sat on a [MASK]."
    told = plain.post("/v1/fill", {"model": "masked", "input": text, "top_k": 3}).json["data"][0]["blanks"]

    for blank, want in zip(told, models["masked"].fill_mask(text, 3), strict=True):
        assert [guess["word"] for guess in blank] == [guess.word for guess in want]
        assert [guess["probability"] for guess in blank] == pytest.approx([each.probability for each in want], abs=1e-6)


def test_translations_are_those_of_the_library(client, models):
    texts = ["A dog sleeps.", "Two men talk."]
    told = client.post("/translate", body={"model": "en-fr", "input": texts, "num_return_sequences": 2}, cast_to=object)
    want = models["en-fr"].translations(texts, num_return_sequences=2)

    assert [row["text"] for row in told["data"]] == [one.text for one in want]
    assert [row["score"] for row in told["data"]] == pytest.approx([one.score for one in want], abs=1e-5)
    assert [row["others"][0]["text"] for row in told["data"]] == [one.others[0].text for one in want]


@pytest.mark.parametrize("model, path, word", [
    ("writer", "/v1/translate", "no encoder"), ("writer", "/v1/classify", "no classification head"),
    ("writer", "/v1/fill", "causal"), ("en-fr", "/v1/fill", "translate"), ("judge", "/v1/fill", "no LM head"),
])  # fmt: skip
def test_a_model_that_is_for_something_else_says_so(plain, model, path, word):
    told = plain.post(path, {"model": model, "input": "a dog"})

    assert told.status == 400 and word in told.error["message"] and model in told.error["message"]


@pytest.mark.parametrize("model, word", [("en-fr", "/v1/translate"), ("masked", "/v1/fill"), ("judge", "/v1/classify")])
def test_a_model_that_writes_nothing_says_where_to_ask_it(client, model, word):
    with pytest.raises(openai.BadRequestError, match=word):
        client.completions.create(model=model, prompt="a dog")


def test_a_text_that_names_a_picture_opens_no_file(tmp_path):
    """Two towers take both on the command line; a client has no business with the files of the server."""
    tokenizer = bytelevel()
    ends = tokenizer.convert_tokens_to_ids("</s>")
    text = dict(
        vocab_size=len(tokenizer),
        hidden_size=20,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=28,
        max_position_embeddings=40,
        eos_token_id=ends,
        bos_token_id=0,
        pad_token_id=1,
    )
    vision = dict(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=28, image_size=8, patch_size=4
    )
    clip = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))
    (tmp_path / "secret.png").write_bytes(encode_png(torch.randint(0, 255, (3, 8, 8)).to(torch.uint8)))
    with served({"towers": load_model(saved(clip, tokenizer, tmp_path / "clip"), device="cpu")}) as server:
        plain = Plain(server.url)
        told = plain.post("/v1/embeddings", {"input": str(tmp_path / "secret.png")})
        silent = plain.post("/v1/completions", {"prompt": "a"})

        assert told.status == 400 and "this route takes only texts" in told.error["message"]
        assert len(plain.post("/v1/embeddings", {"input": "a dog"}).json["data"][0]["embedding"]) == 12
        assert silent.status == 400 and "/v1/embeddings" in silent.error["message"]
