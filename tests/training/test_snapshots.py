"""train.snapshots: which steps are kept, that they are the run's own weights, and that none is lost or taken twice."""

import json
import shutil
import tomllib
from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training.builders import KINDS, assert_same, lines

import regard
from regard import config
from regard.cli import main
from regard.config import reader
from regard.files import manifest
from regard.hub import locate
from regard.training import snapshots
from regard.training.api import fit, resume_fit
from regard.training.run import Run
from regard.training.snapshots import is_scheduled, scheduled_steps


def steps(run):
    return [locate.folder_step(path) for path in locate.list_snapshots(run)]


def contents(folder):
    """The bytes of all files that make the model; what training needs is a checkpoint's alone."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "MANIFEST.json"]
    return {path.name: path.read_bytes() for path in files if path.parent.name != "train"}


def all_contents(run):
    return {path.name: contents(path) for path in locate.list_snapshots(run)}


# ---------------------------------------------------------------- the setting, and the steps that it names


@pytest.mark.parametrize("said, value", [
    ('"log"', "log"), ("500", 500), ("[0, 3, 6]", (0, 3, 6)), ('"none"', None),
])  # fmt: skip
def test_a_schedule_is_a_word_a_number_or_a_list_and_reads_back_the_same(recipe, said, value):
    made = recipe(f"train.snapshots={said}")

    assert made.train.snapshots == value
    assert tomllib.loads(reader.to_toml(made))["train"]["snapshots"] == (
        "none" if value is None else reader.to_plain(value)
    )
    assert config.from_dict(config.Recipe, tomllib.loads(reader.to_toml(made))) == made
    assert recipe().train.snapshots is None


@pytest.mark.parametrize("said, told", [
    ("often", "train.snapshots: no 'often'; there are log, a whole number, a list of whole numbers, none"),
    ("0", "train.snapshots: 0 is less than 1"),
    ("2.5", "train.snapshots: expected log or a whole number or a list of whole numbers or none, got 2.5"),
    ("[]", r"train.snapshots: \[\] is not a list of steps"),
    ("[0, 2, 2]", r"train.snapshots: \[0, 2, 2\].*each after the one before it"),
    ("[-1, 2]", r"train.snapshots: \[-1, 2\].*from 0 on"),
    ("[0, 7]", "train.snapshots: step 7 is never reached in a run of 6 steps; leave it out, or set train.steps higher"),
    ("[0, 'a']", r"train.snapshots\[1\]: expected a whole number"),
])  # fmt: skip
def test_a_wrong_schedule_is_told_in_a_sentence(recipe, said, told):
    with pytest.raises(config.ConfigError, match=told):
        recipe(f"train.snapshots={said}")


schedules = st.one_of(
    st.none(),
    st.just("log"),
    st.integers(1, 40),
    st.lists(st.integers(0, 70), min_size=1, unique=True).map(sorted).map(tuple),
)


@given(schedules, st.integers(0, 70))
def test_the_steps_of_a_schedule_are_those_that_it_names_one_by_one_and_the_last(schedule, last):
    named = {step for step in range(last + 1) if is_scheduled(schedule, step)}
    ends = set() if schedule is None or isinstance(schedule, tuple) else {last}

    assert scheduled_steps(schedule, last) == sorted(named | ends)


@given(st.integers(0, 10**9))
def test_a_logarithmic_schedule_doubles_and_has_few_steps(last):
    found = scheduled_steps("log", last)

    assert found[:2] == [0, 1][: last + 1] and found[-1] == last
    assert all(later == 2 * step for step, later in zip(found[1:-1], found[2:-1], strict=False))
    assert len(found) <= last.bit_length() + 2


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("kind", ["adamw", "averaged"])
def test_a_snapshot_is_the_model_of_the_checkpoint_of_its_step(desk, recipe, kind):
    fit(
        recipe(*KINDS[kind], "train.snapshots=log", "train.save_every=1", "train.keep_checkpoints=9"), "run", quiet=True
    )

    assert steps("run") == [0, 1, 2, 4, 6]
    for folder in locate.list_snapshots("run")[1:]:
        assert manifest.verify_manifest(folder) == ""
        assert contents(folder) == contents(desk / "run" / "checkpoints" / folder.name), folder


def test_the_first_snapshot_holds_the_weights_that_the_run_began_with(desk, recipe):
    fit(recipe("train.snapshots=[0, 3]"), "run", quiet=True)

    assert steps("run") == [0, 3]
    assert_same(regard.load("run/snapshots/step-000000").state_dict(), Run.from_recipe(recipe()).model.state_dict())


def test_taking_snapshots_changes_nothing_else(desk, recipe):
    fit(recipe(), "plain", quiet=True)
    fit(recipe("train.snapshots=1"), "run", quiet=True)

    assert steps("run") == list(range(7)) and steps("plain") == []
    assert lines(desk / "run/log.jsonl") == lines(desk / "plain/log.jsonl")
    assert contents(locate.newest_checkpoint("run")) == contents(locate.newest_checkpoint("plain"))


def test_a_run_that_ends_by_the_clock_keeps_its_last_step(desk, recipe):
    made = fit(recipe("train.steps=none", "train.minutes=0.002", "train.snapshots=log"), "run", quiet=True)

    assert steps("run") == scheduled_steps("log", made.steps)


def test_a_run_that_ends_since_it_becomes_no_better_keeps_its_last_step(desk, recipe):
    worse = ("train.eval_every=1", "train.eval_tokens=20", "train.patience=2", "train.optimizer.lr=0.3",
             "train.schedule.warmup=0", "report.max_new_tokens=1")  # fmt: skip
    made = fit(recipe(*worse, "train.steps=30", "train.snapshots=100"), "run", quiet=True)

    assert made.steps < 30 and steps("run") == [0, made.steps]


# ---------------------------------------------------------------- interrupted


@pytest.fixture
def straight(desk, recipe):
    """The contents of all snapshots of a run that nothing stopped."""
    fit(recipe("train.snapshots=log"), "straight", quiet=True)
    return all_contents("straight")


def stop_at(monkeypatch, step, written):
    """A run is killed while it takes the snapshot of a step: before it is written, or just after."""
    save = snapshots.save_snapshot

    def killed(run, out):
        if run.step != step or written:
            save(run, out)
        if run.step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(snapshots, "save_snapshot", killed)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("step", [0, 2, 4])
def test_a_run_that_is_killed_between_snapshots_has_the_same_ones_in_the_end(
    desk, recipe, straight, monkeypatch, step, written
):
    with monkeypatch.context() as patch:
        stop_at(patch, step, written)
        with pytest.raises(KeyboardInterrupt):
            fit(recipe("train.snapshots=log", "train.save_every=3"), "run", quiet=True)
    begun = steps("run")
    resume_fit("run", quiet=True)

    assert begun == [each for each in (0, 1, 2, 4) if each < step + written]
    assert all_contents("run") == straight


def test_no_snapshot_is_taken_twice(desk, recipe, monkeypatch):
    taken, save = [], snapshots.save_snapshot

    def noted(run, out):
        taken.append(run.step)
        return save(run, out)

    monkeypatch.setattr(snapshots, "save_snapshot", noted)
    fit(recipe("train.snapshots=log", "train.steps=4"), "run", quiet=True)
    resume_fit("run", quiet=True)  # it is finished
    resume_fit("run", ["train.steps=9"], quiet=True)

    assert taken == [0, 1, 2, 4, 8, 9] == steps("run")


def test_a_snapshot_of_steps_that_are_taken_again_is_taken_again(desk, recipe, straight, monkeypatch):
    """It goes with them, as their lines of the log do: on other machines the steps may not repeat to the bit."""
    with monkeypatch.context() as patch:
        stop_at(patch, 4, True)
        with pytest.raises(KeyboardInterrupt):
            fit(recipe("train.snapshots=log", "train.save_every=3"), "run", quiet=True)
    shutil.copyfile(desk / "straight/snapshots/step-000000/model.safetensors",
                    desk / "run/snapshots/step-000004/model.safetensors")  # fmt: skip
    (desk / "run/snapshots/.step-000006.0a1b2c3d.regard-new").mkdir()
    resume_fit("run", quiet=True)

    assert all_contents("run") == straight
    assert sorted(path.name for path in (desk / "run/snapshots").iterdir()) == sorted(straight)


def test_a_run_may_begin_to_take_snapshots_when_it_goes_on(desk, recipe):
    fit(recipe("train.steps=3"), "run", quiet=True)
    resume_fit("run", ["train.steps=9", "train.snapshots=log"], quiet=True)

    assert steps("run") == [4, 8, 9]
    assert config.read_toml(config.Recipe, "run/config.toml").train.snapshots == "log"


def test_a_folder_with_snapshots_of_another_run_is_no_place_for_a_new_one(desk, recipe):
    (desk / "run" / "snapshots" / "step-000001").mkdir(parents=True)

    with pytest.raises(config.ConfigError, match="run: there is a run already"):
        fit(recipe("train.snapshots=log"), "run", quiet=True)


# ---------------------------------------------------------------- room, names, the summary


def test_snapshots_that_the_disk_has_no_room_for_are_refused_before_anything_is_written(desk, recipe, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(100_000))
    with pytest.raises(config.ConfigError, match=r"train.snapshots: 7 of .* kB are .* kB, .* 100 kB left; set fewer"):
        fit(recipe("train.snapshots=1"), "run", quiet=True)

    assert not (desk / "run/config.toml").exists()
    fit(recipe("train.snapshots=log", "train.steps=1"), "run", quiet=True)


def test_snapshots_that_take_much_of_the_disk_are_told_before_training(desk, recipe, monkeypatch, capsys):
    monkeypatch.setattr(snapshots, "LARGE", 1000.0)
    fit(recipe("train.snapshots=log"), "run")
    told = capsys.readouterr().err
    one = sum(weight.nbytes for weight in regard.load("run").parameters())

    assert f"train.snapshots: 5 of {one / 1000:.4g} kB are {5 * one / 1000:.4g} kB; the disk has" in told
    assert told.index("train.snapshots") < told.index("step ")


def test_a_step_of_a_run_is_an_address(desk, recipe):
    fit(recipe("train.snapshots=[0, 2]", "train.save_every=5"), "run", quiet=True)
    ids = torch.tensor([[1, 2, 3]])
    for address, folder in {"run@0": "run/snapshots/step-000000", "run@2": "run/snapshots/step-000002",
                            "run@5": "run/checkpoints/step-000005"}.items():  # fmt: skip
        assert torch.equal(regard.load(address)(ids), regard.load(folder)(ids))

    with pytest.raises(config.DataError, match="run@3: step 3 is not saved, only 0, 2, 5"):
        regard.load("run@3")


def test_the_summary_names_the_snapshots(desk, capsys):
    changes = ["train.snapshots=log", "train.steps=3", "report.max_new_tokens=2", "--quiet"]
    assert main(["train", "recipe.toml", *changes, "--out", "run"]) == 0
    assert "snapshots        4, in run/snapshots\n" in capsys.readouterr().out
    assert main(["resume", "run", "train.steps=5", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["snapshots"] == [0, 1, 2, 3, 4, 5]
