"""Input attribution: completeness, exactness on linear models, and zero for what a model does not see."""

from itertools import pairwise

import pytest
import torch
from lens.planted import planted, straight
from lens.small_models import SHAPES
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError
from regard.inference.model import Model
from regard.lens.attention_maps import attention_patterns, evaluation_mode
from regard.lens.attribution.explained_inputs import read_inputs
from regard.lens.attribution.explained_score import ExplainedScore
from regard.lens.attribution.input_attribution import ATTRIBUTION_METHODS, attribute_inputs
from regard.lens.attribution.rollout import attention_rollout, roll_out
from regard.lens.prompt import read_prompt
from regard.text import train_tokenizer

ATTRIBUTED = [name for name in SHAPES if name != "towers"]
CAUSAL = [name for name in ATTRIBUTED if name not in ("encoder", "shared", "vit", "stages")]
TEXT = "the cat sat on the mat and the dog sat on the log. " * 20


def shaped(name, row=0):
    """A model of that shape, and one row of what it reads."""
    shape = SHAPES[name]
    model = shape.model()
    torch.manual_seed(1)
    (first,) = shape.reads()
    named = {key: table[row : row + 1] for key, table in shape.named.items()}
    return model, read_prompt(model, first[row : row + 1], **named)


def everything(found):
    """The numbers of both sides."""
    return torch.cat([x for x in (found.values, found.source_values) if x is not None])


# ---------------------------------------------------------------- integrated gradients


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("name", ATTRIBUTED)
def test_integrated_gradients_sum_to_the_difference_of_input_and_baseline(name, baseline):
    model, prompt = shaped(name)
    found = attribute_inputs(model, prompt, baseline=baseline)
    difference = found.score - found.baseline_score

    assert abs(float(everything(found).sum()) - difference) <= 0.01 * abs(difference)
    assert found.error <= 0.01


def test_each_attribution_is_as_exact_as_the_sum():
    """Completeness alone would stop after 40 gradients, with single tokens wrong by a fifth."""
    model, prompt = shaped("shaw")
    model.double()
    found, better = (
        attribute_inputs(model, prompt, baseline="zero", tolerance=tolerance) for tolerance in (0.01, 5e-4)
    )

    assert found.settled and found.steps < better.steps
    assert_close(found.values, better.values, rtol=0, atol=0.01 * float(better.values.abs().max()))


def test_a_cap_of_steps_is_said():
    model, prompt = shaped("t5")
    found = attribute_inputs(model, prompt, baseline="zero", max_steps=50)

    assert not found.settled and found.steps <= 50 and "give more max_steps" in str(found)


@pytest.mark.parametrize("baseline", ["zero", "mean", 5])
@pytest.mark.parametrize("score", ["logit", "probability", "log_probability"])
def test_completeness_holds_for_every_score_and_baseline_and_as_exactly_as_is_wanted(baseline, score):
    model, prompt = shaped("decoder")
    found = attribute_inputs(model.double(), prompt, score=score, baseline=baseline, tolerance=1e-3)

    assert found.error <= 1e-3
    assert_close(float(found.values.sum()), found.score - found.baseline_score, rtol=1e-3, atol=0)


def test_the_baseline_score_is_what_the_model_says_of_the_baseline():
    model, prompt = shaped("decoder")
    found = attribute_inputs(model, prompt, baseline=5, target=3)
    with torch.no_grad():
        assert_close(found.baseline_score, float(model(torch.full_like(prompt.first, 5))[0, -1, 3]))
        assert_close(found.score, float(prompt.run(model)[0, -1, 3]))


def test_baselines_replace_the_words_and_nothing_else():
    torch.manual_seed(0)
    c = C.Transformer(embed=C.TextEmbedding(vocab=19, segments=2, scale=3.0, pad_id=0),
                      trunk=C.Trunk(dim=8, depth=1, attention=C.Attention(heads=2)))  # fmt: skip
    model, segment = Model(c).eval(), torch.tensor([[0, 0, 1, 1]])
    with evaluation_mode(model):
        [words] = read_inputs(model, read_prompt(model, torch.tensor([5, 7, 2, 0]), segment=segment))
    table, around = model.embed.tokens.weight, model.embed.segments(segment)

    assert_close(words.baseline("zero"), around)
    assert_close(words.baseline("mean"), 3 * table.mean(0) + around)
    assert_close(words.baseline("pad"), 3 * table[0] + around)
    assert words.tokens.is_real.tolist() == [[True, True, True, False]]


