"""Path patching: direct paths add up, are those by hand, find a planted composition, and need a stream of sums."""

import dataclasses

import pytest
import torch
from lens.pairs import PATCHABLE, pair
from lens.planted_circuit import ANSWER, CLEAN, CORRUPTED, OTHER, planted_model, remove_norms
from torch.testing import assert_close

from regard import lens
from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.lens.patching.logit_metrics import bind_metric, run_metric
from regard.lens.patching.patched_runs import record_activations

METRIC = lens.logit_difference(1, 2)
PRE_NORM = [name for name in PATCHABLE if name != "encoder"]
WITH_MLP = [name for name in PRE_NORM if name != "attention only"]
ENCODED = ("translator", "t5", "layerwise", "captioner")


def change_of_head(model, layer, head, given, base):
    """What a head adds in one run less in the other, by the address that shows it."""
    found = []
    for prompt in (given, base):
        with torch.no_grad(), looking(model, f"trunk.{layer}.attn.head_out", heads=[head]) as seen:
            prompt.run(model)
        found.append(seen[f"trunk.{layer}.attn.head_out"][:, 0])
    return found[0] - found[1]


@pytest.mark.parametrize("name", PRE_NORM)
@pytest.mark.parametrize("reads", ["q", "k", "v"])
def test_a_path_into_a_head_is_the_one_by_hand(name, reads):
    model, clean, corrupted = pair(name, torch.float64)
    result = lens.patch_paths(model, clean, corrupted, metric=METRIC, senders=["0.1"], receivers=[f"1.2.{reads}"])
    moved = change_of_head(model, 0, 1, clean, corrupted)
    stream = record_activations(model, corrupted, "trunk.0.residual")["trunk.0.residual"] + moved
    norm, address = model.trunk.blocks[1 % len(model.trunk.blocks)].attn_norm, f"trunk.1.attn.{reads}"
    with (
        torch.no_grad(),
        looking(model, "trunk.1.attn.input", edit=lambda *_: norm(stream)),
        looking(model, address, heads=[2]) as seen,
    ):
        corrupted.run(model)
    with torch.no_grad(), looking(model, address, heads=[2], edit=lambda *_: seen[address]):
        by_hand = run_metric(model, corrupted, bind_metric(model, corrupted, METRIC)).mean()

    assert_close(result.grids[0].raw[0, 0], by_hand, atol=1e-12, rtol=0)


EVERY = [(name, f"attn.{letter}") for name in PRE_NORM for letter in "qkv"] + [(name, "cross.q") for name in ENCODED]


