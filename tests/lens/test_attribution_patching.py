"""Attribution patching: exact where the model is linear, first order elsewhere, and compared with exact patches."""

import pytest
import torch
from lens.pairs import PATCHABLE, pair
from lens.planted_circuit import ANSWER, CLEAN, CORRUPTED, INDUCTION, OTHER, PREVIOUS, planted_model
from torch.testing import assert_close

from regard import lens
from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.lens.patching.attribution_patching import pearson, ranks
from regard.lens.patching.logit_metrics import bind_metric, run_metric
from regard.lens.patching.patched_runs import record_activations

METRIC = lens.logit_difference(1, 2)
EVERY = ("residual", "attn", "mlp", "heads", "head_positions")
LINEAR = [name for name in PATCHABLE if name not in ("encoder", "shared")]  # their heads have an activation


@pytest.mark.parametrize("name", [name for name in LINEAR if name != "attention only"])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_what_the_last_mlp_adds_is_estimated_exactly_without_the_last_norm(name, direction):
    model, clean, corrupted = pair(name, torch.float64)
    model.trunk.final_norm = None
    settings = dict(metric=METRIC, parts=("trunk.mlp",), direction=direction)
    estimate = lens.attribute_patches(model, clean, corrupted, **settings)
    exact = lens.patch_activations(model, clean, corrupted, **settings)

    assert (estimate.clean, estimate.corrupted) == pytest.approx((exact.clean, exact.corrupted), abs=1e-12)
    assert_close(estimate.grid("mlp").raw[-1], exact.grid("mlp").raw[-1], atol=1e-12, rtol=0)
    assert float(exact.change("mlp")[-1].abs().max()) > 1e-3


@pytest.mark.parametrize("name", PATCHABLE)
def test_a_small_step_towards_the_clean_run_is_the_estimate_made_small(name):
    """(metric with x + t (clean - x)) - metric over t goes to the estimate as t goes to zero."""
    model, clean, corrupted = pair(name, torch.float64)
    estimate = lens.attribute_patches(model, clean, corrupted, metric=METRIC, parts=("trunk.residual", "trunk.heads"))
    bound, step = bind_metric(model, corrupted, METRIC), 1e-5
    stream, head = (record_activations(model, clean, at)[at] for at in ("trunk.1.residual_attn", "trunk.1.attn.result"))
    grid = estimate.grid("residual")

    def slope(address, edit, **chosen):
        values = []
        for t in (step, -step):
            with torch.no_grad(), looking(model, address, edit=lambda _, x, t=t: edit(x, t), **chosen):
                values.append(run_metric(model, corrupted, bound).mean())
        return (values[0] - values[1]) / (2 * step)

    found = slope("trunk.1.residual_attn", lambda x, t: x + t * (stream[:, :1] - x), queries=slice(0, 1))
    assert_close(estimate.change("residual")[grid.rows.index("1.attn"), 0], found, atol=1e-7, rtol=1e-5)
    found = slope("trunk.1.attn.result", lambda x, t: x + t * (head[:, [2]] - x), heads=[2])
    row = estimate.grid("heads").rows.index("1.attn")
    assert_close(estimate.change("heads")[row, 2], found, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", PATCHABLE)
def test_estimates_fill_the_grids_of_exact_patches_and_leave_the_model_as_it_was(name):
    model, clean, corrupted = pair(name)
    model.train()
    parts = [part for part in EVERY if part != "mlp" or name != "attention only"]
    estimate = lens.attribute_patches(model, clean, corrupted, metric=METRIC, parts=parts)
    exact = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=parts, batch_tokens=10**6)

    assert [(grid.part, grid.rows, grid.columns) for grid in estimate.grids] == [
        (grid.part, grid.rows, grid.columns) for grid in exact.grids
    ]
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert model.training and model.hooks == ()
    table = estimate.compare(exact).table()
    assert [row[0] for row in table.rows] == [grid.part for grid in exact.grids]


def test_a_head_is_estimated_as_the_sum_of_its_positions():
    model, clean, corrupted = pair("grouped", torch.float64)
    estimate = lens.attribute_patches(model, clean, corrupted, metric=METRIC, parts=("heads", "head_positions"))

    summed = estimate.change("head_positions").sum(1).view(2, 6)
    assert_close(summed, estimate.change("heads"), atol=1e-12, rtol=0)


def test_the_planted_heads_have_the_largest_estimates():
    estimate = lens.attribute_patches(
        planted_model(), CLEAN, CORRUPTED, metric=lens.logit_difference(ANSWER, OTHER), parts=("heads",)
    )
    found = estimate.effect("heads")

    assert {divmod(i, 3) for i in found.flatten().abs().topk(2).indices.tolist()} == {PREVIOUS, INDUCTION}
    assert float(found[INDUCTION]) == pytest.approx(1, abs=1e-12)
    assert int((found.abs() > 1e-12).sum()) == 2


def test_equal_numbers_share_a_rank_and_a_correlation_is_that_of_torch():
    x = torch.tensor([1.0, 4.0, 4.0, 2.0, -1.0, 0.5, 4.0])
    y = torch.tensor([0.3, 2.0, 2.5, 2.5, -3.0, 0.5, 1.0])

    assert ranks(x).tolist() == [3, 6, 6, 4, 1, 2, 6]
    assert ranks(y).tolist() == [2, 5, 6.5, 6.5, 1, 3, 4]
    assert pearson(x, y) == pytest.approx(float(torch.corrcoef(torch.stack([x, y]))[0, 1]))
    assert pearson(torch.ones(3), x[:3]) != pearson(torch.ones(3), x[:3])  # what does not vary correlates with nothing


def test_a_comparison_of_a_result_with_itself_agrees_and_with_another_prompt_is_refused():
    model, clean, corrupted = pair("decoder")
    estimate = lens.attribute_patches(model, clean, corrupted, metric=METRIC)
    exact = lens.patch_activations(model, clean, corrupted, metric=METRIC)
    [own] = estimate.compare(estimate).rows
    [row] = estimate.compare(exact).rows

    assert (own.pearson, own.spearman, own.worst) == pytest.approx((1, 1, 0))
    assert 0.5 < row.pearson < 1 and row.worst > 0
    shorter = lens.patch_activations(model, clean.first[:, :5], corrupted.first[:, :5], metric=METRIC)
    with pytest.raises(ConfigError, match="estimate and measure the same prompts"):
        estimate.compare(shorter)
