"""Health: what it foretells happens, what it looks at stays as it was."""

import json
import math

import pytest
import torch
from training.builders import KINDS, advanced, assert_same, bits, copied

from regard.lens.attention_maps import attention_views
from regard.lens.heads import relative_entropy
from regard.training.api import fit
from regard.training.diagnostics import TrainingDiagnostics, layer_of, peak_lr_factor
from regard.training.loop import train_steps
from regard.training.run import Run

SMALL = ["train.batch_size=3", "model.dropout=0.0", "train.steps=40"]  # a batch is looked at whole
ALL = {**KINDS, "adafactor": ["train.optimizer.kind=adafactor"], "clipped": ["train.max_grad_norm=0.01"]}


@pytest.fixture
def run(recipe):
    return lambda *changes: Run.from_recipe(recipe(*SMALL, *changes))


def weights(run):
    """The weights that are moved, by layer."""
    found = {}
    for name, weight in run.optimizer.own.items():
        found.setdefault(layer_of(name), []).append(weight.detach().float().flatten())
    return {name: torch.cat(some) for name, some in found.items()}


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "accumulated"])
def test_an_update_is_what_the_next_step_moves(run, kind):
    made = run(*ALL[kind])
    advanced(made, 4)
    told, before = TrainingDiagnostics(made).look(4)["layers"], copied(weights(made))
    advanced(made, 1)

    for name, now in weights(made).items():
        share = float((now - before[name]).norm() / before[name].norm())
        assert told[name]["update"] == pytest.approx(share, rel=2e-3), name
        assert told[name]["weight"] == pytest.approx(float(before[name].norm()), rel=2e-3)


@pytest.mark.parametrize("kind", ["adamw", "llama", "mixed"])
def test_gradients_by_layer_are_together_the_step_s_norm_and_the_loss_its_loss(run, kind):
    made = run(*ALL[kind], "train.max_grad_norm=none")
    advanced(made, 3)
    told = TrainingDiagnostics(made).look(3)
    step = next(train_steps(made))
    norms = [size["gradient"] for size in told["layers"].values()]

    assert math.hypot(*norms) == pytest.approx(float(step.norm), rel=2e-3)
    assert told["loss"] == pytest.approx(float(step.loss), rel=2e-3)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", ALL)
def test_looking_changes_no_bit_of_a_run(run, kind, steps):
    made, twin = (run(*ALL[kind], "model.dropout=0.1") for _ in range(2))
    advanced(made, steps), advanced(twin, steps)
    drawn = torch.get_rng_state()
    TrainingDiagnostics(made).look(steps)

    assert_same(bits(made), bits(twin))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [float(group["lr"]) for group in made.optimizer.groups()] == [
        float(group["lr"]) for group in twin.optimizer.groups()
    ]
    assert all(weight.grad is None for weight in made.model.parameters())
    assert all(part.training for part in made.model.modules())
    assert advanced(made, 3) == advanced(twin, 3)


def test_a_run_that_goes_on_from_its_checkpoint_says_the_same(run, tmp_path):
    made, again = run("model.dropout=0.1"), run("model.dropout=0.1")
    advanced(made, 5)
    made.save(tmp_path / "step-000005")
    again.load(tmp_path / "step-000005")

    assert json.dumps(TrainingDiagnostics(again).look(5)) == json.dumps(TrainingDiagnostics(made).look(5))


@pytest.mark.spec("S156")
def test_the_entropy_of_a_head_is_one_where_it_looks_at_all_alike_and_zero_where_at_one(run):
    made = run()
    first, second = made.model.trunk.blocks
    with torch.no_grad():
        first.attn.qkv.weight[:24] = 0  # no questions, so no preferences
        first.attn.qkv.bias[:24] = 0
        second.attn.qkv.weight[:24] *= 1e6
    told = TrainingDiagnostics(made).look(0)["heads"]

    assert told["trunk.0.attn"] == pytest.approx([1.0] * 3, abs=1e-3)
    assert all(width < 0.01 for width in told["trunk.1.attn"])
    ids = made.data.batch(0)[:1, :-1]
    assert told["trunk.1.attn"] == pytest.approx(
        relative_entropy(attention_views(made.model, ids)[1]).tolist(), rel=1e-3, abs=1e-4
    )


