"""Is attention an explanation: rank correlations, and models whose answer is known because their weights are set."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from lens.planted import GIVEN, KEY, attend, straight
from lens.small_models import SHAPES
from scipy import stats
from torch.testing import assert_close

from regard.config.errors import ConfigError, DataError
from regard.lens.attribution.explanation_agreement import COMPARED, compare_explanations
from regard.lens.attribution.input_attribution import attribute_inputs
from regard.lens.attribution.rank_correlation import kendall, ranks, spearman
from regard.lens.prompt import read_prompt

WALKED = [name for name in SHAPES if name != "towers"]
QUICK = {"max_steps": 28, "baseline": "mean"}


def prompts(name, count=3):
    """Rows of what a shape reads."""
    shape = SHAPES[name]
    torch.manual_seed(2)
    named = {key: table[:1] for key, table in shape.named.items()}
    model = shape.model()
    return model, [read_prompt(model, shape.reads()[0][:1], **named) for _ in range(count)]


# ---------------------------------------------------------------- ranks


@pytest.mark.parametrize(("ours", "theirs"), [(spearman, stats.spearmanr), (kendall, stats.kendalltau)])
@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlations_are_scipys(ours, theirs, ties):
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 17)
    x, y = ((x * 2).round(), (y * 2).round()) if ties else (x, y)

    assert_close(ours(x, y), torch.tensor([theirs(a, b).statistic for a, b in zip(x, y, strict=True)]).double())
    assert_close(ours(x[:, None], y), ours(y, x[:, None]))
    assert torch.isnan(ours(x, torch.ones(17))).all()


def test_ranks_begin_with_one_and_ties_share_their_mean():
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


# ---------------------------------------------------------------- planted models


def graded(wrong_head=False):
    """Tokens matter by their number: one head looks at them so, gathers the same of all, and writes the answer.

    With `wrong_head`, another head that writes nothing looks the other way round.
    """
    model = straight(heads=2)
    attend(model, 0, 0, 1.0)
    if wrong_head:
        attend(model, 0, 1, -3.0, gathers=False)
    with torch.no_grad():
        model.embed.tokens.weight[:, KEY] = torch.arange(9) / 3
        model.embed.tokens.weight[:, GIVEN] = 1.0
    return model


PLANTED = {
    "target": 0,
    "baseline": "zero",
    "methods": ("attention", "gradient_x_input", "integrated_gradients", "occlusion"),
}


def orders(count=10, length=7):
    return [torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:length] for seed in range(count)]


def test_where_one_head_is_the_explanation_every_method_agrees():
    found = compare_explanations(graded(), orders(), **PLANTED)

    assert_close(found.pairs, torch.ones_like(found.pairs))
    assert_close(found.by_head[:, 0], torch.ones_like(found.by_head[:, 0]))
    assert found.by_head[:, 1].isnan().all()  # it looks at everything alike, which is no order
    assert "is 0.0, at 1.00 on the other prompts" in found.sentence()
    assert "about as they agree with each other (1.00 against 1.00)" in found.sentence()


def test_where_attention_looks_elsewhere_it_is_said():
    found = compare_explanations(graded(wrong_head=True), orders(), **PLANTED)

    assert found.by_head[:, 0].min() > 0.99 and found.by_head[:, 1].max() < -0.99
    assert "is 0.0, at 1.00" in found.sentence()
    assert "no more like them than chance" in found.sentence()
    assert found.picture().values.shape == (1, 2)


# ---------------------------------------------------------------- laws


@pytest.mark.parametrize("correlation", ["spearman", "kendall"])
@pytest.mark.parametrize("name", WALKED)
def test_a_method_agrees_with_itself_and_two_with_each_other_either_way(name, correlation):
    model, rows = prompts(name, 2)
    side = "source" if SHAPES[name].named else "input"
    found = compare_explanations(model, rows, side=side, correlation=correlation, **QUICK)

    assert_close(found.pairs.diagonal(dim1=1, dim2=2), torch.ones(2, len(COMPARED), dtype=torch.float64))
    assert_close(found.pairs, found.pairs.mT)
    assert found.pairs.abs().max() <= 1 + 1e-9 and found.by_head.nan_to_num().abs().max() <= 1 + 1e-9
    assert len(found.heads) == found.by_head.shape[1] == model.c.trunk.depth * model.c.trunk.heads[0]


def test_methods_in_another_order_are_the_same_table_in_that_order():
    model, rows = prompts("decoder")
    given = ("attention", "gradient", "occlusion")
    found, turned = (compare_explanations(model, rows, methods=each) for each in (given, given[::-1]))

    assert_close(found.pairs, turned.pairs.flip(1, 2))


@pytest.mark.spec("S152")
@pytest.mark.parametrize("name", ["encoder", "decoder", "vit"])
def test_the_report_has_attention_with_gradient_and_ablation_side_by_side(name):
    model, rows = prompts(name, 4)
    methods = ("attention", "gradient", "occlusion")
    found = compare_explanations(model, rows, methods=methods)
    each = [[attribute_inputs(model, row, method=method).values.abs() for method in methods] for row in rows]
    seen = [row.first[0] != 0 if name == "encoder" else slice(None) for row in rows]
    theirs = torch.tensor([[stats.spearmanr(given[0][keep], other[keep]).statistic for other in given[1:]]
                           for given, keep in zip(each, seen, strict=True)], dtype=torch.float64)  # fmt: skip
    table = {(row[0], row[1]): row[2:] for row in found.table().rows}

    assert found.table().columns == ("method", "of", *methods)
    assert_close(torch.tensor(table["attention", "mean"][1:]).double(), theirs.mean(0), rtol=1e-5, atol=1e-6)
    assert_close(torch.tensor(table["attention", "spread"][1:]).double(), theirs.std(0), rtol=1e-5, atol=1e-6)
    assert table["attention", "prompts"] == (4, 4, 4)
    assert [row[0] for row in found.head_table().rows] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    columns = ("gradient", "occlusion", "ablation")
    assert found.head_table().columns == ("head", *(name for each in columns for name in (each, f"{each} spread")))
    assert f"{theirs.mean(0)[1]:.2f} ± {theirs.std(0)[1]:.2f}" in found.sentence()


@pytest.mark.spec("S152")
@pytest.mark.parametrize("name", ["decoder", "translator", "vit"])
def test_beside_its_agreement_stands_what_a_head_is_worth(name):
    """Ablation as zeros in the weights, and scipy's correlation of it with the agreement of every head."""
    model, rows = prompts(name, 4)
    side, part = ("source", "cross") if name == "translator" else ("input", "attn")
    methods = ("attention", "gradient", "occlusion")
    found = compare_explanations(model, rows, methods=methods, side=side)
    scores = [attribute_inputs(model, row, method="gradient") for row in rows]
    without = torch.zeros(4, len(found.heads), dtype=torch.float64)
    for place, (layer, head) in enumerate(found.heads):
        cut = copy.deepcopy(model)
        attention = getattr(cut.trunk.blocks[layer], part)
        with torch.no_grad():
            attention.out.weight.unflatten(1, (attention.heads, -1))[:, head] = 0
        without[:, place] = torch.tensor([
            attribute_inputs(cut, row, method="gradient", target=whole.target).score
            for row, whole in zip(rows, scores, strict=True)
        ])  # fmt: skip
    fall = torch.tensor([[whole.score] for whole in scores]).double() - without
    theirs = [stats.spearmanr(each, effect.abs()).statistic
              for each, effect in zip(found.by_head[..., 0], fall, strict=True)]  # fmt: skip
    mean = torch.tensor([row[-2] for row in found.head_table().rows])

    assert_close(found.effects, fall, atol=1e-5, rtol=0)
    assert_close(mean.double(), fall.mean(0), atol=1e-5, rtol=0)
    assert_close(torch.tensor(found.effect_table().rows[0][1:3]).double(),
                 torch.tensor([np.mean(theirs), np.std(theirs, ddof=1)]))  # fmt: skip
    assert_close(found.picture("ablation").values.flatten().double(), fall.mean(0), atol=1e-5, rtol=0)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_head_that_writes_nothing_is_worth_nothing_and_its_mean_is_no_loss():
    found = compare_explanations(graded(wrong_head=True), orders(), **PLANTED)
    alike = compare_explanations(straight(heads=2), orders(), ablation="mean", **PLANTED | {"methods": ("gradient",)})

    assert found.effects[:, 0].min() > 0.1 and found.effects[:, 1].abs().max() < 1e-6
    assert "Without head 0.0 the logit falls by" in found.sentence()
    assert alike.effects.abs().max() < 1e-6 and alike.by_head.isnan().all()  # looks at all alike: no order, no effect
    assert found.to_json()["ablation"] == "zero" and alike.to_json()["ablation"] == "mean"


