"""Nothing is lost: a run that was saved, interrupted or damaged goes on bit for bit as if nothing had happened."""

import json
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from training.builders import KINDS, TEXT, advanced, assert_same, bits, lines

from regard import config
from regard.files import manifest
from regard.files.manifest import write_manifest
from regard.hub import locate
from regard.report.page import run_commands
from regard.report.run_data import read_logged_run
from regard.training.api import fit, resume_fit
from regard.training.checkpoint import prune_checkpoints
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.signals import SignalHandler

TENSORS = ("model.safetensors", "train/optim.safetensors", "train/rng.safetensors", "train/guard.safetensors")


def steps(run):
    return [path.name for path in sorted((run / "checkpoints").iterdir())]


def last(run):
    return run / "checkpoints" / steps(run)[-1]


def assert_same_run(ours, theirs):
    """The same lines but for the times, and the same bytes of weights, moments and random numbers."""
    for name in ("log.jsonl", "samples.jsonl"):
        assert lines(ours / name) == lines(theirs / name), name
    assert last(ours).name == last(theirs).name
    names = {path.relative_to(last(theirs)) for path in last(theirs).rglob("*.safetensors")}
    assert names >= {Path(name) for name in TENSORS}
    for name in names:
        assert (last(ours) / name).read_bytes() == (last(theirs) / name).read_bytes(), name


@contextmanager
def signals(at, times=1, kind=signal.SIGINT):
    """Signals arrive in the midst of a step."""

    def interrupted(run, notice):
        for step in train_steps(run, notice):
            if step.number == at:
                for _ in range(times):
                    signal.raise_signal(kind)
            yield step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["regard.training.trainer"], "train_steps", interrupted)
        yield


@pytest.fixture
def stopped(desk, recipe):
    """A run that was interrupted after some steps."""

    def stop(at, *changes, kind=signal.SIGINT):
        with signals(at, kind=kind):
            return fit(recipe(*changes), desk / "run", quiet=True)

    return stop


def rewrite(run, change):
    """Change what state.json says, as somebody would who also seals the folder again."""
    path = last(run) / "train/state.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    (last(run) / "MANIFEST.json").unlink()
    write_manifest(last(run))


# ---------------------------------------------------------------- save and load


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_loaded_goes_on_bit_for_bit(recipe, tmp_path, kind):
    straight = Run.from_recipe(recipe(*KINDS[kind]))
    losses = advanced(straight)
    half = Run.from_recipe(recipe(*KINDS[kind]))
    begun = advanced(half, 3)
    half.save(tmp_path / "half")
    again = Run.from_recipe(recipe(*KINDS[kind]))
    again.load(tmp_path / "half")

    assert (again.step, again.seconds) == (3, half.seconds)
    assert begun + advanced(again) == losses
    assert_same(bits(again), bits(straight))


def test_saving_changes_nothing(recipe, tmp_path):
    straight, saving = Run.from_recipe(recipe()), []
    losses = advanced(straight)
    run = Run.from_recipe(recipe())
    for step in train_steps(run):
        saving.append(float(step.loss))
        run.save(tmp_path / f"step-{step.number}")

    assert saving == losses


def test_another_model_is_refused(recipe, tmp_path):
    Run.from_recipe(recipe()).save(tmp_path / "saved")

    with pytest.raises(config.DataError, match="saved.*another model"):
        Run.from_recipe(recipe("model.depth=3")).load(tmp_path / "saved")


def test_a_model_without_training_state_says_what_it_is_good_for(recipe, tmp_path):
    run = Run.from_recipe(recipe())
    run.model.save(tmp_path / "model")

    with pytest.raises(config.DataError, match="state.json.*generate"):
        run.load(tmp_path / "model")


# ---------------------------------------------------------------- interrupted


@pytest.mark.slow
@pytest.mark.spec("S089")
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_ends_with_the_same_bits_as_one_that_was_not(desk, recipe, stopped, kind):
    changes = [*KINDS[kind], "train.eval_every=2", "report.max_new_tokens=3"]
    made = stopped(3, *changes)
    resume_fit(desk / "run", quiet=True)
    fit(recipe(*changes), desk / "straight", quiet=True)

    assert (made.interrupted, made.steps) == (signal.SIGINT, 3)
    assert_same_run(desk / "run", desk / "straight")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_either_signal_saves_and_is_told(desk, stopped, kind):
    made = stopped(2, kind=kind)

    assert made.interrupted == kind and steps(desk / "run") == ["step-000002"]
    assert manifest.verify_manifest(last(desk / "run")) == "" and made.eval_loss is None


@pytest.mark.slow
def test_an_evaluation_that_was_due_is_not_lost(desk, recipe, stopped):
    stopped(4, "train.eval_every=2")
    resume_fit(desk / "run", quiet=True)
    fit(recipe("train.eval_every=2"), desk / "straight", quiet=True)

    assert_same_run(desk / "run", desk / "straight")


def test_a_second_signal_stops_at_once_and_keeps_what_was_saved(desk, recipe):
    with signals(4, times=2), pytest.raises(KeyboardInterrupt):
        fit(recipe("train.save_every=2"), desk / "run", quiet=True)

    assert steps(desk / "run") == ["step-000002"]


