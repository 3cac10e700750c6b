"""Whatever a recipe trains, it can be looked at before: its parts, its kernels, its cost."""

import pytest

from regard import zoo

# whose data nobody ships, and whose sizes only these data say
ABSENT = {"citeseer": "citeseer.npz", "finetune-answer": "questions.jsonl", "finetune-regress": "scored.jsonl",
          "finetune-tag": "tagged.jsonl", "glue-cola": "glue_data/CoLA/train.tsv",
          "glue-mrpc": "glue_data/MRPC/train.tsv", "glue-rte": "glue_data/RTE/train.tsv",
          "glue-sst2": "glue_data/SST-2/train.tsv", "glue-stsb": "glue_data/STS-B/train.tsv"}  # fmt: skip
SENSED = ["spoken-digits", "etth1", "cora", "mutag", "digits", "emoji-clip", "emoji-prefix", "emoji-draw"]
SLOW = [
    pytest.param(name, marks=() if name in (*SENSED, *ABSENT) else pytest.mark.slow) for name in zoo.packaged_recipes()
]


@pytest.mark.parametrize("verb", ["explain", "estimate"])
@pytest.mark.parametrize("name", SLOW)
def test_every_recipe_is_explained_and_estimated(say, desk, name, verb):
    told = say(verb, name)

    if name in ABSENT:
        assert told.code == 3
        assert told.err.startswith(f"regard: {ABSENT[name]}: no such file") and told.err.count("\n") == 1
    else:
        assert told.code == 0, told.err
        assert "parameters" in told.out and "Traceback" not in told.err


@pytest.mark.parametrize(
    ("name", "words"),
    [("spoken-digits", "mel, 2.5 s at 8,000 Hz"), ("etth1", "each of 7 channels"), ("cora", "1,433 features"),
     ("emoji-prefix", "embed.text"), ("digits", "patches"), ("compare-digits-cnn", "convolutions")],
)  # fmt: skip
def test_a_front_end_is_told_in_words(say, name, words):
    assert words in say("explain", name).out


def test_a_graph_is_one_step(say):
    assert "cost of 1 x 2708 tokens" in say("explain", "cora").out


def test_a_graph_whose_width_nobody_says_is_refused_by_name(say, desk):
    (desk / "mine.toml").write_text('[task]\nkind = "classification"\n[model]\nembed = {kind = "graph"}\n'
                                    'head = {kind = "pooling"}\nposition = {kind = "none"}\n')  # fmt: skip
    told = say("explain", "mine.toml")

    assert told.code == 2
    assert told.err.startswith("regard: model.embed: ") and "model.embed.features" in told.err
    assert told.err.count("\n") == 1
