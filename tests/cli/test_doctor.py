"""regard doctor: a table for people, an object for scripts, an exit code for both; and nothing is written."""

import json
import random

import pytest

RECIPE = """
[data]
source = "long.txt"
[tokenizer]
byte_fallback = false
[model]
preset = "gpt2"
dim = 12
depth = 2
heads = 3
dropout = 0.0
[train]
steps = 12
batch_size = 5
context = 17
compile = false
device = "cpu"
eval_every = 5
[train.optimizer]
lr = 1e-2
[train.schedule]
warmup = 2
[report]
prompt = "a"
max_new_tokens = 3
"""


@pytest.fixture
def clinic(desk, monkeypatch):
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefgh", k=chance.randint(2, 7))) for _ in range(60)]
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)
    (desk / "long.txt").write_text(" ".join(chance.choices(words, k=7000)))
    (desk / "healthy.toml").write_text(RECIPE)
    return desk


def files(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")}


def test_a_healthy_recipe_ends_with_zero_and_no_faults(say, clinic):
    before = files(clinic).keys()
    told = say("doctor", "healthy.toml", "--steps", 10)

    assert told.code == 0 and told.out.endswith("\nno faults found\n")
    assert "learning rate   fine" in told.out and "10 of 10 steps" in told.err
    assert {path.relative_to(clinic).parts[0] for path in files(clinic).keys() - before} <= {"cache"}


@pytest.mark.slow
def test_a_fault_ends_with_one_and_says_what_to_type(say, clinic):
    told = say("doctor", "healthy.toml", "train.optimizer.lr=20", "--quiet")
    lines = told.out.splitlines()
    [fault] = [place for place, line in enumerate(lines) if line.startswith("learning rate   wrong  ")]

    assert told.code == 1 and told.err == ""
    assert any("  try    train.optimizer.lr=0.0" in line for line in lines[fault:])
    assert lines[-1].endswith("checks found something wrong") and lines[-1].startswith("1 of ")


def test_scripts_get_one_object(say, clinic):
    told = say("doctor", "healthy.toml", "--steps", 10, "--json", "--quiet")
    read = json.loads(told.out)

    assert (told.code, told.err) == (0, "")
    assert (read["healthy"], read["steps"]) == (True, 10)
    assert all(finding.keys() == {"check", "verdict", "evidence", "remedy"} for finding in read["findings"])
    assert {finding["verdict"] for finding in read["findings"]} <= {"fine", "look"}


@pytest.mark.slow
def test_a_run_is_examined_from_its_checkpoint_and_its_folder_is_not_touched(say, clinic):
    assert say("train", "healthy.toml", "--out", "run", "--quiet").code == 0
    before = files(clinic / "run")
    told = json.loads(say("doctor", "run", "--steps", 10, "--json", "--quiet").out)
    findings = {finding["check"]: finding for finding in told["findings"]}

    assert files(clinic / "run") == before
    assert findings["log"]["evidence"].startswith("12 steps, 0 skipped; validation is ")
    assert "guess" not in findings["initialisation"]["evidence"]  # it has begun long ago


@pytest.mark.parametrize("words, code, line", [
    (["nowhere.toml"], 2, "nowhere.toml: no such recipe"),
    (["healthy.toml", "--steps", 51], 2, "--steps: 51 is not from 10 to 50"),
    (["healthy.toml", "model.mask=full"], 2, "attends to the label"),
    (["healthy.toml", "data.source=gone.txt"], 3, "gone.txt: no such file"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(say, clinic, words, code, line):
    told = say("doctor", *words)

    assert told.code == code and line in told.err and told.out == "" and len(told.err.splitlines()) == 1


@pytest.mark.slow
def test_a_run_takes_no_other_settings(say, clinic):
    say("train", "healthy.toml", "--out", "run", "--quiet")
    told = say("doctor", "run", "train.batch_size=3")

    assert told.code == 2 and "`regard doctor run/config.toml train.batch_size=3` examines a new one" in told.err


def test_the_help_says_what_the_codes_mean(say):
    assert "code 0 if no fault is found" in " ".join(say("doctor", "--help").out.split())
