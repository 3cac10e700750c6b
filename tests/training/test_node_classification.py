"""The nodes of one graph: the whole graph in every step, the labels of one part alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training.builders import advanced, assert_same, bits, lines

import regard
from regard import zoo
from regard.config.errors import ConfigError, DataError
from regard.training.api import fit, resume_fit
from regard.training.data.read import batch_tokens
from regard.training.run import Run
from regard.training.validation import validate

CITESEER = Path(__file__).parents[3] / "shared/data/citation-graphs/citeseer.npz"
N = 30
RECIPE = """
[data]
source = "ring.jsonl"
[task]
kind = "node_classification"
[model]
embed = {kind = "graph"}
head = {kind = "token"}
dim = 12
depth = 2
heads = 3
hidden = 20
mask = "edges"
position = {kind = "none"}
dropout = 0.1
[train]
steps = 6
compile = false
device = "cpu"
eval_every = 3
save_every = "none"
[train.optimizer]
kind = "adamw"
lr = 1e-2
[train.schedule]
warmup = 2
"""


def ring(**changes):
    """Nodes in a ring, red up to the middle and blue after; every node knows its own number only a little."""
    chance = torch.Generator().manual_seed(0)
    nodes = torch.randn(N, 4, generator=chance)
    nodes[:, 0] = (torch.arange(N) < N // 2) * 2.0 - 1
    parts = [("train", "validation", "test", "")[node % 4] for node in range(N)]
    labels = ["red" if node < N // 2 else "blue" for node in range(N)]
    edges = [[node, (node + 1) % N] for node in range(N)]
    return {"nodes": nodes.tolist(), "edges": edges, "labels": labels, "parts": parts, **changes}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    write(ring())
    return tmp_path


def write(*records):
    with open("ring.jsonl", "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def read(*changes):
    return zoo.read_recipe("recipe.toml", changes)


def test_the_graph_settles_features_classes_and_nodes(desk):
    run = Run.from_recipe(read())

    assert run.recipe.model.embed.features == 4 and run.recipe.model.embed.max_nodes == N
    assert run.recipe.task.classes == ("blue", "red") and run.recipe.model.head.out == 2
    assert batch_tokens(run.data.batch(0)) == N


def test_only_nodes_of_the_training_part_teach(desk):
    run = Run.from_recipe(read("train.schedule.warmup=0"))
    before = advanced(run, 3)

    others = ring()
    others["labels"] = [label if part == "train" else "blue" for label, part in zip(others["labels"], others["parts"],
                                                                                    strict=True)]  # fmt: skip
    write(others)

    assert advanced(Run.from_recipe(read("train.schedule.warmup=0")), 3) == before


def test_each_part_asks_its_own_nodes(desk):
    for part in ("train", "validation", "test"):
        run = Run.from_recipe(read(f"task.eval_split={part}"))
        score = validate(run.model, run.validation.batches(), run.objective, scores=True)

        assert score.count == ring()["parts"].count(part) and set(score.scores) == {"accuracy", "f1", "matthews"}


def test_without_parts_a_share_of_the_labelled_nodes_validates(desk):
    record = ring(labels=[None if node % 3 == 0 else "ab"[node % 2] for node in range(N)])
    del record["parts"]
    write(record)

    run = Run.from_recipe(read("data.validation=0.25"))
    asked = [run.data.batch(0)["labels"], next(run.validation.batches())["labels"]]

    assert [int((labels >= 0).sum()) for labels in asked] == [15, 5]
    assert not ((asked[0] >= 0) & (asked[1] >= 0)).any()


def test_a_run_on_nodes_learns_and_resumes_bit_for_bit(desk):
    straight = Run.from_recipe(read("train.steps=8"))
    losses = advanced(straight)
    half = Run.from_recipe(read("train.steps=8"))
    advanced(half, 4)
    half.save("half")
    again = Run.from_recipe(read("train.steps=8"), fresh=False)
    again.load("half")

    assert advanced(again) == losses[4:] and losses[-1] < losses[0]
    assert_same(bits(again), bits(straight))


def test_signs_of_waves_change_from_step_to_step_and_never_in_validation(desk):
    run = Run.from_recipe(read("model.embed.laplacian_pe=3"))
    waves = [run.data.batch(step)["laplacian_pe"] for step in (*range(6), 0)]
    held = [next(run.validation.batches())["laplacian_pe"] for _ in range(2)]

    assert torch.equal(waves[0], waves[-1]) and not all(torch.equal(waves[0], each) for each in waves[1:-1])
    assert torch.equal(*held) and torch.equal(waves[0].abs(), held[0].abs())


@pytest.mark.slow
def test_a_whole_run_can_be_fitted_resumed_and_evaluated_on_its_test_nodes(desk):
    done = fit(read("train.steps=40", "train.save_every=20", "train.keep_checkpoints=3"), "run", quiet=True)
    logged = lines(desk / "run/log.jsonl")
    shutil.rmtree(desk / "run/checkpoints/step-000040")

    back = resume_fit("run", quiet=True)
    said = regard.evaluate("run", "ring.jsonl", ["task.eval_split=test"])

    assert done.scores["accuracy"] > 0.8 and back.steps == 40 and lines(desk / "run/log.jsonl") == logged
    assert said.scores["accuracy"] > 0.7 and said.score.count == 7


@pytest.mark.slow
def test_cora_is_trained_by_its_recipe(desk):
    run = Run.from_recipe("cora", ["train.steps=2", "train.device=cpu"])

    assert len(advanced(run)) == 2
    assert validate(run.model, run.validation.batches(), run.objective).count == 500


def test_citeseer_is_cora_with_papers_of_your_own(desk):
    """Nothing was chosen on its papers: the recipes differ in what they read alone."""
    cora, citeseer = (zoo.read_recipe(name, ["report.max_new_tokens=1"]) for name in ("cora", "citeseer"))

    assert citeseer.data.source == "citeseer.npz" and replace(citeseer, data=cora.data) == cora


@pytest.mark.slow
@pytest.mark.skipif(not CITESEER.is_file(), reason=f"no copy of the papers in {CITESEER.parent}")
def test_citeseer_is_trained_by_its_recipe(desk):
    run = Run.from_recipe("citeseer", [f"data.source={CITESEER}", "train.steps=2", "train.device=cpu"])

    assert len(advanced(run)) == 2 and run.recipe.model.head.out == 6
    assert validate(run.model, run.validation.batches(), run.objective).count == 500


def test_a_penalty_makes_features_that_no_labelled_node_has_fade(desk):
    """Feature 3 is nothing but at one node, which is far from all that are asked; decay alone moves its weights."""
    nodes = [[float(node < N // 2), 1.0, 0.5, float(node == 22)] for node in range(N)]
    write(ring(nodes=nodes, parts=["train" if node < 10 else "validation" if node == 22 else "" for node in range(N)]))
    left = {}
    for decoupled in ("true", "false"):
        run = Run.from_recipe(read("train.steps=30", "train.optimizer.weight_decay=0.1", "train.schedule.warmup=0",
                                   f"train.optimizer.decoupled={decoupled}"))  # fmt: skip
        before = run.model.embed.nodes.weight[:, 3].norm().item()
        advanced(run)
        left[decoupled] = run.model.embed.nodes.weight[:, 3].norm().item() / before

    assert left["true"] > 0.95 and left["false"] < 0.5


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("changes, message", [
    ({"labels": ["red"]}, "ring.jsonl:1: 1 labels for 30 nodes"),
    ({"labels": None}, "no list of labels for 30 nodes"),
    ({"labels": ["red"] * N}, "labels of 1 class; expected two or more"),
    ({"parts": ["train"]}, "parts do not go with 30 nodes"),
    ({"parts": ["train"] * (N - 1) + ["dev"]}, "node 29 is in part 'dev'; expected train, validation, test or nothing"),
    ({"labels": [None, *"ab" * 14, "a"]}, "node 0 is in part 'train' and has no label"),
    ({"parts": ["train"] * N}, "no nodes in part 'validation'"),
    ({"edges": [[0, 99]]}, "edge 0 joins 0 and 99"),
])  # fmt: skip
def test_a_graph_that_cannot_be_asked_says_why(desk, changes, message):
    write(ring(**changes))

    with pytest.raises(DataError, match=message):
        Run.from_recipe(read())


def test_two_graphs_are_one_too_many(desk):
    write(ring(), ring())

    with pytest.raises(DataError, match="ring.jsonl: 2 graphs; task 'node_classification' classifies the nodes of one"):
        Run.from_recipe(read())


@pytest.mark.parametrize("change, message", [
    ("model.head.kind=pooling", "model.head.kind: 'pooling', and task 'node_classification' needs token"),
    ("train.batch_size=7", "train.batch_size: task 'node_classification' reads one whole graph"),
    ("model.embed={kind=\"text\"}", "model.embed.kind: 'text', and task 'node_classification' needs graphs"),
    ("model.embed.num_tags=3", "no tags, which model.embed.num_tags needs"),
    ("model.embed.features=3", "4 features at a node, and model.embed.features is 3"),
    ("task.classes=[\"red\", \"green\"]", "label 'blue' is none of the 2 classes"),
])  # fmt: skip
def test_a_setting_that_does_not_go_with_nodes_says_so(desk, change, message):
    with pytest.raises((ConfigError, DataError), match=message):
        Run.from_recipe(read(change))
