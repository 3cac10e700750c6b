"""Training on images on a GPU: rows that are all alike make one captured graph a step, as windows of a text do."""

from itertools import islice

import pytest

from regard.train import Run, train
from regard.train.capture import Captured
from regard.train.loop import Advance
from regard.zoo import read_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:TensorFloat32")]  # exact fp32 is meant here

CHANGES = ["train.device=cuda", "train.steps=24", "train.compile=true", "train.schedule.warmup=2"]


def run_of(*changes):
    return Run.from_recipe(read_recipe("digits", [*CHANGES, *changes]))


def losses(run, steps=None):
    return [float(step.loss) for step in islice(train(run), steps)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("more", [[], ["train.augment={mixup=0.4}"], ["train.precision=mixed"]],
                         ids=["plain", "mixed rows", "mixed precision"])
def test_a_captured_step_on_images_learns_what_kernels_one_by_one_learn(more, monkeypatch):
    captured = losses(run_of("model.dropout=0", *more))
    monkeypatch.setattr(Captured, "AFTER", 10**9)
    one_by_one = losses(run_of("model.dropout=0", *more))

    assert captured == pytest.approx(one_by_one, abs=5e-3)


def test_a_compiled_run_on_images_is_captured():
    run = run_of()
    advance = Advance(run, pytest.fail)
    for _ in range(Captured.AFTER + 2):
        advance()
        run.step += 1

    assert isinstance(advance.way, Captured) and advance.way.graph is not None
