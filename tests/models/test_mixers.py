"""The block's first slot: attention and what stood there before, by one setting and with the counts they cost."""

import pytest
import torch
from models.recurrent_models import MIXERS, B, D, N, V, blocks, model
from torch.testing import assert_close

import regard
from regard import config, measure
from regard.config.errors import ConfigError
from regard.core.layers import MIXERS as TABLE
from regard.measure.fake_model import meta_model


def slot(mixer, dim=D, mask="causal"):
    """The weights of one mixer, counted without making them."""
    trunk = config.Trunk(dim=dim, depth=1, mask=mask, mixer=mixer, position=config.NoPosition())
    shape = meta_model(config.Transformer(embed=config.TextEmbedding(vocab=V), trunk=trunk))
    return sum(weight.numel() for weight in shape.trunk.blocks[0].attn.parameters())


@pytest.mark.spec("S049")
def test_fully_connecting_a_thousand_tokens_takes_a_trillion_weights():
    count = slot(config.DenseMixer(max_length=1000), dim=1024)

    assert count == 1024**2 * 1000**2
    assert f"{count:.3g}" == "1.05e+12"


@pytest.mark.spec("S049")
@pytest.mark.parametrize(
    "mixer, weights, biases",
    [
        (config.AttentionMixer(), 4, 4),
        (config.ConvMixer(kernel_size=3), 3, 1),
        (config.ConvMixer(kernel_size=1), 1, 1),
        (config.RecurrentMixer(cell="rnn"), 2, 2),
        (config.RecurrentMixer(cell="gru"), 6, 6),
        (config.RecurrentMixer(cell="lstm"), 8, 8),
        (config.NoMixer(), 0, 0),
    ],
    ids=["attention", "conv", "1x1", "rnn", "gru", "lstm", "none"],
)
def test_other_mixers_have_as_many_weights_whatever_the_length(mixer, weights, biases):
    assert slot(mixer, dim=64) == weights * 64**2 + biases * 64


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_mixer_is_the_block_s_first_slot(name, mask):
    if name == "dilated" and mask == "full":
        return  # its windows have no middle, which is refused below
    block = regard.build(model(f"mixer {name}", mask).c).trunk.blocks[0]

    assert type(block.attn).__name__ == ("NoMixer" if name == "none" else "MixerLayer")
    assert block.mlp is not None and block.cross is None


def test_the_table_holds_every_mixer_that_can_be_said():
    kinds = {
        kind
        for part in (
            config.AttentionMixer,
            config.DenseMixer,
            config.ConvMixer,
            config.RecurrentMixer,
            config.StateSpaceMixer,
            config.NoMixer,
        )
        for kind in [part.__dataclass_fields__["kind"].default]
    }

    assert kinds <= TABLE.keys()


@pytest.mark.parametrize("name", MIXERS)
def test_gradients_reach_all_weights_of_a_mixer(name):
    made = model(f"mixer {name}").train()
    made(torch.randint(V, (B, N))).square().mean().backward()

    for path, weight in made.trunk.blocks[0].attn.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, path


def test_a_recipe_chooses_a_mixer_by_one_key(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('[model]\npreset = "gpt2"\ndim = 24\nheads = 2\ndepth = 1\n')

    made = regard.zoo.read_recipe(path, ["model.trunk.mixer.kind=conv", "model.trunk.mixer.kernel_size=5"])

    assert made.model.trunk.mixer == config.ConvMixer(kernel_size=5)


@pytest.mark.parametrize("changes, says", [
    ({"mask": "causal & window(2)"}, "mask: 'causal & window"),
    ({"position": config.RotaryPosition()}, "position: 'rotary' acts inside of attention"),
    ({"position": config.LearnedPosition(length=9, mode="qk")}, "position: 'learned' acts inside of attention"),
])  # fmt: skip
def test_what_only_attention_honours_is_refused(changes, says):
    with pytest.raises(ValueError, match=says.replace("(", "\\(")):
        config.Trunk(**{"dim": D, "attention": config.Attention(heads=3), "mixer": config.RecurrentMixer(), **changes})


def test_windows_without_a_middle_and_halves_of_odd_widths_are_refused():
    with pytest.raises(ValueError, match=r"mixer\.kernel_size: 2 is even"):
        blocks("dilated", "full")
    with pytest.raises(ValueError, match="dim: 15 is odd"):
        blocks("gru", "full", dim=15)
    with pytest.raises(ValueError, match="residual: with mixer 'none'"):
        blocks("none", residual=False)
    with pytest.raises(ValueError, match="state_dim: 5 is odd"):
        config.StateSpaceMixer(state_dim=5)


def test_the_length_of_a_fully_connected_mixer_must_be_said():
    with pytest.raises(ConfigError, match=r"trunk\.mixer\.max_length: missing"):
        config.from_dict(config.Transformer, {"trunk": {"mixer": {"kind": "dense"}}})


def test_a_text_beyond_the_places_of_a_fully_connected_mixer_is_refused():
    with pytest.raises(ValueError, match=r"trunk\.mixer\.max_length: 17 tokens, and there are maps for 16 places"):
        model("mixer dense")(torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.parametrize("name, each", [
    ("dense", 2 * D * D * N), ("conv", 2 * 3 * D * D), ("lstm", 2 * 8 * D * D), ("none", 0),
    ("ssm", 8 * D * 3 + 2 * D * D),
])  # fmt: skip
def test_arithmetic_of_a_mixer_is_counted(name, each):
    found = measure.count_flops(model(f"mixer {name}").c, N)

    assert found.parts.get("mixing", 0) == 2 * each  # two layers, one token
    assert "looking" not in found.parts


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXERS)
def test_what_a_mixer_costs_is_told(name):
    c = model(f"mixer {name}").c

    assert_close(measure.estimate_model(c, context=N).parameters, sum(w.numel() for w in regard.build(c).parameters()))
    assert "no attention" in measure.explain_model(c, context=N) or "there is no attention" in measure.explain_model(
        c, context=N
    )