@pytest.mark.parametrize(("name", "reads"), EVERY)
def test_a_path_into_all_heads_of_a_layer_is_the_one_by_hand(name, reads):
    model, clean, corrupted = pair(name, torch.float64)
    receiver, (part, letter) = f"1.{reads}", reads.split(".")
    result = lens.patch_paths(model, clean, corrupted, metric=METRIC, senders=["0.1"], receivers=[receiver])
    before = "trunk.1.residual_attn" if part == "cross" else "trunk.0.residual"
    stream = record_activations(model, corrupted, before)[before] + change_of_head(model, 0, 1, clean, corrupted)
    norm = getattr(model.trunk.blocks[1 % len(model.trunk.blocks)], f"{part}_norm")
    with torch.no_grad(), looking(model, f"trunk.1.{part}.input", edit=lambda *_: norm(stream)):
        moved = record_activations(model, corrupted, f"trunk.1.{part}.{letter}")[f"trunk.1.{part}.{letter}"]
    with torch.no_grad(), looking(model, f"trunk.1.{part}.{letter}", edit=lambda *_: moved):
        by_hand = run_metric(model, corrupted, bind_metric(model, corrupted, METRIC)).mean()

    assert result.grids[0].columns == (receiver,)
    assert_close(result.grids[0].raw[0, 0], by_hand, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", WITH_MLP)
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_the_last_mlp_has_one_path_to_the_logits_and_patching_it_is_that_path(name, direction):
    model, clean, corrupted = pair(name, torch.float64)
    last = model.c.trunk.depth - 1
    path = lens.patch_paths(
        model, clean, corrupted, metric=METRIC, senders=[f"{last}.mlp"], receivers=["final"], direction=direction
    )
    given, base = (clean, corrupted) if direction == "denoise" else (corrupted, clean)
    address = f"trunk.{last}.mlp.out"
    value = record_activations(model, given, address)[address]
    with torch.no_grad(), looking(model, address, edit=lambda *_: value):
        whole = run_metric(model, base, bind_metric(model, base, METRIC)).mean()

    assert_close(path.grids[0].raw[0, 0], whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", [name for name in PRE_NORM if name != "shared"])  # its head has a norm of its own
def test_all_direct_paths_to_the_end_add_up_where_nothing_is_normed(name):
    """The last norm is taken away, so the logits are linear in the stream, and the stream is a sum of its parts."""
    model, clean, corrupted = pair(name, torch.float64)
    model.trunk.final_norm = None

    result = lens.patch_paths(model, clean, corrupted, metric=METRIC)

    assert not bool(result.effects.isnan().any())
    total = float(result.change("paths").sum())
    assert total == pytest.approx(result.clean - result.corrupted, abs=1e-10)


@pytest.mark.parametrize("name", WITH_MLP)
def test_a_path_into_an_mlp_is_the_one_by_hand(name):
    model, clean, corrupted = pair(name, torch.float64)
    result = lens.patch_paths(model, clean, corrupted, metric=METRIC, senders=["embed"], receivers=["0.mlp"])
    before = "trunk.0.residual_cross" if name in ENCODED else "trunk.0.residual_attn"
    base = record_activations(model, corrupted, "trunk.embed", before)
    stream = base[before] + record_activations(model, clean, "trunk.embed")["trunk.embed"] - base["trunk.embed"]
    norm = model.trunk.blocks[0].mlp_norm
    with torch.no_grad(), looking(model, "trunk.0.mlp.input", edit=lambda *_: norm(stream)):
        by_hand = run_metric(model, corrupted, bind_metric(model, corrupted, METRIC)).mean()

    assert_close(result.grids[0].raw[0, 0], by_hand, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", PRE_NORM)
def test_paths_between_runs_of_one_prompt_change_nothing(name):
    model, clean, _ = pair(name, torch.float64)
    receivers = ["1.0.q", "1.1.k", "1.2.v", "final"]
    receivers += ["1.mlp"] * (name in WITH_MLP) + ["1.cross.1.q"] * (name in ENCODED)
    result = lens.patch_paths(model, clean, clean, metric=METRIC, receivers=receivers)

    assert float(result.change("paths").nan_to_num().abs().max()) < 1e-12


@pytest.mark.spec("S153")
def test_the_composition_of_a_planted_circuit_is_one_path_of_many():
    receivers = [f"1.{head}.{reads}" for head in range(3) for reads in "qkv"] + ["1.mlp", "final"]
    result = lens.patch_paths(
        planted_model(), CLEAN, CORRUPTED, metric=lens.logit_difference(ANSWER, OTHER), receivers=receivers
    )
    grid, effects = result.grids[0], result.effects
    found = {(grid.rows[i], grid.columns[j]) for i, j in (effects.nan_to_num().abs() > 1e-12).nonzero().tolist()}

    assert found == {("0.1", "1.2.k"), ("1.2", "final")}
    assert float(effects[grid.rows.index("0.1"), grid.columns.index("1.2.k")]) == pytest.approx(1, abs=1e-12)


def test_another_answer_goes_by_the_value_and_not_by_the_key():
    """The token that is copied changes, and what comes before it stays."""
    result = lens.patch_paths(
        planted_model(), CLEAN, torch.tensor([[3, 5, 8, 2, 5]]), metric=lens.logit_difference(ANSWER, OTHER),
        receivers=["1.2.q", "1.2.k", "1.2.v", "final"], senders=["embed", "0.1"],
    )  # fmt: skip

    assert_close(result.effects, torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]]).double(), atol=1e-12, rtol=0)