def test_whether_heads_that_agree_matter_more_is_said_where_prompts_are_enough():
    """Numbers laid out so that agreement goes with the effect, goes against it, or one way and the other by turns."""
    found = compare_explanations(graded(), orders(), **PLANTED)
    torch.manual_seed(0)
    agreement, turns = torch.randn(10, 6, 3), torch.tensor([1.0, -1.0]).repeat(5)[:, None]
    agreement[:, 5] = torch.nan
    with_it, sizes = agreement[..., 1].exp().nan_to_num(9.0), {"heads": tuple((0, i) for i in range(6))}
    more, less, none = (replace(found, effects=each, by_head=agreement, **sizes)
                        for each in (with_it, -1 / with_it, with_it**turns))  # fmt: skip

    assert "heads that agree with integrated gradients matter more (1.00 ± 0.00 over heads)" in more.sentence()
    assert "heads that agree with integrated gradients matter less (-1.00 ± 0.00 over heads)" in less.sentence()
    assert "does not tell how much it matters" in none.sentence()
    assert len(none.head_table(4).rows) == 4 and "4 of 6 heads" in none.head_table(4).note
    assert f"{none.by_head[:, 0, 1].mean():.2f} ± {none.by_head[:, 0, 1].std():.2f}" in str(none)


def test_heads_without_an_order_are_left_white_in_the_picture(tmp_path):
    found = compare_explanations(graded(), orders(2), **PLANTED)

    assert math.isnan(found.picture().values[0, 1]) and found.picture().cells[0][1] in ("+0", "-0")
    assert "<svg" in found.plot(str(tmp_path / "agreement.svg"))


