"""Training on a GPU: one captured graph a step learns what the kernels one by one learn, and goes on after a save."""

from itertools import islice

import pytest
import torch

from regard.train import Run, train
from regard.train.capture import Captured
from regard.train.loop import Advance
from regard.train.optim import Optimizer
from regard.zoo import preset, read_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:TensorFloat32")]  # exact fp32 is meant here

CHANGES = ["train.device=cuda", "train.steps=24", "train.compile=true", "model.dim=64", "model.depth=2",
           "train.schedule.warmup=2"]
MUON = ["model.preset=lab", "train.optimizer.kind=muon", "train.precision=mixed"]


def run_of(*changes):
    return Run.from_recipe(read_recipe("shakespeare-nano", [*CHANGES, *changes]))


def losses(run, steps=None):
    return [float(step.loss) for step in islice(train(run), steps)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("more", [["train.precision=fp32"], MUON], ids=["adamw fp32", "muon mixed"])
def test_a_captured_step_learns_what_kernels_one_by_one_learn(more, monkeypatch):
    captured = losses(run_of(*more))
    monkeypatch.setattr(Captured, "AFTER", 10**9)
    one_by_one = losses(run_of(*more))

    assert captured == pytest.approx(one_by_one, abs=2e-3)
    assert captured[-1] < captured[0] - 0.5


def test_a_compiled_run_is_captured():
    run = run_of()
    advance = Advance(run, pytest.fail)
    for _ in range(Captured.AFTER + 2):
        advance()
        run.step += 1

    assert isinstance(advance.way, Captured) and advance.way.graph is not None and advance.settled


@pytest.mark.parametrize("more", [["model.dropout=0.2"], [*MUON, "model.dropout=0.2"]], ids=["adamw", "muon"])
def test_two_runs_with_one_seed_lose_the_same_and_draw_anew_each_step(more):
    first, second = losses(run_of(*more)), losses(run_of(*more))

    assert first == pytest.approx(second, abs=2e-3)  # sums by atomic additions have no order
    assert len(set(first)) == len(first)


def test_a_run_goes_on_where_it_was_saved(tmp_path):
    straight = losses(run_of("model.dropout=0.2", "train.precision=fp32"))
    half = run_of("model.dropout=0.2", "train.precision=fp32")
    first = losses(half, 12)
    half.save(tmp_path / "half")
    again = run_of("model.dropout=0.2", "train.precision=fp32")
    again.load(tmp_path / "half")

    assert first + losses(again) == pytest.approx(straight, abs=1e-3)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_gradients_that_are_no_numbers_move_nothing(kind):
    from regard import build

    settings = read_recipe("shakespeare-nano", [f"train.optimizer.kind={kind}"]).train.optimizer
    model = build(preset("lab", dim=32, depth=2, heads=2)).cuda()
    optimizer = Optimizer(model, settings)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step(1.0)
    before = {name: weight.detach().clone() for name, weight in [*model.named_parameters(), *optimizer.state().items()]}
    next(model.parameters()).grad.fill_(float("nan"))
    norm = optimizer.step(1.0)

    assert not norm.isfinite()
    for name, weight in [*model.named_parameters(), *optimizer.state().items()]:
        assert torch.equal(before[name], weight), name
