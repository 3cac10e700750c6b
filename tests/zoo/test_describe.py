"""What is told about a preset, and what may be changed in it."""

import re

import pytest

from regard import config, measure, zoo
from regard.zoo.preset import SHORT_KEYS

every = pytest.mark.parametrize("name", config.PRESETS)


def total(c):
    return sum(measure.count_parameters(c).values())


@every
def test_it_says_where_it_comes_from(name):
    about = zoo.preset_info(name)

    assert about.title and len(about.title) <= 28  # a line of `regard models` in a terminal of 80
    assert re.search(r"\b(19|20)\d\d\b", about.paper) and about.source
    assert (about.said is None) == (about.rounded is None) == (name == "lab")


@pytest.mark.parametrize("name", [name for name in config.PRESETS if name != "lab"])
def test_the_size_that_documents_give_is_near_and_what_is_said_of_it_is_counted(name):
    about, count = zoo.preset_info(name), total(zoo.preset(name))
    size = float(about.said[:-1]) * {"M": 1e6, "B": 1e9}[about.said[-1]]
    told = re.findall(r"([\d,.]*\d) (million|billion)", about.rounded)
    counts = [count, *(total(zoo.preset(name, **each.change)) for each in about.also)]

    assert abs(count / size - 1) < 0.07
    assert any(agrees(number, unit, each) for number, unit in told for each in counts)


def agrees(number, unit, count):
    """Is it the count, at as many decimals as are told?"""
    decimals = len(number.partition(".")[2])
    return f"{count / {'million': 1e6, 'billion': 1e9}[unit]:,.{decimals}f}" == number


def test_the_shapes_are_said_by_masks_and_encoders():
    found = {name: zoo.model_shape(zoo.preset(name)) for name in config.PRESETS}
    towers = ["clip-vit-b32"]
    both = ["transformer-base", "transformer-big", "t5-small", "t5-v1.1-base", "bart-base", "marian"]
    readers = ["bert-base", "bert-large", "roberta-base", "distilbert", "albert-base", "electra-small", "vit-b16",
               "vit-l16", "vit-h14", "swin-tiny"]  # fmt: skip

    assert [name for name, shape in found.items() if shape == "towers"] == towers
    assert [name for name, shape in found.items() if shape == "encoder-decoder"] == both
    assert [name for name, shape in found.items() if shape == "encoder"] == readers
    assert {shape for name, shape in found.items() if name not in [*towers, *both, *readers]} == {"decoder"}


@pytest.mark.parametrize("mask, shape", [
    ("causal", "decoder"), ("full", "encoder"), ("prefix(3)", "decoder"), ("~causal", "encoder"),
    ("causal & window(3)", "decoder"), ("causal | global_tokens(2)", "encoder"),
    ("causal & (window(3) | strided(2))", "decoder"),
])  # fmt: skip
def test_a_decoder_is_who_never_looks_ahead(mask, shape):
    assert zoo.model_shape(zoo.preset("gpt2", mask=mask)) == shape


def test_one_layer_that_looks_ahead_makes_an_encoder():
    assert zoo.model_shape(zoo.preset("gpt2", mask=["causal", "full"])) == "encoder"


# ---------------------------------------------------------------- in our nouns


def test_no_two_presets_are_the_same_sentence():
    assert len({zoo.describe_model(zoo.preset(name)) for name in config.PRESETS}) == len(config.PRESETS)


def test_a_sentence_says_what_the_config_says():
    assert zoo.describe_model(zoo.preset("llama3-8b")) == (
        "Reads a vocabulary of 128,256. One trunk of 32 layers, 4,096 wide; 32 heads of 128, 8 of keys and values; "
        "pre-norm (rms, also at the end); causal; rotary positions of base 500,000; gated SiLU, 14,336 wide; "
        "no biases; no dropout. Head: logits over 128,256."
    )


def test_a_decoder_is_said_by_what_differs_from_its_encoder():
    told = zoo.describe_model(zoo.preset("t5-small"))

    assert "A decoder like it, but causal; 32 buckets of distance, causal; cross-attention to the" in told
    assert told.count("2,048 wide") == 1


