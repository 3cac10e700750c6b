"""Training on a GPU: one captured graph a step learns what the kernels one by one learn, and goes on after a save."""

from itertools import islice

import pytest
import torch

from regard.training.loop import CapturedStep, StepRunner, train_steps
from regard.training.optim.optimizer import OptimizerGroup
from regard.training.run import Run
from regard.zoo.preset import preset
from regard.zoo.recipe import read_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:TensorFloat32")]  # exact fp32 is meant here

CHANGES = [
    "train.device=cuda",
    "train.steps=24",
    "train.compile=true",
    "model.dim=64",
    "model.depth=2",
    "train.schedule.warmup=2",
]
ADAFACTOR = ["train.optimizer.kind=adafactor", "train.optimizer.lr=0.05", "train.precision=fp32", "train.ema_decay=0.9"]
DEEP = ["model.dropout=0.2", "train.activation_checkpointing=true", "train.precision=mixed"]
MUON = ["model.preset=lab", "train.optimizer.kind=muon", "train.precision=mixed"]


def run_of(*changes):
    return Run.from_recipe(read_recipe("shakespeare-nano", [*CHANGES, *changes]))


def losses(run, steps=None):
    return [float(step.loss) for step in islice(train_steps(run), steps)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


WAYS = {"adamw fp32": ["train.precision=fp32"], "muon mixed": MUON, "adafactor, averaged": ADAFACTOR}


@pytest.mark.parametrize("more", WAYS.values(), ids=WAYS)
def test_a_captured_step_learns_what_kernels_one_by_one_learn(more, monkeypatch):
    captured = losses(run_of(*more))
    monkeypatch.setattr(CapturedStep, "AFTER", 10**9)
    one_by_one = losses(run_of(*more))

    assert captured == pytest.approx(one_by_one, abs=2e-3)
    assert captured[-1] < captured[0] - 0.5


def test_a_run_that_recomputes_learns_with_or_without_a_graph():
    run, said = run_of(*DEEP), []
    found = [float(step.loss) for step in train_steps(run, said.append)]

    assert found[-1] < found[0] - 0.5, said


@pytest.mark.parametrize(
    "more", [[], ["train.pack=true"], ["train.batch_tokens=2048"]], ids=["windows", "packed", "rows"]
)
def test_every_way_of_reading_learns(more):
    found = losses(run_of("train.compile=auto", "train.context=64", *more))

    assert all(loss == loss for loss in found) and found[-1] < found[0]


def test_a_batch_that_leaps_is_not_learned_from(monkeypatch):
    """On the device, without a look from the host: the same weights before and after."""
    run = run_of("train.compile=false", "train.steps=60", "train.guard.spike_sigmas=4")
    steps = train_steps(run)
    list(islice(steps, 55))
    before = {name: weight.detach().clone() for name, weight in run.model.named_parameters()}
    monkeypatch.setattr(run.data, "batch", lambda step: torch.randint(65, (12, 65)))
    bad = next(steps)

    assert not bool(bad.taken)
    assert all(torch.equal(weight, before[name]) for name, weight in run.model.named_parameters())


def test_a_compiled_run_is_captured():
    run = run_of()
    advance = StepRunner(run, pytest.fail)
    for _ in range(CapturedStep.AFTER + 2):
        advance()
        run.step += 1

    assert isinstance(advance.run_step, CapturedStep) and advance.run_step.graph is not None and advance.settled


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


EXACT = ["train.compile=auto", "train.deterministic=true", "model.dropout=0.2"]
KINDS = {"windows": [], "packed": ["train.pack=true", "train.context=64"],
         "muon mixed, averaged": [*MUON, "train.ema_decay=0.9"],
         "adafactor, recomputed": ["train.optimizer.kind=adafactor", "train.activation_checkpointing=true"],
         "rows": ["train.batch_tokens=2048", "train.context=64", "train.precision=bf16"]}  # fmt: skip


@pytest.mark.parametrize("more", KINDS.values(), ids=KINDS)
def test_under_deterministic_settings_a_run_goes_on_bit_for_bit(more, tmp_path):
    straight = run_of(*EXACT, *more)
    every = losses(straight)
    half = run_of(*EXACT, *more)
    first = losses(half, 11)
    half.save(tmp_path / "half")
    again = run_of(*EXACT, *more)
    again.load(tmp_path / "half")

    assert first + losses(again) == every
    assert all(torch.equal(a, b) for a, b in zip(straight.model.parameters(), again.model.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["adamw", "muon", "adafactor"])
def test_gradients_that_are_no_numbers_move_nothing(kind):
    from regard import build

    settings = read_recipe("shakespeare-nano", [f"train.optimizer.kind={kind}"]).train.optimizer
    model = build(preset("lab", dim=32, depth=2, heads=2)).cuda()
    optimizer = OptimizerGroup(model, settings)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step(1.0)
    before = {name: weight.detach().clone() for name, weight in [*model.named_parameters(), *optimizer.state().items()]}
    next(model.parameters()).grad.fill_(float("nan"))
    norm, taken = optimizer.step(1.0)

    assert not norm.isfinite() and not bool(taken)
    for name, weight in [*model.named_parameters(), *optimizer.state().items()]:
        assert torch.equal(before[name], weight), name
