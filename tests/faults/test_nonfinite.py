"""A loss or a gradient that is no number: the step is left out and named, the weights stay finite, the run goes on."""

import json
import math
import signal
from importlib import import_module

import pytest
import torch
from faults.trials import CHANGES
from training.builders import RECIPE, TEXT, lines

from regard import zoo
from regard.hub import weights
from regard.training.api import fit, resume_fit
from regard.training.optim.optimizer import OptimizerGroup

LOOP = import_module("regard.training.loop")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe that keeps every step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(import_module("regard.training.validation"), "SHORT", 5)
    monkeypatch.setattr("regard.training.api.describe_run", lambda run: {})
    monkeypatch.setattr(
        "regard.training.diagnostics.TrainingDiagnostics.look", lambda self, step: {}
    )  # it asks for gradients too
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return lambda *more: zoo.read_recipe(
        "recipe.toml", [*CHANGES, "train.save_every=1", "train.keep_checkpoints=12", *more]
    )


def counted(call, at, change):
    """A function whose result is changed at one of its calls."""
    calls = 0

    def poisoned(*args):
        nonlocal calls
        calls += 1
        return change(call(*args)) if calls == at else call(*args)

    return poisoned


def poison_loss(monkeypatch, at, value):
    monkeypatch.setattr(LOOP, "combine_losses", counted(LOOP.combine_losses, at, lambda loss: loss * value))


def poison_gradient(monkeypatch, at, value):
    def spoil(grads):
        grads[3].view(-1)[1] = value
        return grads

    monkeypatch.setattr(OptimizerGroup, "gradients", counted(OptimizerGroup.gradients, at, spoil))


def tensors(run, step):
    place = run / f"checkpoints/step-{step:06d}"
    found = [weights.load_tensors_lazy(place / name) for name in ("model.safetensors", "train/optim.safetensors")]
    return {name: tensor for each in found for name, tensor in each.items()}


def assert_left_out(run, step):
    """Nothing was learned from that step, something from every other, and the log names it."""
    skipped = [line["step"] for line in lines(run / "log.jsonl") if line.get("skipped")]
    assert skipped == [step]
    for number in range(2, 13):
        before, after = tensors(run, number - 1), tensors(run, number)
        assert all(tensor.isfinite().all() for tensor in after.values())
        assert all(torch.equal(before[name], after[name]) for name in after) is (number == step), number


@pytest.mark.slow
@pytest.mark.parametrize("poison, value", [
    (poison_loss, math.nan), (poison_loss, -math.inf), (poison_gradient, math.nan), (poison_gradient, math.inf),
])  # fmt: skip
def test_a_step_that_is_no_number_is_left_out_and_named(recipe, tmp_path, monkeypatch, capsys, poison, value):
    poison(monkeypatch, 5, value)
    done = fit(recipe(), tmp_path / "run")
    said = capsys.readouterr().err

    assert_left_out(tmp_path / "run", 5)
    assert done.steps == 12 and math.isfinite(done.loss) and math.isfinite(done.eval_loss)
    assert "not finite" in said and " 5 " in next(line for line in said.splitlines() if "not finite" in line)
    text = (tmp_path / "run/log.jsonl").read_text()
    assert all(json.loads(line, parse_constant=pytest.fail) for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("micro", [9, 10])
def test_one_bad_part_of_an_accumulated_step_leaves_out_the_whole_step(recipe, tmp_path, monkeypatch, micro):
    poison_loss(monkeypatch, micro, math.nan)
    fit(recipe("train.gradient_accumulation=2"), tmp_path / "run", quiet=True)

    assert_left_out(tmp_path / "run", 5)


@pytest.mark.slow
def test_a_run_with_a_bad_step_that_is_stopped_goes_on_with_the_same_bits(recipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        poison_gradient(patch, 5, math.inf)
        fit(recipe(), tmp_path / "straight", quiet=True)
    with monkeypatch.context() as patch:
        poison_gradient(patch, 5, math.inf)
        patch.setattr(import_module("regard.training.trainer"), "train_steps", stopped(LOOP.train_steps, 7))
        assert fit(recipe(), tmp_path / "run", quiet=True).steps == 7
    resume_fit(tmp_path / "run", quiet=True)

    assert lines(tmp_path / "run/log.jsonl") == lines(tmp_path / "straight/log.jsonl")
    ours, theirs = tensors(tmp_path / "run", 12), tensors(tmp_path / "straight", 12)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def stopped(train, at):
    """The loop, with a signal in one of its steps."""

    def steps(*how):
        for step in train(*how):
            if step.number == at:
                signal.raise_signal(signal.SIGTERM)
            yield step

    return steps