def test_tokens_that_the_explained_place_cannot_see_are_no_part_of_it():
    model, _ = prompts("decoder")
    ids = torch.arange(1, 10)
    short = compare_explanations(model, [ids[:6]], target=3, methods=("attention", "occlusion"))
    longer = compare_explanations(model, [ids], target=3, position=5, methods=("attention", "occlusion"))

    assert_close(short.pairs, longer.pairs)


def test_prompts_that_are_too_short_are_counted():
    model, rows = prompts("decoder")
    found = compare_explanations(model, [*rows, torch.tensor([3, 4])], methods=("attention", "gradient"))

    assert (len(found.pairs), found.skipped) == (3, 1)
    with pytest.raises(DataError, match="none has 3 inputs"):
        compare_explanations(model, [torch.tensor([3, 4])], methods=("attention", "gradient"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"methods": ("attention", "saliency")}, "no 'saliency' to compare"),
        ({"methods": ("attention",)}, "compared with something else"),
        ({"correlation": "pearson"}, "no 'pearson' to compare"),
        ({"ablation": "none"}, "no 'none' to compare; there are zero, mean"),
        ({"side": "source"}, "'source' is not there"),
        ({"prompts": []}, "at least one"),
        ({"prompts": "the cat"}, "give a list"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(given, words):
    model, rows = prompts("decoder")
    with pytest.raises((ConfigError, DataError), match=words):
        compare_explanations(model, given.pop("prompts", rows), **given)