def test_handlers_are_as_they_were_afterwards(desk, recipe, stopped):
    before = [signal.getsignal(each) for each in SignalHandler.WATCHED]
    stopped(2)

    assert [signal.getsignal(each) for each in SignalHandler.WATCHED] == before


@pytest.mark.slow
def test_a_run_that_was_killed_forgets_what_it_logged_after_its_checkpoint(desk, recipe):
    with signals(5, times=2), pytest.raises(KeyboardInterrupt):  # two stop without saving, as a kill would
        fit(recipe("train.save_every=3", "train.eval_every=1", "report.max_new_tokens=3"), desk / "run", quiet=True)
    taken = [line["step"] for line in lines(desk / "run/log.jsonl") if "loss" in line]
    assert taken[-1] > 3 and steps(desk / "run") == ["step-000003"]
    with (desk / "run/log.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # half a line
    resume_fit(desk / "run", quiet=True)
    fit(recipe("train.save_every=3", "train.eval_every=1", "report.max_new_tokens=3"), desk / "straight", quiet=True)

    assert_same_run(desk / "run", desk / "straight")


def test_a_run_interrupted_again_and_again_ends_the_same(desk, recipe, stopped):
    stopped(1)
    for at in (2, 4, 5):
        with signals(at):
            resume_fit(desk / "run", quiet=True)
    resume_fit(desk / "run", quiet=True)
    fit(recipe(), desk / "straight", quiet=True)

    assert_same_run(desk / "run", desk / "straight")


def test_the_clock_goes_on_where_it_stood(desk, stopped):
    made = stopped(3)
    times = [json.loads(line)["seconds"] for line in (desk / "run/log.jsonl").read_text().splitlines()]
    again = resume_fit(desk / "run", quiet=True)
    later = [json.loads(line)["seconds"] for line in (desk / "run/log.jsonl").read_text().splitlines()]

    assert later[:3] == times and later == sorted(later)
    assert again.seconds > made.seconds == times[-1]


# ---------------------------------------------------------------- longer, finished, damaged


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_run_made_longer_is_the_longer_run(desk, recipe, kind):
    fit(recipe(*KINDS[kind], "train.steps=4"), desk / "run", quiet=True)
    made = resume_fit(desk / "run", ["train.steps=9"], quiet=True)
    fit(recipe(*KINDS[kind], "train.steps=9"), desk / "straight", quiet=True)
    ours, theirs = (lines(desk / run / "log.jsonl") for run in ("run", "straight"))

    assert made.steps == 9
    assert [line for line in ours if "loss" in line] == [line for line in theirs if "loss" in line]
    assert ours[-1] == theirs[-1]
    assert (last(desk / "run") / TENSORS[0]).read_bytes() == (last(desk / "straight") / TENSORS[0]).read_bytes()
    assert config.read_toml(config.Recipe, desk / "run/config.toml").train.steps == 9


def test_a_run_made_longer_says_what_becomes_of_its_learning_rate(desk, recipe, capsys):
    """A schedule that had come down goes up again, as it follows the new length."""
    down = ("train.schedule={kind='linear', warmup=0}", "train.optimizer.lr=0.01", "train.steps=4")
    fit(recipe(*down), desk / "run", command="regard train recipe.toml --out run", quiet=True)
    capsys.readouterr()
    resume_fit(desk / "run", ["train.steps=9"])
    told = capsys.readouterr().err
    rates = [line["lr"] for line in lines(desk / "run" / "log.jsonl") if "lr" in line]

    assert f"the learning rate rises from {rates[3]:.3g} to {rates[4]:.3g}" in told and rates[4] > 2 * rates[3]
    facts = json.loads((desk / "run" / "run.json").read_text())
    assert facts["resumed"] == [{"step": 4, "changes": ["train.steps=9"]}]
    again = f"regard resume {desk / 'run'} train.steps=9  # after step 4"
    assert run_commands(read_logged_run(desk / "run")) == ["regard train recipe.toml --out run", again]


def test_a_run_that_goes_on_as_it_began_has_nothing_to_say_of_its_rate(desk, recipe, capsys):
    fit(recipe("train.steps=4"), desk / "run", quiet=True)
    resume_fit(desk / "run")
    resume_fit(desk / "run", ["train.steps=6"])  # a constant schedule

    assert "learning rate" not in capsys.readouterr().err


def test_a_run_made_longer_tells_nothing_of_its_first_end(desk, recipe):
    fit(recipe("train.steps=4"), desk / "run", quiet=True)
    resume_fit(desk / "run", ["train.steps=9"], quiet=True)
    fit(recipe("train.steps=9"), desk / "straight", quiet=True)

    assert_same_run(desk / "run", desk / "straight")


def test_a_finished_run_has_nothing_left_to_learn(desk, recipe):
    first = fit(recipe(), desk / "run", quiet=True)
    before = {name: (last(desk / "run") / name).read_bytes() for name in TENSORS}
    again = resume_fit(desk / "run", quiet=True)

    assert (again.steps, again.eval_loss) == (first.steps, first.eval_loss)
    assert {name: (last(desk / "run") / name).read_bytes() for name in TENSORS} == before


def test_a_finished_run_is_not_finished_twice(desk, recipe):
    fit(recipe(), desk / "run", quiet=True)
    before = [lines(desk / "run" / name) for name in ("log.jsonl", "samples.jsonl")]
    resume_fit(desk / "run", quiet=True)

    assert [lines(desk / "run" / name) for name in ("log.jsonl", "samples.jsonl")] == before


@pytest.mark.parametrize("harm", [
    lambda path: (path / "model.safetensors").write_bytes(b"\0" * 99),
    lambda path: (path / "train/optim.safetensors").unlink(),
    lambda path: (path / "MANIFEST.json").unlink(),
    lambda path: (path / "train/state.json").write_text("{}"),
], ids=["weights", "moments", "manifest", "state"])  # fmt: skip
def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_is_used(desk, recipe, harm):
    fit(recipe("train.save_every=4"), desk / "run", quiet=True)
    shutil.copytree(desk / "run", desk / "straight")
    harm(last(desk / "run"))
    with pytest.warns(UserWarning, match="step-000006.*step-000004"):
        made = resume_fit(desk / "run", quiet=True)

    assert made.steps == 6
    assert_same_run(desk / "run", desk / "straight")
    assert manifest.verify_manifest(last(desk / "run")) == ""


def test_what_a_killed_writer_left_is_swept(desk, stopped):
    stopped(3)
    half = desk / "run/checkpoints/.step-000005.0a1b2c3d.regard-new"
    half.mkdir()
    (half / "config.json").write_text("{")
    resume_fit(desk / "run", quiet=True)

    assert steps(desk / "run") == ["step-000003", "step-000006"]


def test_pruning_never_removes_the_last_whole_checkpoint(desk, recipe):
    fit(recipe("train.save_every=4"), desk / "run", quiet=True)
    (last(desk / "run") / "MANIFEST.json").unlink()
    prune_checkpoints(desk / "run/checkpoints", keep=1)

    with pytest.warns(UserWarning, match="step-000006"):
        assert locate.newest_checkpoint(desk / "run").name == "step-000004"


# ---------------------------------------------------------------- what has changed meanwhile


def test_other_threads_are_said_aloud(desk, stopped, capsys):
    stopped(3)
    rewrite(desk / "run", lambda state: state["surroundings"].update(threads=64))
    resume_fit(desk / "run")

    assert "threads was 64 and is 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_tells_where_it_was_made(desk, stopped):
    stopped(3)
    torch.set_num_threads(2)
    try:
        resume_fit(desk / "run", quiet=True)
    finally:
        torch.set_num_threads(1)
    told = json.loads((last(desk / "run") / "train/state.json").read_text())

    assert told["surroundings"]["threads"] == 2


@pytest.mark.parametrize(
    "change", ["train.batch_size=3", "train.seed=1", "train.optimizer.kind=muon", "train.context=5"]
)
def test_settings_that_would_make_another_run_are_refused(desk, stopped, change):
    stopped(3)
    with pytest.raises(config.ConfigError, match=change.partition("=")[0]):
        resume_fit(desk / "run", [change], quiet=True)


def test_another_text_is_said_aloud_or_refused(desk, stopped, capsys):
    stopped(3)
    (desk / "text.txt").write_text(TEXT[::-1])
    try:
        resume_fit(desk / "run")
        told = capsys.readouterr().err
    except config.DataError as problem:
        told = str(problem)

    assert "text.txt" in told


def test_a_text_that_is_gone_is_named(desk, stopped):
    stopped(3)
    (desk / "text.txt").unlink()

    with pytest.raises(config.DataError, match="text.txt"):
        resume_fit(desk / "run", quiet=True)


def test_a_folder_without_checkpoints_cannot_be_resumed(desk):
    (desk / "run").mkdir()

    with pytest.raises(config.DataError, match="no checkpoint"):
        resume_fit(desk / "run", quiet=True)


def test_a_checkpoint_of_a_later_version_is_refused(desk, stopped):
    stopped(3)
    rewrite(desk / "run", lambda state: state.update(format=2))

    with pytest.raises(config.DataError, match="format 2"):
        resume_fit(desk / "run", quiet=True)


@pytest.mark.parametrize("lost", ["seconds", "log", "samples", "surroundings"])
def test_a_state_that_lacks_something_is_refused_in_a_sentence(desk, stopped, lost):
    stopped(3)
    rewrite(desk / "run", lambda state: state.pop(lost))

    with pytest.raises(config.DataError):
        resume_fit(desk / "run", quiet=True)


def test_resuming_without_run_json_still_ends_with_the_same_bits(desk, recipe, stopped):
    stopped(3)
    (desk / "run/run.json").unlink()
    resume_fit(desk / "run", quiet=True)
    fit(recipe(), desk / "straight", quiet=True)

    assert_same_run(desk / "run", desk / "straight")
