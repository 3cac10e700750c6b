"""The bill: what was promised beside what was paid, and by how much they differ."""

import json

import pytest
from report.run_folders import data_in, whole_run

from regard import report
from regard.report.headline import format_difference

PROMISED = {"step_seconds": 0.04, "step_flops": 1e9, "memory": 2**29, "calibrated": True, "note": "",
            "parts": {"products": 0.03, "calls": 0.01, "new memory": 0.0}}  # fmt: skip


def bill(folder, **facts):
    """The rows of a run that took 0.05 seconds a step and 768 MiB, by what they are about."""
    run, model, tokenizer = whole_run(folder)
    known = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**known, **facts}))
    rows = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))["cost"]["rows"]
    return {row["what"]: row for row in rows}


def test_a_calibrated_prediction_stands_beside_what_came_with_the_difference(tmp_path):
    rows = bill(tmp_path, predicted=PROMISED)

    assert rows["time of a step"] == {"what": "time of a step", "predicted": "40 ms", "measured": "50 ms",
                                      "difference": "+25%", "note": "products 75%, calls 25%"}  # fmt: skip
    assert rows["memory"] == {"what": "memory", "predicted": "512 MiB", "measured": "768 MiB at the peak",
                              "difference": "+50%", "note": "the whole process, torch itself included"}  # fmt: skip


def test_without_a_calibration_the_time_is_a_floor_and_how_to_do_better_is_said(tmp_path):
    rows = bill(tmp_path, predicted={**PROMISED, "calibrated": False})

    assert rows["time of a step"]["predicted"] == "at least 40 ms" and not rows["time of a step"]["difference"]
    assert "80% of it" in rows["time of a step"]["note"] and "--calibrate" in rows["time of a step"]["note"]
    assert rows["memory"]["difference"] == "+50%"


def test_on_a_gpu_memory_is_what_tensors_hold(tmp_path):
    assert "tensors" in bill(tmp_path, predicted=PROMISED, device="cuda")["memory"]["note"]


NONSENSE = [None, {}, "soon", {"calibrated": True}, {**PROMISED, "parts": "all"}, {**PROMISED, "memory": -1},
            {**PROMISED, "parts": {"products": "most"}}]  # fmt: skip


@pytest.mark.parametrize("predicted", NONSENSE, ids=str)
def test_what_was_predicted_may_be_absent_or_nonsense(tmp_path, predicted):
    assert bill(tmp_path, predicted=predicted)["time of a step"]["measured"] == "50 ms"


def test_a_run_of_before_keeps_its_floor_and_predicts_no_memory(tmp_path):
    rows = bill(tmp_path, predicted={"step_seconds": 0.02, "memory": 12345})

    assert rows["time of a step"]["predicted"] == "at least 20 ms"
    assert rows["memory"]["predicted"] == "not predicted" and rows["memory"]["difference"] == ""


def test_a_difference_says_how_much_more_or_less_came():
    assert [format_difference(*pair) for pair in ((2.0, 3.0), (2.0, 1.0), (2.0, 2.0), (None, 2.0), (2.0, None))] \
        == ["+50%", "-50%", "0%", "", ""]  # fmt: skip