def test_norms_that_do_nothing_leave_the_planted_model_its_sums():
    model = planted_model()
    remove_norms(model)
    with looking(model, "trunk.embed", "trunk.*.attn.out", "trunk.1.residual") as seen, torch.no_grad():
        model(CLEAN)

    assert_close(seen["trunk.embed"] + seen["trunk.0.attn.out"] + seen["trunk.1.attn.out"], seen["trunk.1.residual"])


def test_a_model_with_norms_after_the_sum_is_refused():
    model, clean, corrupted = pair("encoder")
    with pytest.raises(ConfigError, match="puts a norm after every sum, .* use lens.patch_activations"):
        lens.patch_paths(model, clean, corrupted, metric=METRIC)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"senders": ["0.9"]}, "trunk.0.attn has 3 heads, 0 to 2"),
        ({"senders": ["7.mlp"]}, "no block 7; the last of 2 is 1"),
        ({"senders": ["head 3"]}, "senders: no 'head 3'; write embed"),
        ({"senders": ["0.cross"]}, "block 0 has no cross"),
        ({"receivers": ["1.2"]}, "receivers: no '1.2'; write 1.2.q"),
        ({"receivers": ["1.7.q"]}, "has 3 heads"),
        ({"receivers": ["1.attn.2.q"]}, "receivers: no '1.attn.2.q'"),
        ({"receivers": ["1.attn"]}, r"receivers: no '1.attn'; .* 1.attn.k \(all heads\)"),
        ({"receivers": ["1.cross.q"]}, "block 1 has no cross"),
        ({"receivers": ["x.attn.q"]}, "receivers: no 'x.attn.q'"),
        ({"senders": ["1.2"], "receivers": ["1.0.q", "0.mlp"]}, "1.2 does not run before 1.0.q, 0.mlp"),
    ],
)
def test_a_component_that_is_not_there_is_refused(settings, words):
    model, clean, corrupted = pair("decoder")
    with pytest.raises(ConfigError, match=words):
        lens.patch_paths(model, clean, corrupted, metric=METRIC, **settings)


def test_keys_of_cross_attention_do_not_read_the_stream():
    model, clean, corrupted = pair("translator")
    for receiver in ("1.cross.0.k", "1.cross.k"):
        with pytest.raises(ConfigError, match="of cross-attention only q does"):
            lens.patch_paths(model, clean, corrupted, metric=METRIC, receivers=[receiver])


def test_paths_of_a_model_in_mixed_precision_are_those_in_fp32_but_for_rounding():
    model, clean, corrupted = pair("decoder")
    full = lens.patch_paths(model, clean, corrupted, metric=METRIC, receivers=["1.2.k", "final"])
    model.products, model.c = torch.bfloat16, dataclasses.replace(model.c, precision="mixed")
    mixed = lens.patch_paths(model, clean, corrupted, metric=METRIC, receivers=["1.2.k", "final"])

    assert_close(mixed.change("paths"), full.change("paths"), atol=0.05, rtol=0, equal_nan=True)
    assert float((mixed.change("paths") - full.change("paths")).nan_to_num().abs().max()) > 0


def test_a_trunk_without_feed_forwards_has_paths_from_its_heads_alone():
    model, clean, corrupted = pair("attention only")
    result = lens.patch_paths(model, clean, corrupted, metric=METRIC)

    assert result.grids[0].rows == ("embed", *(f"{layer}.{head}" for layer in range(2) for head in range(3)))
    with pytest.raises(ConfigError, match="block 0 has no feed-forward"):
        lens.patch_paths(model, clean, corrupted, metric=METRIC, senders=["0.mlp"])
