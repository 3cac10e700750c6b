"""Training on a GPU without words or without attention: images, graphs, series, pairs; recurrent stacks."""

from itertools import islice
from unittest.mock import patch

from cases import cases
from regard.training.loop import CapturedStep, StepRunner, train_steps
from regard.training.run import Run
from regard.zoo.recipe import read_recipe

CHANGES = ["train.device=cuda", "train.steps=24", "train.compile=true", "train.schedule.warmup=2"]


def run_of(*changes):
    return Run.from_recipe(read_recipe("digits", [*CHANGES, *changes]))


def losses(run, steps=None):
    return [float(step.loss) for step in islice(train_steps(run), steps)]


@cases(more=[(), ("train.augment={mixup=0.4}",), ("train.precision=mixed",)])
def test_a_captured_step_on_images_learns_what_kernels_one_by_one_learn(more):
    captured = losses(run_of("model.dropout=0", *more))
    with patch.object(CapturedStep, "AFTER", 10**9):
        one_by_one = losses(run_of("model.dropout=0", *more))

    assert max(abs(a - b) for a, b in zip(captured, one_by_one, strict=True)) < 5e-3


def fail(said):
    raise AssertionError(said)


def test_a_compiled_run_on_images_is_captured():
    run = run_of()
    advance = StepRunner(run, fail)
    for _ in range(CapturedStep.AFTER + 2):
        advance()
        run.step += 1

    assert isinstance(advance.run_step, CapturedStep) and advance.run_step.graph is not None


@cases(recipe=["lstm", "gru", "cnn"])
def test_recurrent_and_convolutional_models_train(recipe):
    found = losses(Run.from_recipe(read_recipe(recipe, ["train.device=cuda", "train.steps=60"])))

    assert found[-1] < found[0] - 0.3


@cases(recipe=["cora", "emoji-clip", "emoji-caption"])
def test_graphs_towers_and_captions_train(recipe):
    found = losses(Run.from_recipe(read_recipe(recipe, ["train.device=cuda", "train.steps=40"])))

    assert sum(found[-5:]) < sum(found[:5])
