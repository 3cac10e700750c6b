"""The doctor on recipes that there is nothing wrong with: false alarms are as bad as misses."""

import json
import random

import pytest
from doctor.test_doctor import PAIRS, PATIENT, WORDS, prose
from training.builders import advanced

from regard import doctor, zoo
from regard.training.api import fit
from regard.training.run import Run

ENCODER = ['model.mask="full"', "model.dropout=0.1"]
POOLED = ["model.head.kind=pooling", "model.head.pooling=mean"]
HEALTHY = {
    "fp32": [],
    "mixed": ["train.precision=mixed"],
    "bf16": ["train.precision=bf16"],
    "accumulated, with dropout": ["train.gradient_accumulation=2", "model.dropout=0.1"],
    "muon": ["train.optimizer.kind=muon", "train.optimizer.lr=0.02", "model.preset=lab"],
    "adafactor": ["train.optimizer.kind=adafactor", "train.optimizer.lr=0.05"],
    "llama": ["model.preset=llama-7b", "model.hidden=40"],
    "t5's positions": ["model.position.kind=t5"],
    "alibi": ["model.position.kind=alibi"],
    "windows": ['model.mask="causal & window(9)"'],
    "post-norm": ["model.trunk.norm_placement=post", "model.depth=6"],
    "recomputed": ["train.activation_checkpointing=true"],
    "in chunks": ["train.loss_chunk=13"],
    "with a mean of weights": ["train.ema_decay=0.9"],
    "a long warm-up": ["train.schedule.warmup=4000", "train.steps=20000"],
    "noam": ["train.schedule.kind=noam", "train.schedule.warmup=400", "train.optimizer.lr=0.5", "train.steps=20000"],
    "masked_lm": ["task.kind=masked_lm", "data.source=lines.jsonl", *ENCODER],
    "masked_lm, rows of one length": [
        "task.kind=masked_lm",
        "data.source=lines.jsonl",
        "train.batch_tokens=300",
        *ENCODER,
    ],
    "packed": ["data.source=lines.jsonl", "train.pack=true"],
    "classification": ["task.kind=classification", "data.source=lines.jsonl", *POOLED, *ENCODER],
    "classification, padded left": [
        "task.kind=classification",
        "data.source=lines.jsonl",
        *POOLED,
        *ENCODER,
        "train.padding_side=left",
    ],
    "regression": ["task.kind=regression", "task.label=size", "data.source=lines.jsonl", *POOLED, *ENCODER],
}


@pytest.fixture
def clinic(desk):
    chance = random.Random(3)
    lines = [" ".join(chance.choices(WORDS, k=chance.randint(2, 6)))[:31] for _ in range(700)]
    rows = [{"text": line, "label": "queen" in line, "size": len(line) / 31} for line in lines]
    (desk / "lines.jsonl").write_text("".join(json.dumps({**row, "label": str(row["label"])}) + "\n" for row in rows))
    (desk / "long.txt").write_text(prose())
    (desk / "patient.toml").write_text(PATIENT)
    (desk / "pairs.toml").write_text(PAIRS)
    return desk


def troubled(run, steps=50, **more):
    """All but too little data, which is true of these."""
    found = doctor.examine_run(run, steps, **more)
    return [finding for finding in found if finding.verdict != "fine" and finding.check != "amount of data"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_recipe_gets_a_clean_bill(clinic, kind):
    assert troubled(Run.from_recipe("patient.toml", HEALTHY[kind])) == []


@pytest.mark.slow
@pytest.mark.parametrize("changes", [[], ["train.precision=mixed"], ["train.batch_tokens=400"]], ids=str)
def test_a_healthy_translator_gets_a_clean_bill(clinic, changes):
    assert troubled(Run.from_recipe("pairs.toml", changes)) == []


@pytest.mark.slow
def test_the_packaged_small_recipe_gets_a_clean_bill(desk):
    assert troubled(Run.from_recipe("shakespeare-nano", ["train.compile=false"])) == []


@pytest.mark.slow
def test_a_run_that_has_learned_gets_a_clean_bill(clinic):
    run = Run.from_recipe("patient.toml", ["train.steps=300"])
    advanced(run, 250)

    assert troubled(run, 30) == []


@pytest.mark.slow
def test_a_run_that_has_ended_gets_a_clean_bill_from_its_folder(clinic):
    """Its learning rate has come down to nothing; that is no frozen layer."""
    changes = [
        "train.steps=60",
        "train.schedule.kind=cosine",
        "report.prompt=a",
        "report.max_new_tokens=2",
        "train.eval_every=20",
    ]
    fit(zoo.read_recipe("patient.toml", changes), "run", quiet=True)
    run, log = doctor.open_run_or_recipe("run")
    told = {finding.check: finding for finding in doctor.examine_run(run, 20, log=log)}

    assert [finding for finding in told.values() if finding.verdict == "wrong"] == []
    assert told["log"].evidence.startswith("60 steps, 0 skipped; validation is ")
