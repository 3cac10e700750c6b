"""Projects that one command answers: over the length of a text, and over the number of images."""

import json

import pytest
from sizes import FULL

from regard.data.builtin import ToyDataset
from regard.studies import kernel_error
from regard.studies.vit_vs_cnn import IMAGE_RECIPES, write_subsets
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe


@pytest.mark.slow
@pytest.mark.spec("S182")
def test_transformer_or_recurrent_network_over_the_length_is_one_command(desk, say, monkeypatch):
    """On the first two thousand words of each length: which they are changes nothing of what is asked."""
    monkeypatch.setattr(ToyDataset, "records", lambda toy, tally: map(toy.record, range(2000)))
    monkeypatch.setattr(kernel_error, "SHORTEST", 128)
    monkeypatch.setattr(kernel_error, "LONG", 0.0)
    told = say("compare", "transformer-vs-rnn", "--quick", "train.steps=2", "data.validation=0.05", "--out", "out",
               "--json")  # fmt: skip

    assert told.code == 0, told.err
    [table] = json.loads(told.out)["tables"]
    lengths = {row["chosen"]["variant"] for row in table["rows"]}
    models = {row["chosen"]["recipe"] for row in table["rows"]}
    assert lengths == {"8", "16", "32", "64"}
    assert models == {"compare-recall", "compare-recall-lstm", "compare-recall-gru"}
    assert len(table["rows"]) == 12 and all(row["validation"] > 0 for row in table["rows"])
    assert (desk / "out" / "compare.csv").read_text().count("\n") == 13
    assert "<svg" in (desk / "out" / "compare.html").read_text()


@pytest.mark.parametrize("length", [8, 64])
@pytest.mark.spec("S182")
def test_the_rivals_have_as_many_weights_whatever_the_length(length):
    more = [f"data.source=toy:copy({length}, 500)", "data.validation=0.1", "train.device=cpu"]
    counts = [sum(weight.numel() for weight in Run.from_recipe(read_recipe(name, more)).model.parameters())
              for name in ("compare-recall", "compare-recall-lstm", "compare-recall-gru")]  # fmt: skip

    assert max(counts) < 1.02 * min(counts)


@pytest.mark.slow
@pytest.mark.spec("S131")
def test_convolutions_are_ahead_where_images_are_few(desk):
    """160 digits to learn from, 500 others to tell; as many weights, the same steps; two seeds, in CI one."""
    files, right = write_subsets(desk / "data", (160,)), {}
    for name, who in IMAGE_RECIPES.items():
        for seed in (0, 1) if FULL else (0,):
            more = [f'data.source="{files[160]}"', f'data.validation="{desk / "data" / "test.jsonl"}"',
                    "train.steps=150", f"train.seed={seed}", "train.device=cpu", "train.compile=false"]  # fmt: skip
            run = Run.from_recipe(read_recipe(name, more))
            for _ in train_steps(run):
                pass
            score = validate(run.model, run.validation.batches(), run.task, scores=True)
            right.setdefault(who, []).append(score.scores["accuracy"])

    assert min(right["CNN"]) > max(right["ViT"]) > 0.5, right