@pytest.mark.slow
@pytest.mark.spec("S156")
def test_the_log_of_a_run_has_every_layer_and_every_head(recipe, desk):
    fit(recipe("train.eval_every=2", "train.steps=5"), desk / "run", quiet=True)
    lines = [json.loads(line) for line in (desk / "run" / "log.jsonl").read_text().splitlines()]
    told = {line["step"]: line["health"] for line in lines if "health" in line}

    assert list(told) == [2, 4]
    for health in told.values():
        assert {"embed", "trunk.0", "trunk.1"} <= health["layers"].keys()
        assert {where: len(heads) for where, heads in health["heads"].items()} == {"trunk.0.attn": 3, "trunk.1.attn": 3}
        assert all(0 <= width <= 1 for heads in health["heads"].values() for width in heads)


def said(made):
    health = TrainingDiagnostics(made)
    health.look(made.step)
    return " ".join(health.warnings())


def test_a_healthy_run_is_not_warned_of(run):
    made = run("train.optimizer.lr=1e-3")
    assert TrainingDiagnostics(made).warnings() == []
    advanced(made, 4)

    assert said(made) == ""


@pytest.mark.spec("S159")
def test_a_step_that_moves_too_much_is_told(run):
    made = run("train.optimizer.lr=1")
    advanced(made, 1)

    assert "of the weights; about 0.1% is usual, so lower train.optimizer.lr" in said(made)


def test_a_layer_that_gets_no_gradient_is_told(run):
    made = run("train.optimizer.lr=1e-3")
    made.model.trunk.blocks[1].register_forward_hook(lambda block, given, out: given[0])

    assert "no gradient reaches trunk.1, so nothing is learned there" in said(made)


def test_collapsed_heads_are_told(run):
    made = run("train.optimizer.lr=1e-3")
    made.model.trunk.blocks[0].attn.qkv.weight.data.mul_(1e4)

    assert "every head of trunk.0.attn attends to a single token" in said(made)


def test_numbers_that_are_none_are_words_in_json(run):
    made = run("train.optimizer.lr=1e-3")
    made.model.trunk.blocks[0].mlp.up.weight.data.fill_(torch.nan)
    told = TrainingDiagnostics(made).look(0)

    assert json.loads(json.dumps(told, allow_nan=False))["loss"] == "nan"
    assert "are not finite; lower train.optimizer.lr" in said(made)


def test_a_learning_rate_that_has_come_down_is_no_layer_that_stands_still(run):
    made = run("train.schedule.kind=cosine", "train.optimizer.lr=1e-3")
    made.step = 39

    assert TrainingDiagnostics(made).look(39)["layers"]["trunk.0"]["update"] < 1e-4 and said(made) == ""


@pytest.mark.parametrize("schedule, most", [
    (["kind=constant", "warmup=9"], 1.0), (["kind=cosine", "warmup=80"], 0.5), (["kind=wsd", "warmup=0"], 1.0),
    (["kind=noam", "warmup=16"], 12**-0.5 / 4),
])  # fmt: skip
def test_the_peak_is_the_highest_factor_of_any_step(run, schedule, most):
    made = run(*(f"train.schedule.{word}" for word in schedule))
    every = max(made.schedule(step, (step - 1) / 40) for step in range(1, 41))

    assert peak_lr_factor(made) == pytest.approx(every) == pytest.approx(most)


def test_what_is_frozen_is_not_looked_at(run):
    made = run("train.freeze=['trunk.blocks.0']")
    told = TrainingDiagnostics(made).look(0)["layers"]

    assert "trunk.0" not in told and "trunk.1" in told
