"""regard train, resume, report: what reaches the trainer, what comes back, and a real run from end to end."""

import json
import resource
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard import zoo
from regard.cli import train
from regard.config import reader


@dataclass
class Result:
    out: Path
    steps: int = 3
    loss: float | None = 1.25
    eval_loss: float | None = 1.5
    seconds: float = 0.75
    interrupted: int | None = None
    scores: dict[str, float] | None = None
    rank: int = 0
    best: int | None = None


@pytest.fixture
def trainer(monkeypatch):
    """A trainer that writes down what it is asked, and ends as it is told to."""
    asked, end = [], {}

    def fit(recipe, out, *, command, quiet):
        asked.append(SimpleNamespace(recipe=recipe, out=out, command=command, quiet=quiet))
        if "problem" in end:
            raise end["problem"]
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.toml").write_text("")
        return Result(out, **end)

    def resume(out, overrides, *, quiet):
        asked.append(SimpleNamespace(out=out, overrides=overrides, quiet=quiet))
        return Result(out, **end)

    monkeypatch.setattr("regard.training.api.fit", fit)
    monkeypatch.setattr("regard.training.api.resume_fit", resume)
    monkeypatch.setattr(train, "write_run_report", lambda run: run / "report.html")
    return SimpleNamespace(asked=asked, end=end)


def test_a_first_write_that_was_torn_is_no_reason_to_refuse_a_folder(say, desk, trainer):
    torn = desk / "run" / ".config.toml.0a1b2c3d.regard-new"
    torn.mkdir(parents=True)
    (torn / "config.toml").write_text("[mod")

    assert say("train", "recipe.toml", "--out", "run").code == 0


def test_the_trainer_gets_the_recipe_with_its_overrides(say, desk, trainer):
    told = say("train", "recipe.toml", "train.steps=5", "--out", "new", "model.depth=3", "--quiet")
    (asked,) = trainer.asked

    assert told.code == 0
    assert asked.recipe == zoo.read_recipe("recipe.toml", ["train.steps=5", "model.depth=3"])
    assert (asked.out, asked.quiet) == (Path("new"), True)


def test_another_kind_of_optimizer_says_which_settings_it_changes(say, desk, trainer):
    """A table of another kind replaces the recipe's own: lr 0.02 became 1e-4 without a word."""
    muon = ("train.optimizer.kind=muon", "train.optimizer.lr=0.03", "train.schedule.warmup=7")
    Path("muon.toml").write_text(reader.to_toml(zoo.read_recipe("recipe.toml", muon)))
    told = say("train", "muon.toml", "train.optimizer.kind=adamw", "train.schedule.kind=cosine", "--out", "new").err
    same = say("train", "muon.toml", "train.optimizer.kind=muon", "train.optimizer.lr=0.1", "--out", "other").err
    set_all = say("train", "muon.toml", "train.optimizer.kind=adamw", "train.optimizer.lr=0.5", "--out", "third").err

    assert "train.optimizer.kind: adamw, and the recipe has muon" in told and "lr is 0.0001 (was 0.03)" in told
    assert "train.schedule.kind: cosine" in told and "warmup is 4000 (was 7)" in told
    assert same == ""
    assert "lr is" not in set_all and "weight_decay is 0.1 (was 0.0)" in set_all


def test_the_command_that_is_kept_does_the_same_again(say, desk, trainer):
    say("train", "recipe.toml", "model.mask=causal & window(3)")
    first = trainer.asked[0]
    _, *words = shlex.split(first.command)
    (Path("runs/recipe/config.toml")).unlink()
    say(*words)

    assert trainer.asked[1] == first


@pytest.mark.parametrize("typed, place", [
    (["recipe.toml"], "runs/recipe"),
    (["./recipe.toml"], "runs/recipe"),
    (["old"], "runs/old"),
    (["recipe.toml", "--out", "some/where"], "some/where"),
])  # fmt: skip
def test_a_run_goes_where_it_is_sent_or_under_its_recipe_s_name(say, desk, trainer, typed, place):
    (desk / "old").mkdir()
    (desk / "old" / "config.toml").write_text((desk / "recipe.toml").read_text())

    assert say("train", *typed).code == 0
    assert trainer.asked[0].out == Path(place) and (desk / place).is_dir()


def test_json_says_how_the_run_went(say, desk, trainer):
    told = json.loads(say("train", "recipe.toml", "--out", "new", "--json").out)

    assert told == {"out": "new", "report": "new/report.html", "steps": 3, "loss": 1.25, "eval_loss": 1.5,
                    "scores": None, "best": None, "snapshots": [], "seconds": 0.75, "interrupted": None}  # fmt: skip


