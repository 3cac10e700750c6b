"""Prompts and places: texts and ids as each kind of model takes them, and the model's own head at any place."""

import pytest
import torch
from lens.small_models import SHAPES
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.inference.model import Model
from regard.lens.prompt import read_prompt, token_id
from regard.lens.residual import Unembedding, recording, residual_places
from regard.lens.result import Picture, Table
from regard.text import train_tokenizer

TEXT = "the cat sat on the mat and the dog sat on the log. " * 20
DECODES = [name for name in SHAPES if name not in ("towers",)]


def shaped(name):
    shape = SHAPES[name]
    model = shape.model()
    torch.manual_seed(1)
    (first,) = shape.reads()
    return model, read_prompt(model, first, **shape.named)


@pytest.mark.parametrize("name", DECODES)
@pytest.mark.parametrize("place", ["last", "final"])
def test_the_end_of_the_stream_through_norm_and_head_is_what_the_model_says(name, place):
    model, prompt = shaped(name)
    last = residual_places(model)[-1].address
    with recording(model, prompt, last, "trunk.final") as run:
        decode = Unembedding(model, run.tokens)
        made = decode(run.seen[last]) if place == "last" else decode(run.seen["trunk.final"], final=False)
    out = run.out[0] if isinstance(run.out, tuple) else run.out

    assert_close(made, out[:, None] if decode.pools else out)


@pytest.mark.parametrize("name", DECODES)
def test_every_place_of_the_stream_has_the_width_of_the_trunk_and_comes_in_the_order_of_the_walk(name):
    model, prompt = shaped(name)
    places, known = residual_places(model), list(model.addresses())
    with recording(model, prompt, *(place.address for place in places)) as run:
        shapes = {run.seen[place.address].shape[-1] for place in places}

    assert shapes == {model.c.trunk.dim}
    assert [known.index(place.address) for place in places] == sorted(known.index(place.address) for place in places)
    assert [place.name for place in residual_places(model, halves=False)][:2] == [
        "embed", "0.attn" if name == "attention only" else "0.mlp"
    ]  # fmt: skip


def test_a_model_that_answers_with_vectors_has_nothing_to_decode_into():
    c = C.Transformer(embed=C.TextEmbedding(vocab=7), trunk=C.Trunk(dim=8, depth=1, attention=C.Attention(heads=2)),
                      head=C.NoHead())  # fmt: skip
    model = Model(c)
    with (
        recording(model, read_prompt(model, torch.tensor([1, 2, 3]))) as run,
        pytest.raises(ConfigError, match="neither with words nor with classes"),
    ):
        Unembedding(model, run.tokens)


def writer(mask: str = "causal") -> Model:
    tokenizer = train_tokenizer(C.SubwordTokenizer(vocab=300), [TEXT])
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)),
                                trunk=C.Trunk(dim=8, depth=1, mask=mask, attention=C.Attention(heads=2))))  # fmt: skip
    model.tokenizer = tokenizer
    return model


def test_a_text_is_read_as_generation_reads_it():
    model = writer()
    prompt = read_prompt(model, "the cat sat")

    assert prompt.first.tolist() == model.encode_prompts(["the cat sat"])[1]
    assert len(prompt.labels) == prompt.first.shape[1]
    assert prompt.run(model).shape[:2] == prompt.first.shape


def test_one_token_is_found_by_its_text_and_several_are_refused_with_their_pieces():
    model = writer()
    [the] = model.tokenizer.encode(" the")

    assert token_id(model, " the") == token_id(model, the) == the
    with pytest.raises(ConfigError, match=r"^token 'xyz' is \d tokens \(.*\); name one token, or an id$"):
        token_id(model, "xyz")
    with pytest.raises(ConfigError, match="outside the vocabulary of"):
        token_id(model, 10_000)


@pytest.mark.parametrize(
    ("prompt", "rest", "words"),
    [
        ("the cat", {"source": "a dog"}, "no encoder"),
        ("the cat", {"pair": "a dog"}, "a decoder reads one text"),
        (torch.zeros(1, 0, dtype=torch.long), {}, "it is empty"),
    ],
)
def test_what_a_model_cannot_read_is_refused_in_a_sentence(prompt, rest, words):
    with pytest.raises((ConfigError, DataError), match=words):
        read_prompt(writer(), prompt, **rest)


def test_a_mask_in_a_text_is_the_token_and_no_text_like_any_other():
    tokenizer = train_tokenizer(C.SubwordTokenizer(kind="wordpiece", vocab=560), [TEXT])
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)),
                                trunk=C.Trunk(dim=8, depth=1, attention=C.Attention(heads=2))))  # fmt: skip
    model.tokenizer = tokenizer
    prompt = read_prompt(model, "the [MASK] sat")

    assert (prompt.first == tokenizer.special_ids["mask"]).sum() == 1


def test_ids_for_a_model_without_a_tokenizer_are_their_own_labels_and_a_text_is_refused():
    model, prompt = shaped("decoder")

    assert prompt.labels[:2] == tuple(map(str, prompt.first[0, :2].tolist()))
    with pytest.raises(DataError, match="no tokenizer"):
        read_prompt(model, "the cat")


def test_a_table_prints_aligned_and_keeps_its_numbers_in_csv_and_json():
    made = Table("Which?", ("token", "share"), (("a,b", 0.123456789), ("<i>", float("nan"))), "not why")

    assert str(made) == "Which?\n\ntoken   share\na,b    0.1235\n<i>         –\n\nnot why"
    assert made.to_csv() == 'token,share\n"a,b",0.123456789\n<i>,nan\n'
    assert made.to_json()["rows"][1] == {"token": "<i>", "share": None}
    assert "&lt;i&gt;" in made.to_html() and "<i>" not in made.to_html()
    assert Picture("grid", "?", torch.zeros(1, 1), ["a"], ["b"]).center is None