def test_a_saturated_score_has_no_gradient_and_integrated_gradients_all_the_same():
    """-relu(1 - x) at x = 2, the example of Sundararajan et al. 2017."""
    model = straight(pooling="mean")
    with torch.no_grad():
        model.trunk.blocks[0].mlp.up.weight[0, 0], model.trunk.blocks[0].mlp.up.bias[0] = -1.0, 1.0
        model.trunk.blocks[0].mlp.down.weight[5, 0] = -1.0
        model.embed.tokens.weight[3, 0] = 2.0
    ids = torch.tensor([3])

    assert float(attribute_inputs(model, ids, method="gradient_x_input").values) == 0
    assert_close(float(attribute_inputs(model, ids, baseline="zero", tolerance=1e-4).values), 1.0, rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["decoder", "encoder", "vit", "translator"])
def test_integrated_gradients_and_gradient_x_input_are_captums(name):
    captum = pytest.importorskip("captum.attr", reason="captum, the oracle, is not installed")
    model, prompt = shaped(name)
    model.double()
    found = attribute_inputs(model, prompt, baseline="zero", tolerance=1e-3)
    plain = attribute_inputs(model, prompt, method="gradient_x_input")
    with evaluation_mode(model):
        explained = ExplainedScore(model, prompt)
        given = tuple(side.x for side in explained.inputs)
        with torch.enable_grad():
            paths = captum.IntegratedGradients(lambda *rows: explained.scores(rows))
            theirs = paths.attribute(given, n_steps=500, method="gausslegendre", internal_batch_size=100)
            slopes = captum.InputXGradient(lambda *rows: explained.scores(rows))
            slopes = slopes.attribute(tuple(x.requires_grad_() for x in given))
        joined = [torch.cat([side.sum_inputs(x)[0] for side, x in zip(explained.inputs, each, strict=True)])
                  for each in (theirs, slopes)]  # fmt: skip

    assert_close(everything(found), joined[0], rtol=0, atol=0.01 * float(joined[0].abs().max()))
    assert_close(everything(plain), joined[1])


# ---------------------------------------------------------------- exact cases


def test_on_a_linear_model_gradient_x_input_integrated_gradients_and_occlusion_are_its_terms():
    model = straight(pooling="mean")
    with torch.no_grad():
        model.embed.tokens.weight.normal_()
        model.head.out.weight.normal_()
    ids = torch.tensor([4, 1, 6, 3, 3])
    terms = (model.embed.tokens(ids) @ model.head.out.weight[1] / len(ids)).detach().double()

    for method in ("gradient_x_input", "integrated_gradients", "occlusion"):
        assert_close(attribute_inputs(model, ids, method=method, target=1, baseline="zero").values, terms,
                     rtol=1e-5, atol=1e-6)  # fmt: skip


@pytest.mark.parametrize("name", ["vit", "stages"])
def test_an_image_has_one_number_for_each_patch_the_sum_over_its_pixels(name):
    model, prompt = shaped(name)
    found = attribute_inputs(model, prompt, method="gradient_x_input", target=2)
    leaf = prompt.first.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf)[0, 2], leaf)
    size = leaf.shape[-1] // 3
    blocks = (slope * leaf).detach()[0].sum(0).unflatten(0, (3, size)).unflatten(2, (3, size)).sum((1, 3))

    assert_close(found.values.view(3, 3), blocks.double(), rtol=1e-4, atol=1e-6)
    assert found.picture().kind == "grid"


