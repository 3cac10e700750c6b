"""Sounds from files to a run: folders by label, resumed bit for bit, asked file by file; bad ones end in a sentence."""

import json
import math
import struct
import wave

import pytest
import torch

from regard import config as C
from regard.evaluation.evaluator import evaluate
from regard.inference.load import load_model
from regard.training.api import fit, resume_fit
from regard.training.run import Run
from regard.zoo.recipe import read_recipe

RATE = 1000


def tone(path, pitch, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        samples = (int(9000 * math.sin(2 * math.pi * pitch * place / RATE)) for place in range(size))
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return path


def folder(root):
    """Low and high tones of several lengths, by label."""
    for place in range(14):
        tone(root / "low" / f"{place}.wav", 60 + 3 * place, 200 + 13 * place)
        tone(root / "high" / f"{place}.wav", 260 + 5 * place, 190 + 17 * place)
    return root


def recipe(root, **changes):
    given = {
        "data": {"source": str(root), "validation": 0.3},
        "task": {"kind": "classification"},
        "model": {"embed": {"kind": "audio", "sample_rate": RATE, "max_seconds": 1.0,
                            "features": {"kind": "mel", "win_length": 64, "hop_length": 32, "n_mels": 12,
                                         "frames_per_token": 2},
                            "augment": {"speed": 0.05, "noise": 0.1, "time_masks": 1, "freq_masks": 1}},
                  "trunk": {"dim": 16, "depth": 2, "attention": {"heads": 2}}},
        "train": {"steps": 8, "batch_size": 6, "eval_every": 4, "save_every": 4, "device": "cpu"},
    }  # fmt: skip
    path = root.parent / "recipe.toml"
    made = C.from_dict(C.Recipe, given | {"model": {**given["model"], "head": {"kind": "pooling", "pooling": "mean"}}})
    path.write_text(C.to_toml(made))
    return read_recipe(path, [f"{name.replace('__', '.')}={value}" for name, value in changes.items()])


@pytest.mark.slow
def test_a_run_on_sounds_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    root = folder(tmp_path / "sounds")
    whole = fit(recipe(root), tmp_path / "whole", quiet=True)
    fit(recipe(root, train__steps=4), tmp_path / "half", quiet=True)
    half = resume_fit(tmp_path / "half", ["train.steps=8"], quiet=True)
    one, other = (load_model(tmp_path / name, device="cpu").state_dict() for name in ("whole", "half"))

    assert whole.loss == half.loss and whole.scores == half.scores
    assert all(torch.equal(one[name], other[name]) for name in one)
    told = evaluate(tmp_path / "whole", str(root))
    assert told.rows == 28 and set(told.score.scores) >= {"accuracy"}


def test_the_folder_of_a_sound_is_its_label_and_batches_are_varied_but_repeatable(tmp_path):
    root = folder(tmp_path / "sounds")
    run, again = Run.from_recipe(recipe(root)), Run.from_recipe(recipe(root))

    assert run.recipe.task.classes == ("high", "low") and run.recipe.task.input == "sound"
    assert all(torch.equal(run.data.batch(3)[name], again.data.batch(3)[name]) for name in run.data.batch(3))
    assert "hide" in run.data.batch(3) and "hide" not in next(run.validation.batches())


def test_a_table_may_name_its_sounds(tmp_path):
    folder(tmp_path / "sounds")
    names = [(label, place) for place in range(14) for label in ("low", "high")]
    rows = [{"sound": f"sounds/{label}/{place}.wav", "label": label} for label, place in names]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = Run.from_recipe(recipe(tmp_path / "sounds", data__source=tmp_path / "list.jsonl"))

    assert len(run.data.rows) + len(run.validation.rows) == 28


def test_a_bad_sound_stops_with_a_sentence_or_is_passed_over_and_counted(tmp_path):
    root = folder(tmp_path / "sounds")
    (root / "low" / "broken.wav").write_bytes(b"no sound at all")

    with pytest.raises(C.DataError, match=r"low/broken\.wav: begins with b'no s' and not as a WAV file does"):
        Run.from_recipe(recipe(root))
    said = []
    run = Run.from_recipe(recipe(root, data__on_bad_record="skip"), notice=said.append)
    assert len(run.data.rows) + len(run.validation.rows) == 28
    assert any("1 bad record was" in line for line in said)
