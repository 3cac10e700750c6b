"""Every published configuration: builds without memory, has exactly its parameters, answers in the right shape, learns.

One set of tests over all presets. Who counts besides us is `transformers`, from the same config.
"""

import math
import tomllib
from importlib.resources import files

import pytest
import torch
import transformers as hf
from torch import nn
from zoo import hf_models
from zoo.tiny_presets import said, shapes, small

import regard
from regard import config, measure, zoo
from regard.measure.fake_model import meta_model
from regard.zoo.preset import preset_table

# What papers, libraries and the documents of the project say, exactly; the others are held to `transformers` alone.
PUBLISHED = {
    "transformer-base": 63_082_496, "transformer-big": 214_245_376,
    "bert-base": 109_482_240, "bert-large": 335_141_888,
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328, "llama-7b": 6_738_415_616, "llama3-8b": 8_030_261_248,
    "vit-b16": 86_567_656, "vit-l16": 304_326_632, "vit-h14": 632_045_800, "swin-tiny": 28_288_354,
    "clip-vit-b32": 151_277_313, "lab": 803_072,
}  # fmt: skip
VARIANTS = {
    "bert-base": [110_106_428], "bert-large": [336_226_108, 334_607_360],
    "vit-b16": [85_798_656], "vit-l16": [303_301_632], "vit-h14": [630_764_800],
}  # fmt: skip
every = pytest.mark.parametrize("name", config.PRESETS)
with_layers = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "gpt3-175b" else name for name in config.PRESETS]
)


def total(c):
    return sum(measure.count_parameters(c).values())


def built(c):
    return regard.DualEncoderModel(c) if isinstance(c, config.DualEncoder) else regard.Model(c)


# ---------------------------------------------------------------- counts


@pytest.mark.spec("S143")
@pytest.mark.parametrize("name", PUBLISHED)
def test_it_has_the_published_number_of_parameters(name):
    assert total(zoo.preset(name)) == PUBLISHED[name]


@pytest.mark.spec("S143")
@pytest.mark.parametrize("name", hf_models.MODELS)
def test_transformers_counts_as_many_in_the_same_config(name):
    assert total(zoo.preset(name)) == hf_models.count(name)


def test_whoever_is_not_counted_by_transformers_is_counted_by_a_published_number():
    assert {*hf_models.MODELS, *PUBLISHED} == {*config.PRESETS}


@pytest.mark.parametrize("name", VARIANTS)
def test_its_variants_have_the_published_number_of_parameters(name):
    assert [total(zoo.preset(name, **each.change)) for each in zoo.preset_info(name).also] == VARIANTS[name]


@pytest.mark.parametrize("name, cls", [
    ("bert-base", hf.BertForPreTraining), ("bert-large", hf.BertForPreTraining),
    ("roberta-base", hf.RobertaForMaskedLM), ("distilbert", hf.DistilBertForMaskedLM),
    ("albert-base", hf.AlbertForMaskedLM),
])  # fmt: skip
def test_with_the_heads_of_pretraining_transformers_counts_as_many(name, cls):
    first, *_ = zoo.preset_info(name).also
    whole = hf_models.built(cls, hf_models.MODELS[name]()[1])

    assert total(zoo.preset(name, **first.change)) == sum(weight.numel() for weight in whole.parameters())


@pytest.mark.spec("S143")
@every
def test_its_parts_are_those_of_the_formulas(name):
    """Attention is 3d² for q, k and v and d² for the way out, feed-forward 2dh or 3dh, each with its biases."""
    c = zoo.preset(name)
    if isinstance(c, config.DualEncoder):
        made = [tower.trunk for tower in c.towers]
    else:
        made = [c.trunk, *((c.encoder.trunk,) if c.encoder else ()), *getattr(c.embed, "trunks", ())]
    layers = [(trunk, 1 if trunk.share_layers else trunk.depth) for trunk in made]
    found = measure.count_parameters(c)

    assert found["attention"] == sum(depth * looking(trunk) for trunk, depth in layers)
    assert found["cross-attention"] == sum(depth * looking(trunk) for trunk, depth in layers if trunk.cross != "none")
    assert found["feed-forward"] == sum(depth * thinking(trunk) for trunk, depth in layers)


def looking(c):
    a, width = c.attention, c.head_width
    q, kv = a.heads * width, (a.kv_heads or a.heads) * width
    return c.dim * (q + 2 * kv) + q * c.dim + bool(a.bias) * (q + 2 * kv + c.dim)