def test_occlusion_is_the_score_less_that_without_the_token():
    model, prompt = shaped("decoder")
    found = attribute_inputs(model, prompt, method="occlusion", target=3, baseline=7)
    with torch.no_grad():
        whole = model(prompt.first)[0, -1, 3]
        for place in range(prompt.first.shape[1]):
            without = prompt.first.clone()
            without[0, place] = 7
            assert_close(found.values[place].float(), whole - model(without)[0, -1, 3], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- what is not seen


@pytest.mark.parametrize("method", ATTRIBUTION_METHODS)
@pytest.mark.parametrize("name", CAUSAL)
def test_what_comes_later_is_worth_nothing_to_a_causal_model(name, method):
    model, prompt = shaped(name)
    found = attribute_inputs(model, prompt, method=method, position=4, max_steps=16)

    assert torch.equal(found.values[5:], torch.zeros_like(found.values[5:]))
    assert found.values[:5].abs().sum() > 0


@pytest.mark.parametrize("method", ATTRIBUTION_METHODS)
def test_what_is_beyond_every_window_is_worth_nothing(method):
    c = C.Transformer(embed=C.TextEmbedding(vocab=19), trunk=C.Trunk(
        dim=12, depth=2, mask="causal & window(2)", attention=C.Attention(heads=3), dropout=C.NO_DROPOUT))  # fmt: skip
    found = attribute_inputs(Model(c), torch.arange(1, 14), method=method, max_steps=16)
    reached = found.values.abs() > 0

    assert not reached[:-5].any()
    assert reached[-3:].all()


@pytest.mark.parametrize("method", ATTRIBUTION_METHODS)
@pytest.mark.parametrize(("name", "row", "side"), [("encoder", 1, "input"), ("encoder", 2, "input"),
                                                   ("t5", 1, "source"), ("translator", 1, "source")])  # fmt: skip
def test_padding_is_worth_nothing(name, row, side, method):
    model, prompt = shaped(name, row)
    found = attribute_inputs(model, prompt, method=method, max_steps=16)
    values, ids = (found.values, prompt.first) if side == "input" else (found.source_values, prompt.given["source"])

    assert (ids[0] == 0).any()
    assert torch.equal(values[ids[0] == 0], torch.zeros_like(values[ids[0] == 0]))


# ---------------------------------------------------------------- rollout


@pytest.mark.parametrize("name", ATTRIBUTED)
def test_rows_of_rollout_are_shares_and_respect_the_mask(name):
    model, prompt = shaped(name)
    shares = roll_out(model, prompt)

    assert (shares >= 0).all()
    assert_close(shares.sum(1), torch.ones(len(shares)))
    if name in CAUSAL:
        own = shares[:, : len(shares)]
        assert torch.equal(own, own.tril())


def test_rollout_is_the_product_of_the_layers_with_their_residual():
    model, prompt = shaped("vit")
    first, second = (x.mean(1)[0] for x in attention_patterns(model, prompt.first))
    one = torch.eye(len(first))
    expected = (second + one) / 2 @ ((first + one) / 2)

    assert_close(attention_rollout([first, second]), expected)
    assert_close(attribute_inputs(model, prompt, method="attention_rollout").values, expected[0, 1:])


# ---------------------------------------------------------------- planted, batched, left alone


@pytest.mark.parametrize("method", ATTRIBUTION_METHODS)
@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
def test_a_model_that_reads_one_token_is_explained_by_it(method, pooling):
    ids = torch.tensor([5, 2, 6, 1, 4, 7, 5])  # it reads token 1 alone, at place 3
    model = planted(pooling)
    values, place = attribute_inputs(model, ids, method=method, target=0).values.abs(), 3
    if method == "gradient":  # slopes count also where no word differs: the head reads its own token's residual stream
        values -= torch.tensor({"mean": [1 / 7] * 7, "cls": [1.0] + [0] * 6}.get(pooling, [0] * 6 + [1.0]))

    assert values.argmax() == place
    # rollout gives a share to every token's own residual: a quarter after two layers
    assert values[place] / values.sum() > (0.7 if method == "attention_rollout" else 0.99)


@pytest.mark.parametrize("method", ATTRIBUTION_METHODS)
@pytest.mark.parametrize("name", ["decoder", "encoder", "translator", "vit"])
def test_the_size_of_a_batch_changes_nothing(name, method):
    model, prompt = shaped(name)
    found = [everything(attribute_inputs(model, prompt, method=method, batch_size=size)) for size in (1, 5, 64)]

    for one, other in pairwise(found):
        assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ATTRIBUTION_METHODS)
def test_the_model_is_left_as_it_was(method):
    model, prompt = shaped("decoder")
    model.train()
    model.head.weight.requires_grad_(False)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    attribute_inputs(model, prompt, method=method)

    assert model.training and all(part.training for part in model.modules())
    assert all(weight.grad is None for weight in model.parameters())
    assert [name for name, weight in model.named_parameters() if not weight.requires_grad] == ["embed.tokens.weight"]
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not model.hooks and not model.embed.tokens._forward_hooks


