"""Somebody's own files, from the command line: every kind of file and every objective; and what goes wrong on the way.

The law for files: the same records are the same first batch, however they are kept.
"""

import csv
import gzip
import json
import lzma
import os
import signal
from pathlib import Path

import pytest

from regard import config, data
from regard.files.manifest import write_manifest

ANIMALS, PLACES = ("cat", "dog", "owl", "fox", "hen"), ("mat", "hill", "roof")
FRENCH = {"cat": "chat", "dog": "chien", "owl": "hibou", "fox": "renard", "hen": "poule"}
RECIPE = """
[data]
source = "a.jsonl"
[tokenizer]
kind = "word"
[model]
preset = "{}"
dim = 12
depth = 1
heads = 3
[train]
steps = 2
batch_size = 3
context = 24
compile = false
device = "cpu"
[train.schedule]
warmup = 1
[report]
max_new_tokens = 3
"""


def records():
    for row in range(60):
        animal, place = ANIMALS[row % 5], PLACES[row % 3]
        said = f"The {animal} sat on the {place} {row}."
        yield {
            "text": said, "en": said, "fr": f"Le {FRENCH[animal]} est assis, {row}.", "score": row / 7,
            "label": "pet" if animal in ("cat", "dog") else "wild", "context": said, "answer": animal,
            "words": f"The {animal} sat {row}", "labels": "O B-A O O", "question": f"Who sat on the {place} {row}?",
        }  # fmt: skip


@pytest.fixture
def mine(desk, monkeypatch):
    """A folder with the same records in every kind of file, and three recipes for them."""
    monkeypatch.setattr(
        "regard.measure.calibration.matmul_speed", lambda *what: 1e10
    )  # else half a second for each run
    rows = list(records())
    kept = "".join(json.dumps(row) + "\n" for row in rows).encode()
    texts = "".join(f"{row['text']}\n" for row in rows).encode()
    files = {
        "a.jsonl": kept, "a.jsonl.gz": gzip.compress(kept), "a.jsonl.xz": lzma.compress(kept),
        "a.json": json.dumps(rows).encode(), "a.txt": texts, "a.md": texts, "a.txt.gz": gzip.compress(texts),
        "a.en": texts, "a.fr": "".join(f"{row['fr']}\n" for row in rows).encode(),
        "documents.txt": texts.replace(b"hill", b"hill\n\nThe owl"),  # an empty line ends a document
    }  # fmt: skip
    for name, made in files.items():
        (desk / name).write_bytes(made)
    for name, mark in (("a.csv", ","), ("a.tsv", "\t")):
        with (desk / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=mark)
            writer.writeheader()
            writer.writerows(rows)
    (desk / "several").mkdir()
    for name, part in (("1.jsonl", kept.splitlines(True)[:31]), ("2.jsonl", kept.splitlines(True)[31:])):
        (desk / "several" / name).write_bytes(b"".join(part))
    for name, preset in (("decoder", "lab"), ("encoder", "bert-base"), ("both", "transformer-base")):
        (desk / f"{name}.toml").write_text(RECIPE.format(preset))
    return desk


# ---------------------------------------------------------------- every kind of file


def first_batch(say, *typed, stdin=b""):
    told = say("train", *typed, "--dry-run", "--json", stdin=stdin)
    assert told.code == 0, told.err
    return json.loads(told.out)["batch"]


RECORDS = ("a.jsonl.gz", "a.jsonl.xz", "a.json", "a.csv", "a.tsv", "several", "several/*.jsonl", "-.jsonl")


@pytest.mark.parametrize("source", RECORDS)
def test_the_same_records_are_the_same_first_batch(say, mine, source):
    asked = ("encoder.toml", "task.kind=classification")
    stdin = (mine / "a.jsonl").read_bytes() if source.startswith("-") else b""

    assert first_batch(say, *asked, f"data.source={source}", stdin=stdin) == first_batch(say, *asked)