@pytest.mark.parametrize("change, words", [
    ({"depth": 1}, "One trunk of 1 layer, 768 wide"),
    ({"heads": 1}, "1 head of 768"),
    ({"trunk": {"share_layers": True}}, "one layer 12 times"),
    ({"trunk": {"depth": 2, "attention": {"heads": [3, 5], "kv_heads": [3, 1], "head_dim": 64}}},
     "3 to 5 heads of 64, 1 to 3 of keys and values"),
    ({"trunk": {"attention": {"score": "cosine", "scale": 10.0}}}, "compared by cosine, scores times 10"),
    ({"trunk": {"attention": {"bias": ["q", "v"]}, "mlp": {"bias": False}}}, "biases on q, v;"),
    ({"trunk": {"norm_placement": "post", "final_norm": True}}, "post-norm (layer, also at the end)"),
    ({"trunk": {"dropout": {"embed": 0.0, "mlp": 0.25}}}, "dropout 0.1 and 0.25"),
    ({"position": {"kind": "none"}}, "no positions"),
    ({"position": {"kind": "learned", "length": [14, 15]}}, "learned positions (14 x 15)"),
    ({"position": {"kind": "onehot"}}, "onehot positions (64)"),
    ({"position": {"kind": "sinusoidal", "axes": 2}}, "sinusoidal positions on 2 axes"),
    ({"position": {"kind": "rotary", "scaling": "linear", "factor": 2.0}}, "rotary positions, linear scaling"),
    ({"position": {"kind": "alibi"}}, "a slope on the distance for each head"),
    ({"position": {"kind": "shaw"}}, "a vector for each distance up to 16"),
    ({"position": {"kind": "relative"}}, "a number for each offset up to 16"),
    ({"head": {"kind": "pooling", "pooling": "last", "out": 3}}, "Head: the last token's vector, mapped to 3."),
    ({"head": {"kind": "pretraining"}}, "with a bias; and the first token's vector, a dense tanh layer, mapped to 2."),
    ({"trunk": {"cross": "last"}, "encoder": {"trunk": {"dim": 768}, "embed": {"kind": "text", "vocab": 11}}},
     "The encoder reads a vocabulary of 11."),
    ({"trunk": {"cross": "layerwise", "depth": 6}, "encoder": {"trunk": {"dim": 768}}},
     "cross-attention to the encoder, layer by layer"),
], ids=str)  # fmt: skip
def test_every_setting_has_its_words(change, words):
    assert words in zoo.describe_model(zoo.preset("gpt2", **change))


# ---------------------------------------------------------------- changes


def test_a_preset_with_other_words_is_the_one_with_those_settings():
    c = zoo.preset("gpt2-medium", depth=3, vocab=11, trunk={"norm_placement": "post"})

    assert (c.trunk.depth, c.embed.vocab, c.trunk.norm_placement, c.trunk.dim) == (3, 11, "post", 1024)


def test_a_trunk_of_another_width_keeps_its_heads_width_and_how_they_share_keys():
    c = zoo.preset("llama3-8b", dim=1024)

    assert (c.trunk.head_width, c.trunk.heads[0], c.trunk.attention.kv_heads) == (128, 8, 2)


def test_heads_with_a_width_of_their_own_stay_as_they_are():
    c = zoo.preset("qwen3-0.6b", dim=256)

    assert (c.trunk.head_width, c.trunk.heads[0], c.trunk.attention.kv_heads) == (128, 16, 8)


def test_an_unknown_preset_is_told_the_nearest():
    with pytest.raises(config.ConfigError) as told:
        zoo.preset("gpt3-175")

    assert str(told.value).startswith("preset: no preset 'gpt3-175'; did you mean 'gpt3-175b'? regard models lists")


@pytest.mark.parametrize("word", SHORT_KEYS)
def test_towers_take_no_short_words(word):
    with pytest.raises(config.ConfigError, match=f"^{word}: clip-vit-b32 has several towers.* give all towers$"):
        zoo.preset("clip-vit-b32", **{word: 3})


def test_towers_can_be_given_whole():
    assert zoo.preset("clip-vit-b32", initial_scale=2.0).initial_scale == 2.0


def test_towers_in_place_of_one_model_are_one_sentence(tmp_path):
    (tmp_path / "recipe.toml").write_text('[model]\npreset = "clip-vit-b32"\n')

    with pytest.raises(config.ConfigError, match="model.kind: a dual_encoder is trained by task.kind contrastive"):
        zoo.read_recipe(tmp_path / "recipe.toml")