# ---------------------------------------------------------------- texts, targets and refusals


def writer(head=None, mask="causal", tokenizer=None) -> Model:
    tokenizer = tokenizer or train_tokenizer(C.SubwordTokenizer(vocab=300), [TEXT])
    trunk = C.Trunk(dim=8, depth=1, mask=mask, attention=C.Attention(heads=2))
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)), trunk=trunk, head=head or C.LMHead()))
    model.tokenizer = tokenizer
    return model


def test_a_text_is_attributed_token_by_token_to_a_target_named_in_words():
    model = writer()
    found = attribute_inputs(model, "the cat sat", target=" dog")

    assert found.target_label == model.tokenizer.token_text(model.tokenizer.encode(" dog")[0])
    assert found.labels == read_prompt(model, "the cat sat").labels
    assert "sum to the difference within" in str(found) and len(found.table().rows) == len(found.labels)
    assert found.picture().kind == "bars"


def test_the_target_is_the_likeliest_unless_another_is_named():
    model, prompt = shaped("decoder")
    with torch.no_grad():
        assert attribute_inputs(model, prompt, method="gradient").target == int(prompt.run(model)[0, -1].argmax())
    assert attribute_inputs(model, prompt, method="gradient", target=4).target == 4


def test_a_masked_language_model_is_explained_at_its_mask():
    tokenizer = train_tokenizer(C.SubwordTokenizer(kind="wordpiece", vocab=560), [TEXT])
    model = writer(mask="full", tokenizer=tokenizer)
    prompt = read_prompt(model, "the [MASK] sat on")
    found = attribute_inputs(model, prompt, method="occlusion")

    assert prompt.first[0, found.position] == tokenizer.special_ids["mask"]
    assert found.values[found.position] == 0  # the mask is what tokens are replaced by
    with pytest.raises(ConfigError, match=r"masks at \[\d+, \d+\]; say which"):
        attribute_inputs(model, "the [MASK] sat on the [MASK]")


IDS = torch.tensor([3, 1, 4, 1, 5])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "gradients"}, r"no attribution 'gradients'.*did you mean 'gradient'"),
        ({"score": "odds"}, "no score 'odds'"),
        ({"steps": 3}, "no setting 'steps'"),
        ({"position": 5}, "5 is no token of a prompt of 5"),
        ({"target": 23}, "23 is outside of the 23 outputs"),
        ({"target": "cat"}, "no tokenizer"),
        ({"baseline": "mask"}, "no mask token"),
        ({"baseline": 23}, "outside the vocabulary"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_a_sentence(given, words):
    with pytest.raises(ConfigError, match=words):
        attribute_inputs(SHAPES["decoder"].model(), IDS, **given)


def test_shapes_without_a_target_and_several_rows_are_refused():
    towers, vit, decoder = (SHAPES[name].model() for name in ("towers", "vit", "decoder"))
    image = torch.randn(1, 3, 6, 6)
    with pytest.raises(ConfigError, match=r"explain one of them, model.towers\[0\]"):
        attribute_inputs(towers, IDS)
    with pytest.raises(ConfigError, match="two rows|2 rows"):
        attribute_inputs(decoder, IDS.repeat(2, 1))
    with pytest.raises(ConfigError, match="'mask' must be zero or mean"):
        attribute_inputs(vit, image, baseline="mask")
    with pytest.raises(ConfigError, match="no class 'cat'"):
        attribute_inputs(vit, image, target="cat")
    c = C.Transformer(embed=C.TextEmbedding(vocab=7), head=C.NoHead(),
                      trunk=C.Trunk(dim=8, depth=1, attention=C.Attention(heads=2)))  # fmt: skip
    with pytest.raises(ConfigError, match="neither with words nor with classes"):
        attribute_inputs(Model(c), IDS)


def test_a_tower_is_explained_alone():
    tower = SHAPES["towers"].model().towers[1]
    found = attribute_inputs(tower, torch.tensor([3, 1, 22, 4, 5]), target=1)  # 22 ends the text

    assert torch.equal(found.values[3:], torch.zeros(2, dtype=torch.float64))
    assert found.error < 0.01
