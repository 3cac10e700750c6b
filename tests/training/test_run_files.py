"""run.json: what a run should cost is said before its first step."""

import json

from regard.training.api import fit
from regard.training.run import Run
from regard.training.run_files import describe_run


def test_accumulating_is_predicted_as_several_batches_and_one_update(recipe):
    once, twice = (
        describe_run(Run.from_recipe(recipe(f"train.gradient_accumulation={n}")))["predicted"] for n in (1, 2)
    )

    assert twice["step_flops"] == 2 * once["step_flops"]


def test_what_is_predicted_of_memory_is_what_is_measured(desk, recipe):
    fit(recipe("train.steps=3"), desk / "run", quiet=True)
    told = json.loads((desk / "run/run.json").read_text())
    promised, paid = told["predicted"]["memory"], told["measured"]["peak_memory"]

    assert 0 < promised < 2 * paid  # both are of a whole process
    assert told["predicted"]["calibrated"] is False and "--calibrate" in told["predicted"]["note"]