def thinking(c):
    hidden, maps = c.mlp.hidden or 4 * c.dim, 3 if c.mlp.gated else 2
    return maps * c.dim * hidden + c.mlp.bias * ((maps - 1) * hidden + c.dim)


# ---------------------------------------------------------------- shapes, learning, text


@with_layers
def test_forward_on_the_meta_device_has_the_shape_of_its_head(name):
    c = zoo.preset(name)
    with torch.device("meta"), torch.no_grad():
        out = said(meta_model(c))

    assert [tuple(each.shape) for each in out] == shapes(c)


@every
def test_a_tiny_one_learns_with_every_parameter(name):
    """Three steps: where a map begins at zero, the parameters before it move in the step after."""
    torch.manual_seed(3)
    model = built(small(zoo.preset(name)))
    before = {key: weight.clone() for key, weight in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        out = said(model)
        loss = sum(asked(each) for each in out)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    assert all(torch.isfinite(loss) for loss in losses)
    assert [key for key, weight in model.named_parameters() if weight.grad is None] == []
    assert [key for key, weight in model.named_parameters() if torch.equal(weight, before[key])] == []


def asked(out):
    """A loss that any answer has: which of its channels is the first one's?"""
    flat = out.flatten(0, -2)
    return nn.functional.cross_entropy(flat, torch.arange(len(flat)) % flat.shape[-1])


@every
def test_it_is_the_same_after_a_round_trip_through_text(name):
    c = zoo.preset(name)

    assert config.from_dict(type(c), tomllib.loads(config.to_toml(c))) == c
    assert config.from_dict(type(c), preset_table(name)) == c


@every
def test_its_config_is_at_most_forty_lines(name):
    text = files("regard.zoo").joinpath("presets", f"{name}.toml").read_text(encoding="utf8")
    lines = text.partition("[about]")[0].splitlines()

    assert len([line for line in lines if line.strip() and not line.startswith("#")]) <= 40
    assert max(map(len, text.splitlines())) <= 120


# ---------------------------------------------------------------- other sizes


def test_an_encoder_follows_the_short_words_too():
    c = zoo.preset("t5-small", dim=128, depth=2, hidden=96)

    assert (c.trunk.dim, c.trunk.depth, c.trunk.mlp.hidden) == (128, 2, 96)
    assert (c.encoder.trunk.dim, c.encoder.trunk.depth, c.encoder.trunk.mlp.hidden) == (128, 2, 96)
    assert (c.trunk.mask, c.encoder.trunk.mask) == ("causal", "full")


def test_a_long_path_says_what_a_short_word_would_not():
    c = zoo.preset("transformer-base", depth=2, encoder={"trunk": {"depth": 5}})

    assert (c.trunk.depth, c.encoder.trunk.depth) == (2, 5)


@pytest.mark.parametrize("name", ["transformer-base", "marian", "t5-small"])
def test_a_scale_that_is_a_root_of_the_width_stays_one(name):
    before, after = zoo.preset(name), zoo.preset(name, dim=256)
    power = -0.5 if name == "t5-small" else 0.5
    scale = (lambda c: c.head.scale) if name == "t5-small" else (lambda c: c.embed.scale)

    assert math.isclose(scale(before), 512**power) and math.isclose(scale(after), 256**power)
    assert zoo.preset(name, dim=256, embed={"scale": 3.0}, head={"scale": 3.0}).embed.scale == 3.0


def test_fewer_heads_still_share_their_keys():
    assert zoo.preset("llama3-8b", dim=1024).trunk.attention.kv_heads == 2
    assert zoo.preset("llama3-8b", dim=256).trunk.attention.kv_heads == 1


def test_a_feed_forward_stays_as_many_times_as_wide():
    assert zoo.preset("bert-base", dim=128).trunk.mlp.hidden == 512
    assert zoo.preset("llama-7b", dim=512).trunk.mlp.hidden == 1376
    assert zoo.preset("bert-base", dim=128, hidden=77).trunk.mlp.hidden == 77


def test_several_stages_have_no_short_word():
    with pytest.raises(config.ConfigError, match="depth: a model of several stages has one for each"):
        zoo.preset("swin-tiny", depth=2)


def test_towers_are_built_like_any_other():
    small = zoo.preset("clip-vit-b32")
    with torch.device("meta"):
        assert isinstance(regard.build(small), regard.DualEncoderModel)
    with pytest.raises(TypeError, match="build takes a config, got 'gpt2'"):
        regard.build("gpt2")
