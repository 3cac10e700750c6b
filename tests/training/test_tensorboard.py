"""TensorBoard reads the curves of a run, each point once, also after a kill."""

import json
import math

import pytest

from regard import config
from regard.training import tensorboard
from regard.training.tensorboard import TensorBoardLog

pytest.importorskip("tensorboard")


def step(number, **more):
    return {"step": number, "loss": 5.0 / number, "lr": 0.1, "norm": 2.0, "clipped": True, **more,
            "tokens": 64, "seconds": 0.5 * number}  # fmt: skip


def curves(folder):
    """All points by curve, as TensorBoard's own reader has them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(point.step, point.value) for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def told(folder, lines, after=0):
    with TensorBoardLog(folder, after) as made:
        for line in lines:
            made.line(line)


def test_every_number_of_a_step_is_a_point(tmp_path):
    told(tmp_path, [step(1), step(2)])
    found = curves(tmp_path)

    assert set(found) == {"train/loss", "train/lr", "train/norm", "train/tokens_per_second"}
    assert found["train/loss"] == [(1, 5.0), (2, 2.5)]
    assert found["train/tokens_per_second"] == [(1, 128.0), (2, 128.0)]


def test_evaluations_have_curves_of_their_own_and_the_last_one_too(tmp_path):
    line = {"step": 3, "eval_loss": 1.5, "eval_tokens": 99, "accuracy": 0.75, "seconds": 2.0}
    told(tmp_path, [step(3), line, {**line, "step": 4, "eval_loss": 1.25, "whole": True}])
    found = curves(tmp_path)

    assert found["validation/loss"] == [(3, 1.5)] and found["validation/accuracy"] == [(3, 0.75)]
    assert found["validation_whole/loss"] == [(4, 1.25)]
    assert not any("tokens" in tag for tag in found if tag.startswith("validation"))


def test_layers_and_heads_are_curves_by_their_path(tmp_path):
    layers, heads = {"trunk.0": {"gradient": 0.5, "update": None}}, {"trunk.0.attn": [0.25, 1]}
    health = {"loss": 2.5, "layers": layers, "heads": heads}
    told(tmp_path, [{"step": 7, "health": health, "seconds": 1.0}])

    assert curves(tmp_path) == {
        "health/loss": [(7, 2.5)], "health/layers/trunk.0/gradient": [(7, 0.5)],
        "health/heads/trunk.0.attn/0": [(7, 0.25)], "health/heads/trunk.0.attn/1": [(7, 1.0)],
    }  # fmt: skip


def test_what_is_no_number_is_shown_as_such_and_names_are_no_curves(tmp_path):
    line = {**step(1), "loss": "nan", "norm": "inf", "skipped": "its loss leapt", "batches": {"0": [4, 5]}}
    told(tmp_path, [line])
    found = curves(tmp_path)

    assert math.isnan(found["train/loss"][0][1]) and found["train/norm"] == [(1, math.inf)]
    assert set(found) == {"train/loss", "train/lr", "train/norm", "train/tokens_per_second"}


def test_after_a_kill_no_point_beyond_the_checkpoint_is_there_twice(tmp_path):
    told(tmp_path, [step(number) for number in range(1, 8)])  # the checkpoint was at 4
    told(tmp_path, [step(number, loss=9.0) for number in range(5, 10)], after=4)
    found = curves(tmp_path)["train/loss"]

    assert [number for number, _ in found] == list(range(1, 10))
    assert [value for _, value in found][4:] == [9.0] * 5


def test_what_was_synced_outlives_the_process(tmp_path):
    made = TensorBoardLog(tmp_path)
    made.line(step(1))
    made.sync()

    assert curves(tmp_path)["train/loss"] == [(1, 5.0)]
    made.close()


def test_the_speed_of_the_first_step_after_a_resume_is_not_known(tmp_path):
    told(tmp_path, [step(5), step(6)], after=4)

    assert curves(tmp_path)["train/tokens_per_second"] == [(6, 128.0)]


def test_without_the_package_the_setting_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(config.ConfigError, match=r"train.tensorboard: .*pip install 'regard\[board\]'"):
        TensorBoardLog(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "board").write_text("a file")
    with pytest.raises(config.RunError, match="board: cannot be written"):
        TensorBoardLog(tmp_path / "board")


@pytest.mark.slow
def test_a_run_draws_what_it_logs(recipe):
    from regard.training.api import fit

    out = fit(recipe("train.tensorboard=true", "train.eval_every=3"), "runs/lab", quiet=True).out
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    logged = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    found = curves(out / "board")

    assert [number for number, _ in found["train/loss"]] == [number for number, _ in logged] == list(range(1, 7))
    assert [value for _, value in found["train/loss"]] == pytest.approx([loss for _, loss in logged])
    assert [number for number, _ in found["validation/loss"]] == [3]