def test_people_read_rows_and_what_is_not_known_is_left_out(say, desk, trainer):
    trainer.end["eval_loss"] = None
    rows = dict(line.split("  ", 1) for line in say("train", "recipe.toml", "--out", "new").out.splitlines())

    assert {name: value.strip() for name, value in rows.items()} == {
        "run": "new", "report": "new/report.html", "steps": "3", "training loss": "1.2500 in the last step",
        "seconds": "0.8"}  # fmt: skip


def test_the_summary_says_which_step_is_the_best(say, desk, trainer):
    trainer.end["best"] = 2

    told = say("train", "recipe.toml", "--out", "new").out

    assert "best             step 2, in new/best\nvalidation loss  1.5000\n" in told


def test_a_loss_that_is_no_number_is_null(say, desk, trainer):
    trainer.end["loss"] = float("nan")

    assert json.loads(say("train", "recipe.toml", "--out", "new", "--json").out)["loss"] is None


@pytest.mark.parametrize("number, code", [(2, 130), (15, 143)])
@pytest.mark.parametrize("typed", ["train recipe.toml --out new", "resume old"])
def test_an_interrupted_run_says_how_to_go_on(say, desk, trainer, number, code, typed):
    (desk / "old").mkdir()
    (desk / "old" / "config.toml").write_text("")
    trainer.end["interrupted"] = number
    told = say(*typed.split())

    assert told.code == code and "report" not in told.out
    assert told.err.count("\n") == 1 and f"regard resume {typed.split()[-1]}" in told.err and "step 3" in told.err


def test_a_run_that_could_not_begin_leaves_no_folder(say, desk):
    told = say("train", "recipe.toml", "data.source=missing.txt", "--out", "new/run")

    assert told.code == 3 and not (desk / "new").exists()


def test_resuming_may_change_how_long(say, desk, trainer):
    (desk / "old").mkdir()
    (desk / "old" / "config.toml").write_text("")
    told = say("resume", "old", "train.steps=9", "train.minutes=2", "--quiet")

    assert told.code == 0
    assert trainer.asked[0].overrides == ["train.steps=9", "train.minutes=2"]
    assert (trainer.asked[0].out, trainer.asked[0].quiet) == (Path("old"), True)


@pytest.mark.slow
def test_a_text_file_becomes_a_model_its_samples_and_its_report(say, desk):
    first = say("train", "recipe.toml", "--out", "new", "--json")
    told = json.loads(first.out)
    again = say("resume", "new", "train.steps=5", "--json", "--quiet")
    score = json.loads(say("evaluate", "new", "--json").out)

    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert told["steps"] == 3 and json.loads(again.out)["steps"] == 5
    assert json.loads(again.out)["eval_loss"] == pytest.approx(score["loss"], abs=1e-6)
    assert tomllib.loads(Path("new/config.toml").read_text())["train"]["batch_size"] == 2
    assert len(say("generate", "new", "the ", "--max-new-tokens", 7).out) == 7
    assert say("report", "new").out == "new/report.html\n" and "<html" in Path("new/report.html").read_text()
    assert say("explain", "new").code == 0
    assert say("train", "recipe.toml", "--out", "new").code == 2


@pytest.mark.slow
def test_quiet_is_quiet(say, desk):
    told = say("train", "recipe.toml", "train.eval_every=none", "--out", "new", "--quiet")

    assert (told.code, told.err) == (0, "")


def command(*words, limit=None):
    """A process of its own, whose files may not grow beyond `limit` bytes."""

    def limited():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen([sys.executable, "-m", "regard", *words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, preexec_fn=limited)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_saves_and_the_run_goes_on(say, desk, number, code):
    process = command("train", "recipe.toml", "train.steps=1000000", "train.eval_every=none", "--out", "new")
    first = process.stderr.readline()  # the model is introduced, the steps begin
    wait_for(desk / "new" / "log.jsonl")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert process.returncode == code, first + err
    assert "regard resume new" in err and "Traceback" not in err and "report" not in out
    steps = int(dict(line.split(maxsplit=1) for line in out.splitlines())["steps"].replace(",", ""))
    assert steps > 0 and say("resume", "new", f"train.steps={steps + 2}", "--quiet").code == 0


def wait_for(path):
    """Until something stands in a file that a process is writing."""
    end = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < end, f"{path} never came"


@pytest.mark.slow
def test_no_room_for_a_checkpoint_is_told_and_no_half_of_it_is_left(desk):
    process = command("train", "recipe.toml", "--out", "new", "--quiet", limit=9_000)
    out, err = process.communicate(timeout=120)

    assert (process.returncode, out) == (1, ""), err
    assert "Traceback" not in err and "bug" not in err
    assert "new" in err.splitlines()[-1] and ("space" in err or "room" in err or "limit" in err)
    assert list((desk / "new" / "checkpoints").iterdir()) == []
