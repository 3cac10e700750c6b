"""SIGTERM and Ctrl-C at any moment: what was learned is saved within seconds, and the run ends with the same bits."""

import shutil
import signal
from importlib import import_module

import pytest
from faults.trials import CHANGES, count, damaged
from training.builders import lines

from regard import zoo
from regard.training.api import fit, resume_fit

SOON = 5.0  # seconds
CODES = {"SIGINT": 130, "SIGTERM": 143}
MOMENTS = {
    "the first step": ("regard.training.loop:StepRunner.step", 1),
    "a later step": ("regard.training.loop:StepRunner.step", 8),
    "an evaluation": ("regard.training.trainer:validate", 2),
    "a sample": ("regard.training.validation:sample_texts", 3),
    "a save": ("regard.training.trainer:Trainer.write_checkpoint", 2),
    "the last save": ("regard.training.trainer:Trainer.write_checkpoint", 4),
    "the last evaluation": ("regard.training.trainer:validate", 6),
    "the last sample": ("regard.training.validation:sample_texts", 6),
}


def assert_stopped_in_time(end, kind):
    assert end.code == CODES[kind] and end.late is not None and end.late < SOON, end
    assert "which is saved" in end.sentence and "Traceback" not in end.said, end


def assert_goes_on(desk, run, *ends):
    assert damaged(run) == [], ends
    again = desk.restart(run)
    assert again.code == 0, (ends, again)
    desk.assert_nothing_lost(run, ends)
    shutil.rmtree(run.parent)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_is_obeyed_in_time_and_loses_nothing(desk, moment, kind):
    run, (name, at) = desk.new(), MOMENTS[moment]
    end = desk.train(run, calls={name: (at, kind)})

    assert_stopped_in_time(end, kind)
    assert_goes_on(desk, run, end)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CODES)
def test_a_signal_at_any_write_loses_nothing(desk, kind, figures):
    points = desk.train(desk.new()).points
    begun = points.index("open run/samples.jsonl") + 1
    over = len(points) - points[::-1].index("write run/samples.jsonl")
    chosen = range(begun, len(points) + 1, max(1, len(points) // count(80, 5)))
    for at in chosen:
        run = desk.new()
        end = desk.train(run, strike={"at": at, "how": kind})
        if at <= over:  # afterwards the run is saved and done, and a signal just ends the process
            assert_stopped_in_time(end, kind)
        assert_goes_on(desk, run, points[at - 1], end)

    figures(signals=len(chosen))


@pytest.mark.slow
def test_a_run_stopped_at_every_step_loses_nothing(desk, figures):
    run = desk.new()
    ends = [desk.restart(run, calls={"regard.training.loop:StepRunner.step": (1, "SIGTERM")}) for _ in range(11)]

    assert [end.code for end in ends] == [143] * 11, ends
    assert_goes_on(desk, run, *ends)
    figures(signals=11, slowest=f"{max(end.late for end in ends):.2f} s")


@pytest.mark.slow
def test_a_run_made_longer_is_evaluated_where_it_first_ended(desk):
    run = desk.new()
    assert desk.train(run, "train.steps=8").code == 0
    assert desk.resume(run, "train.steps=12").code == 0

    desk.assert_nothing_lost(run)


def test_a_signal_does_not_wait_for_the_rest_of_an_evaluation(tmp_path, monkeypatch, desk):
    """However long it would take; resuming makes it again, in its place."""
    monkeypatch.chdir(desk.place)
    monkeypatch.setenv("REGARD_CACHE", str(desk.place / "cache"))
    module, asked = import_module("regard.training.data.read"), []
    batches = module.TextWindows.batches

    def many(*how):
        for number in range(1000):
            asked.append(number)
            if number == 2:
                signal.raise_signal(signal.SIGTERM)
            yield from batches(*how)

    monkeypatch.setattr(import_module("regard.training.validation"), "SHORT", 5)
    monkeypatch.setattr("regard.training.api.describe_run", lambda run: {})  # what a step would cost here
    with monkeypatch.context() as patch:
        patch.setattr(module.TextWindows, "batches", many)
        stopped = fit(zoo.read_recipe("recipe.toml", CHANGES), tmp_path / "run", quiet=True)
    resume_fit(tmp_path / "run", quiet=True)

    assert (stopped.interrupted, stopped.steps, len(asked)) == (signal.SIGTERM, 2, 3)
    assert lines(tmp_path / "run/log.jsonl") == lines(desk.straight / "log.jsonl")
    assert lines(tmp_path / "run/samples.jsonl") == lines(desk.straight / "samples.jsonl")
