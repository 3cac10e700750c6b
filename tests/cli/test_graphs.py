"""Graphs from the command line: the nodes of one graph and many small ones, trained, taken up again, judged; and what
goes wrong in their files."""

import json
import shutil

import pytest
import torch

N = 30
NODES = """
[data]
source = "ring.jsonl"
[task]
kind = "node_classification"
[model]
embed = {kind = "graph", hops = 2, node_dropout = 0.3, dropout = 0.1}
head = {kind = "token"}
dim = 12
depth = 1
heads = 3
hidden = 20
mask = "edges"
position = {kind = "none"}
dropout = 0.1
[train]
steps = 12
compile = false
device = "cpu"
eval_every = 6
save_every = 6
keep_checkpoints = 3
[train.optimizer]
kind = "adamw"
lr = 1e-2
decoupled = false
[train.schedule]
warmup = 2
"""
GRAPHS = NODES.replace("ring.jsonl", "rings.jsonl").replace('"node_classification"', '"classification"').replace(
    '"token"', '"pooling", pooling = "mean"').replace("dropout = 0.1}", "num_tags = 2, max_nodes = 9}")  # fmt: skip


def ring(count=N, **changes):
    """Nodes in a ring, red up to the middle and blue after, told apart by their first feature."""
    side = [node < count // 2 for node in range(count)]
    nodes = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    nodes[:, 0] = torch.tensor(side) * 2.0 - 1
    return {"nodes": nodes.tolist(), "edges": [[node, (node + 1) % count] for node in range(count)],
            "labels": ["red" if each else "blue" for each in side],
            "parts": [("train", "validation", "test")[node % 3] for node in range(count)], **changes}  # fmt: skip


def necklace(count):
    """A ring of three to eight beads of two kinds, and whether their number is odd."""
    size = 3 + count % 6
    tags, edges = [count >> bead & 1 for bead in range(size)], [[bead, (bead + 1) % size] for bead in range(size)]
    return {"tags": tags, "edges": edges, "label": "odd" if size % 2 else "even"}


def write(name, *records):
    with open(name, "w", encoding="utf8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def shelf(desk, monkeypatch):
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *what: 1e10)
    (desk / "nodes.toml").write_text(NODES)
    (desk / "graphs.toml").write_text(GRAPHS)
    write("ring.jsonl", ring())
    write("rings.jsonl", *(necklace(count) for count in range(36)))
    return desk


@pytest.mark.slow
def test_nodes_are_trained_on_and_those_of_the_test_judged(shelf, say):
    assert say("train", "nodes.toml", "--out", "run", "train.steps=40").code == 0

    said = say("evaluate", "run", "ring.jsonl", "task.eval_split=test", "--json")

    found = json.loads(said.out)
    assert said.code == 0 and found["task"] == "node_classification" and found["accuracy"] > 0.7
    assert "perplexity" not in found and "tokens" not in found


def test_a_run_on_nodes_that_lost_its_end_is_taken_up_again_bit_for_bit(shelf, say):
    assert say("train", "nodes.toml", "--out", "run").code == 0
    last = shelf / "run/checkpoints/step-000012/model.safetensors"
    before = last.read_bytes()
    shutil.rmtree(last.parent)

    assert say("resume", "run").code == 0
    assert last.read_bytes() == before


def test_small_graphs_are_classified(shelf, say):
    assert say("train", "graphs.toml", "--out", "run").code == 0

    said = say("evaluate", "run", "rings.jsonl", "--json")

    assert said.code == 0 and json.loads(said.out)["rows"] == 36


def test_two_tables_are_one_graph(shelf, say):
    made = ring()
    lines = [f"n{node},{label},{part}," + ",".join(map(str, nodes)) for node, (label, part, nodes) in
             enumerate(zip(made["labels"], made["parts"], made["nodes"], strict=True))]  # fmt: skip
    (shelf / "nodes.csv").write_text("\n".join(["node,label,part,a,b,c", *lines]))
    (shelf / "edges.csv").write_text("\n".join(["from,to", *(f"n{a},n{b}" for a, b in made["edges"])]))
    for name, source in (("one", "ring.jsonl"), ("two", "edges.csv + nodes.csv")):
        assert say("train", "nodes.toml", "--out", name, f"data.source={source}").code == 0

    ends = [shelf / name / "checkpoints/step-000012/model.safetensors" for name in ("one", "two")]
    assert ends[0].read_bytes() == ends[1].read_bytes()


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("changes, message", [
    ({"edges": [[0, 1], [4, 30]]}, "ring.jsonl:1: edge 1 joins 4 and 30, and the nodes are 0 to 29"),
    ({"edges": [[0, -1]]}, "edge 0 joins 0 and -1"),
    ({"edges": [[2, 2]]}, "edge 0 joins 2 and 2, a loop"),
    ({"nodes": [], "labels": [], "parts": []}, "a graph of 0 nodes, so there is nothing to look at"),
    ({"nodes": [[0.5]] * 3}, "edge 2 joins 2 and 3"),
    ({"nodes": [[float("nan")] * 3] * N}, "feature 0 of node 0 is nan"),
    ({"labels": ["red"] * 3}, "3 labels for 30 nodes"),
    ({"edges": "everywhere"}, "edges are 'everywhere'; expected pairs of nodes"),
])  # fmt: skip
def test_a_graph_that_is_not_one_is_a_sentence_and_code_3(shelf, say, changes, message):
    write("ring.jsonl", ring(**changes))

    said = say("train", "nodes.toml", "--out", "run")

    assert said.code == 3 and message in said.err and len(said.err.strip().splitlines()) == 1
    assert not (shelf / "run").exists()


@pytest.mark.parametrize("record, message", [
    ({"tags": [], "edges": [], "label": "odd"}, "rings.jsonl:37: a graph of 0 nodes"),
    ({"tags": [0, 1], "edges": [[0, 2]], "label": "odd"}, "rings.jsonl:37: edge 0 joins 0 and 2"),
    ({"tags": [0, 7], "edges": [[0, 1]], "label": "odd"}, "node 1 has tag 7, and model.embed.num_tags is 2"),
    ({"tags": [0] * 10, "edges": [], "label": "odd"}, "10 nodes, and model.embed.max_nodes is 9"),
])  # fmt: skip
def test_one_bad_graph_among_many_is_named_by_its_line(shelf, say, record, message):
    write("rings.jsonl", *(necklace(count) for count in range(36)), record)

    said = say("train", "graphs.toml", "--out", "run")

    assert said.code == 3 and message in said.err and len(said.err.strip().splitlines()) == 1


def test_a_run_says_which_graph_it_cannot_be_asked_about(shelf, say):
    assert say("train", "nodes.toml", "--out", "run").code == 0
    write("ring.jsonl", ring(edges=[[0, 99]]))

    said = say("evaluate", "run", "ring.jsonl", "task.eval_split=test")

    assert said.code == 3 and "edge 0 joins 0 and 99" in said.err