def test_a_table_of_columns_is_the_same_first_batch(say, mine):
    arrow = pytest.importorskip("pyarrow.parquet")
    arrow.write_table(pytest.importorskip("pyarrow").Table.from_pylist(list(records())), "a.parquet")
    asked = ("encoder.toml", "task.kind=token_classification", "model.head.kind=token")

    assert first_batch(say, *asked, "data.source=a.parquet") == first_batch(say, *asked)


@pytest.mark.parametrize("source", ["a.txt", "a.md", "a.txt.gz", "-"])
def test_the_same_lines_are_the_same_first_batch(say, mine, source):
    asked = ("encoder.toml", "task.kind=masked_lm", "model.head.kind=lm")
    stdin = (mine / "a.txt").read_bytes() if source == "-" else b""

    assert first_batch(say, *asked, f"data.source={source}", stdin=stdin) == first_batch(say, *asked)


def test_two_files_are_two_columns(say, mine):
    asked = ("both.toml", "task.kind=translation")
    beside = first_batch(say, *asked, "data.source=a.en + a.fr")

    assert beside == first_batch(say, *asked, "task.source=en", "task.target=fr")
    assert beside["rows"][0]["source"]["text"].startswith("The ")


# ---------------------------------------------------------------- every objective

OBJECTIVES = {
    "next_token": "decoder.toml",
    "next_token, packed": "decoder.toml train.pack=true",
    "next_token, by tokens": "decoder.toml train.batch_tokens=64 train.padding_side=left",
    "masked_lm": "encoder.toml task.kind=masked_lm model.head.kind=lm",
    "masked_lm and next sentence": (
        "encoder.toml task.kind=masked_lm task.next_sentence=true model.head.kind=pretraining "
        "data.source=documents.txt data.blank_line_ends_document=true data.validation=0.3"
    ),
    "translation": "both.toml task.kind=translation task.source=en task.target=fr train.batch_tokens=96",
    "span_corruption": "both.toml task.kind=span_corruption",
    "text_infilling": "both.toml task.kind=text_infilling",
    "prefix_lm": "both.toml task.kind=prefix_lm",
    "classification": "encoder.toml task.kind=classification train.padding_side=left",
    "regression": "encoder.toml task.kind=regression task.label=score",
    "token_classification": "encoder.toml task.kind=token_classification model.head.kind=token",
    "question_answering": "encoder.toml task.kind=question_answering task.answer_start=none model.head.kind=token",
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_is_trained_resumed_and_asked(say, mine, name):
    first = say("train", *OBJECTIVES[name].split(), "--out", "new", "--json")
    again = say("resume", "new", "train.steps=3", "--json")
    asked = say("evaluate", "new", "--json")

    assert (first.code, again.code, asked.code) == (0, 0, 0), first.err + again.err + asked.err
    assert json.loads(first.out)["steps"] == 2 and json.loads(again.out)["steps"] == 3
    assert json.loads(asked.out)["loss"] > 0 and Path("new/report.html").is_file()


def test_batches_made_ahead_teach_the_same(say, mine):
    for workers in (0, 2):
        told = say("train", *OBJECTIVES["translation"].split(), f"train.workers={workers}", "--out", f"new{workers}")
        assert told.code == 0, told.err

    assert losses("new0") == losses("new2")


@pytest.mark.parametrize("name, recipe", [
    ("classification", "finetune-classify"), ("regression", "finetune-regress"),
    ("token_classification", "finetune-tag"), ("question_answering", "finetune-answer"),
])  # fmt: skip
def test_weights_that_know_words_learn_another_question(say, mine, name, recipe):
    assert say("train", *OBJECTIVES["masked_lm"].split(), "--out", "words", "--quiet").code == 0
    asked = [word for word in OBJECTIVES[name].split()[1:] if not word.startswith("model.")]
    told = say("train", recipe, *asked, "data.source=a.jsonl", "data.validation=0.1", "train.context=24",
               "train.epochs=1", "--init-from", "words", "--out", "new", "--json")  # fmt: skip

    assert told.code == 0, told.err
    assert "from words/checkpoints/step-000002:" in told.err and "new: head." in told.err
    assert json.loads(told.out)["loss"] > 0


# ---------------------------------------------------------------- what goes wrong on the way


def test_records_without_a_label_are_passed_over_and_told_of(say, mine):
    rows = [row | {"label": None} if place % 7 == 0 else row for place, row in enumerate(records())]
    (mine / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ("encoder.toml", "task.kind=classification", "data.source=b.jsonl", "data.on_bad_record=skip")
    told = say("train", *asked, "--dry-run", "--json")

    assert told.code == 0, told.err
    assert json.loads(told.out)["config"]["task"]["classes"] == ["pet", "wild"]
    assert "9 bad records were skipped" in told.err and "b.jsonl:1: label None" in told.err


def test_a_class_that_training_never_saw_is_refused_by_its_line(say, mine):
    assert say("train", *OBJECTIVES["classification"].split(), "--out", "new", "--quiet").code == 0
    rows = [row | {"label": "ghost"} if place == 8 else row for place, row in enumerate(records())]
    (mine / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told, rest = (
        say("evaluate", "new", "b.jsonl"),
        say("evaluate", "new", "b.jsonl", "data.on_bad_record=skip", "--json"),
    )

    assert (told.code, told.out, told.err.count("\n")) == (3, "", 1)
    assert "b.jsonl:9: label 'ghost'" in told.err and "(pet, wild)" in told.err
    assert rest.code == 0 and json.loads(rest.out)["rows"] == 59 and "1 bad record was skipped" in rest.err


def changed_text(run):
    path = run.parent / "a.jsonl"
    path.write_text(path.read_text().replace("The owl", "An owl"))


def changed_settings(run):
    path = run / "config.toml"
    path.write_text(path.read_text().replace("batch_size = 3", "batch_size = 5"))


def other_version(run):
    changed_settings(run)
    [checkpoint] = (run / "checkpoints").glob("step-*")
    state = checkpoint / "train" / "state.json"
    state.write_text(state.read_text().replace(f'"regard": "{config.VERSION}"', '"regard": "0.0.1"'))
    (checkpoint / "MANIFEST.json").unlink()
    write_manifest(checkpoint)


OTHERWISE = {
    "other data": (changed_text, 3, ["a.jsonl", "not the text that", "begin a new run"]),
    "a changed config.toml": (changed_settings, 2, ["new/config.toml", "restore it", "begin a new run"]),
    "another version": (other_version, 2, ["new/config.toml", "0.0.1", config.VERSION, "--init-from"]),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_run_goes_on_as_it_began_or_not_at_all(say, mine, name):
    """And what was saved is still there."""
    change, code, parts = OTHERWISE[name]
    assert say("train", *OBJECTIVES["classification"].split(), "--out", "new", "--quiet").code == 0
    change(mine / "new")
    before = {path: path.read_bytes() for path in (mine / "new").rglob("*") if path.is_file()}
    told = say("resume", "new", "train.steps=4")

    assert (told.code, told.out, told.err.count("\n")) == (code, "", 1), told.err
    assert [part for part in parts if part not in told.err] == [], told.err
    assert {path: path.read_bytes() for path in (mine / "new").rglob("*") if path.is_file()} == before


def test_a_killed_worker_is_told_and_the_run_goes_on_as_if_nothing_had_happened(say, mine, monkeypatch):
    here, made = os.getpid(), data.FixedSizeBatches.batch

    def batch(self, step):
        if os.getpid() != here and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return made(self, step)

    asked = ("encoder.toml", "task.kind=classification", "train.steps=7", "train.save_every=2", "train.workers=1")
    with monkeypatch.context() as patched:
        patched.setattr(data.FixedSizeBatches, "batch", batch)
        told = say("train", *asked, "--out", "new", "--quiet")
    again, whole = say("resume", "new", "--quiet"), say("train", *asked, "--out", "whole", "--quiet")

    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1), told.err
    assert "killed before step" in told.err and "train.workers" in told.err and "resume" in told.err
    assert (again.code, whole.code) == (0, 0), again.err + whole.err
    assert losses("new") == losses("whole") and len(losses("new")) == 7


def losses(run):
    lines = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]
