"""Graphs in files: lists of neighbours, two tables, arrays, and JSON; and every way in which they may be wrong."""

import io
import json
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.config.errors import DataError
from regard.config.recipe import Data
from regard.data.readers import arrays
from regard.data.readers.graphs import graph_of_record
from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import find_records

SHARED = Path(__file__).resolve().parents[3] / "shared/data"
LISTS = "2\n3 1\n6 1 1\n6 2 0 2\n8 1 1\n\n2 -1\n0 1 1 0.5\n1 1 0 2\n"


def records(name, on_bad_record="error"):
    tally = BadRecordPolicy(on_bad_record)
    found = [record for table in find_records([name], Data()) for record in table.records(tally)]
    return (found, tally.count) if on_bad_record == "skip" else found


def problem(name):
    with pytest.raises(DataError) as found:
        records(name)
    return str(found.value)


def graph(columns, where="here.jsonl:7"):
    return graph_of_record(Record(columns, where))


# ---------------------------------------------------------------- records


def test_an_edge_said_from_both_sides_is_one_edge():
    made = graph({"tags": [6, 8, 6], "edges": [[0, 1], [2, 1], [1, 0]]})

    assert made.edges.tolist() == [[0, 1], [1, 2]] and made.tags.tolist() == [6, 8, 6] and made.features is None
    assert made.joined.int().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_a_graph_may_stand_in_a_column_of_its_own():
    inner = {"nodes": [[0.5, 1], [2, 3]], "edges": []}

    made = graph_of_record(Record({"graph": inner, "label": 1}, "x:1"), "graph")

    assert made.count == 2 and made.edges.shape == (0, 2) and made.features.tolist() == [[0.5, 1], [2, 3]]


@pytest.mark.parametrize("columns, message", [
    ({"tags": [0, 1], "edges": [[0, 2]]}, "edge 0 joins 0 and 2, and the nodes are 0 to 1"),
    ({"tags": [0, 1], "edges": [[0, 1], [-1, 0]]}, "edge 1 joins -1 and 0, and the nodes"),
    ({"tags": [0, 1], "edges": [[1, 1]]}, "edge 0 joins 1 and 1, a loop"),
    ({"tags": [0, 1], "edges": [[0, 1], [1, 0], [0, 1]]}, "edge 2 joins 0 and 1, as one before"),
    ({"tags": [0, 1], "edges": [[0, 1, 2]]}, "edges are .*expected pairs"),
    ({"tags": [0, 1], "edges": [[0, 1], [1]]}, "edges are .*expected pairs"),
    ({"tags": [0, 1], "edges": [["a", "b"]]}, "edges are .*expected pairs"),
    ({"tags": [0, 1], "edges": [[0.0, 1.0]]}, "edges are .*expected pairs"),
    ({"tags": [0, 1], "edges": 3}, "edges are 3"),
    ({"tags": [], "edges": []}, "0 nodes, so there is nothing to look at"),
    ({"nodes": [], "edges": []}, "0 nodes, so there is nothing to look at"),
    ({"tags": [0, -2], "edges": []}, "node 1 has the tag -2"),
    ({"tags": [0.5], "edges": []}, "expected a whole number"),
    ({"tags": ["C"], "edges": []}, "expected a whole number"),
    ({"tags": [True], "edges": []}, "true and false"),
    ({"nodes": [[1, 2], [3]], "edges": []}, "node 1 has 1 features, and the first has 2"),
    ({"nodes": [[1, 2], [3, float("nan")]], "edges": []}, "feature 1 of node 1 is nan"),
    ({"nodes": [[1, float("inf")]], "edges": []}, "feature 1 of node 0 is inf"),
    ({"nodes": [[1], 2], "edges": []}, "nodes are"),
    ({"nodes": [1, 2], "edges": []}, "nodes are"),
    ({"nodes": [[1]], "tags": [0, 1], "edges": []}, "1 tags and 2 nodes"),
    ({"edges": [[0, 1]]}, "edges is no graph; expected the columns edges, and tags or nodes"),
    ({"tags": [0]}, "tags is no graph"),
    ({"graph": "C1CC1"}, "'C1CC1' is no graph"),
    ({"tags": [0] * 40_000, "edges": []}, "40,000 nodes, more than the limit of 32,768"),
])  # fmt: skip
def test_a_bad_graph_is_one_sentence_that_says_where_it_stood(columns, message):
    with pytest.raises(DataError, match=message) as found:
        graph(columns)

    assert str(found.value).startswith("here.jsonl:7: ") and "\n" not in str(found.value)


def test_json_lines_are_graphs_and_a_bad_one_is_passed_over_if_asked(tmp_path):
    rows = [{"tags": [0, 1], "edges": [[0, 1]], "label": "a"}, {"tags": [0], "edges": [[0, 5]], "label": "b"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))

    found = records(str(tmp_path / "mine.jsonl"))

    assert graph_of_record(found[0]).count == 2
    with pytest.raises(DataError, match="mine.jsonl:2: edge 0 joins 0 and 5"):
        graph_of_record(found[1])


# ---------------------------------------------------------------- lists of neighbours


def test_lists_of_neighbours_are_graphs_with_labels_and_features(tmp_path):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(LISTS.encode()))

    first, second = records(f"graphs:{tmp_path / 'a.txt.xz'}")

    assert first == {"tags": [6, 6, 8], "edges": [[0, 1], [1, 2]], "label": "1"} and first.where.endswith("a.txt.xz:2")
    assert second == {"tags": [0, 1], "edges": [[0, 1]], "label": "-1", "nodes": [[0.5], [2.0]]}


@pytest.mark.parametrize("text, line, message", [
    ("many\n", 1, "'many' is not how many graphs there are"),
    ("2\n1 0\n0 0\n", None, "the file ends before a line with how many nodes a graph has"),
    ("1\n1 0\n0 0\n0 0\n", 4, "more lines than the graphs that line 1 counts"),
    ("1\n3 0\n0 0\n", 2, "a graph of 3 nodes, and the file ends after 1"),
    ("1\n2 0\n0 1 1\n0 x 0\n", 4, "'0 x 0' is no node"),
    ("1\n2 0\n0 2 1\n0 1 0\n", 3, "2 neighbours, and 1 numbers behind that"),
    ("1\n2 0\n0 1 2\n0 1 0\n", 3, "node 0 is joined to 2, and the nodes are 0 to 1"),
    ("1\n2 0\n0 1 0\n0 0\n", 3, "node 0 is joined to itself"),
    ("1\n2 0\n0 2 1 1\n0 1 0\n", 3, "node 0 is joined to 1 twice"),
    ("1\n2 0\n0 1 1\n0 0\n", 3, "node 0 names 1 as its neighbour, and 1 does not name 0"),
    ("1\nlabel 3\n", 2, "'label 3' is not how many nodes"),
])  # fmt: skip
def test_a_wrong_line_of_a_list_is_named(tmp_path, text, line, message):
    (tmp_path / "a.txt").write_text(text)

    said = problem(f"graphs:{tmp_path / 'a.txt'}")

    assert message in said and said.startswith(f"{tmp_path / 'a.txt'}{'' if line is None else f':{line}'}: ")


def test_a_bad_graph_among_lists_is_passed_over_if_asked(tmp_path):
    (tmp_path / "a.txt").write_text("2\n2 0\n0 1 7\n0 1 0\n1 5\n3 0\n")

    found, count = records(f"graphs:{tmp_path / 'a.txt'}", on_bad_record="skip")

    assert [record["label"] for record in found] == ["5"] and count == 1


@pytest.mark.skipif(not SHARED.exists(), reason="the molecules are not on this machine")
@pytest.mark.parametrize("name, count, tags, nodes, edges, classes", [
    ("MUTAG", 188, 7, 17.9, 19.8, {"0": 63, "1": 125}), ("NCI1", 4110, 37, 29.9, 32.3, {"0": 2053, "1": 2057}),
])  # fmt: skip
@pytest.mark.slow
def test_the_molecules_are_those_that_were_published(name, count, tags, nodes, edges, classes):
    found = records(f"graphs:{SHARED}/molecule-graphs/{name}.txt.xz")
    made = [graph_of_record(record) for record in found]
    labels = [record["label"] for record in found]

    assert len(found) == count and {label: labels.count(label) for label in set(labels)} == classes
    assert max(int(each.tags.max()) for each in made) + 1 == tags
    assert sum(each.count for each in made) / count == pytest.approx(nodes, abs=0.05)
    assert sum(len(each.edges) for each in made) / count == pytest.approx(edges, abs=0.05)


# ---------------------------------------------------------------- two tables


def written(tmp_path, edges, nodes):
    (tmp_path / "edges.csv").write_text(edges)
    (tmp_path / "nodes.csv").write_text(nodes)
    return f"{tmp_path / 'edges.csv'} + {tmp_path / 'nodes.csv'}"


def test_two_tables_are_one_graph(tmp_path):
    name = written(tmp_path, "from,to\nada,bob\ncy,bob\n",
                   "node,part,label,a,b\nada,train,red,0.5,1\nbob,validation,blue,0.1,0\ncy,test,,0.9,1\n")  # fmt: skip

    [found] = records(name)

    assert found == {"edges": [[0, 1], [2, 1]], "labels": ["red", "blue", ""], "parts": ["train", "validation", "test"],
                     "nodes": [[0.5, 1], [0.1, 0], [0.9, 1]]}  # fmt: skip


@pytest.mark.parametrize("edges, nodes, message", [
    ("a,b\n1,2\n", "n,x\n1,0\n", "edges.csv:2: joins '1' and '2', and .*nodes.csv has no '2'"),
    ("a,b\n1,1\n", "n,x\n1,0\n", "edges.csv:2: joins '1' to itself"),
    ("a,b\n1,2\n2,1\n1,2\n", "n,x\n1,0\n2,0\n", "edges.csv:4: joins '1' and '2', as a line before"),
    ("a\n1\n", "n,x\n1,0\n", "edges.csv:2: one column"),
    ("a,b\n", "n,x\n1,0\n1,3\n", "nodes.csv:3: node '1' is listed before .*nodes.csv:2"),
    ("a,b\n", "n,x\n1,red\n", "nodes.csv:2: 'x' is 'red'; expected a number"),
    ("a,b\n", "n,x\n1,nan\n", "nodes.csv:2: 'x' is 'nan'; expected a finite number"),
    ("a,b\n", "n,label\n1,red\n", "nodes.csv:2: the columns are n, label; expected features or a tag beside 'n'"),
    ("a,b\n", "n,x\n", "nodes.csv: no nodes in it"),
    ("a,b\n", "n,x\n1,2,3\n", "nodes.csv:2: 3 fields, expected 2"),
])  # fmt: skip
def test_a_wrong_line_of_a_table_is_named(tmp_path, edges, nodes, message):
    with pytest.raises(DataError, match=message):
        records(written(tmp_path, edges, nodes))


def test_three_tables_are_no_graph(tmp_path):
    name = written(tmp_path, "a,b\n", "n,x\n1,1\n")

    assert "3 files; expected two" in problem(f"{name} + {tmp_path / 'nodes.csv'}")


# ---------------------------------------------------------------- arrays


def test_cora_comes_with_the_package_as_it_was_published():
    [found] = records("cora")
    made = graph_of_record(found)

    assert (made.count, len(made.edges), made.features.shape[1]) == (2708, 5278, 1433)
    assert [found["parts"].count(part) for part in ("train", "validation", "test")] == [140, 500, 1000]
    teaching = [label for label, part in zip(found["labels"], found["parts"], strict=True) if part == "train"]
    assert [teaching.count(label) for label in range(7)] == [20] * 7


def citation(tmp_path, **changes):
    """A small file of the same form."""
    arrays = {"feat_indptr": [0, 2, 2, 3], "feat_indices": [0, 3, 1], "num_nodes": 3, "num_features": 4,
              "edges": [[0, 1], [1, 2]], "labels": [1, 0, -1], "train": [0], "val": [1], "test": []}  # fmt: skip
    arrays |= changes
    path = tmp_path / "small.npz"
    np.savez(path, **{name: np.array(value, dtype=np.int64) for name, value in arrays.items() if value is not None})
    return str(path)


def test_a_file_of_arrays_is_one_graph(tmp_path):
    [found] = records(citation(tmp_path))

    assert found["nodes"].tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert found["edges"].tolist() == [[0, 1], [1, 2]]
    assert found["labels"] == [1, 0, None] and found["parts"] == ["train", "validation", ""]


@pytest.mark.parametrize("changes, message", [
    ({"train": None}, "no array 'train'"),
    ({"train": [9]}, "node 9 in train, and the nodes are 0 to 2"),
    ({"val": [0]}, "node 0 in val, also in train"),
    ({"feat_indptr": [0, 2, 3]}, "no table of 3 x 4"),
    ({"feat_indices": [0, 4, 1]}, "no table of 3 x 4"),
])  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, message):
    assert message in problem(citation(tmp_path, **changes))


def test_a_dangling_edge_of_arrays_is_refused(tmp_path):
    [found] = records(citation(tmp_path, edges=[[0, 1], [1, 3]]))

    with pytest.raises(DataError, match="small.npz: edge 1 joins 1 and 3, and the nodes are 0 to 2"):
        graph_of_record(found)


# ---------------------------------------------------------------- arrays of NumPy, without NumPy


@pytest.mark.parametrize("kind", ["?", "u1", "i1", "i2", "i4", "i8", "u2", "f2", "f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_read_as_numpy_wrote_them(tmp_path, kind, order):
    drawn = np.random.default_rng(0).normal(size=(3, 5, 2)) * 9
    drawn = np.asarray(drawn.astype(kind), order=order)
    saved = {"a": drawn, "b": np.array(7, dtype=kind), "c": np.zeros((0, 4), kind)}
    np.savez(tmp_path / "x.npz", **saved)

    found = arrays.read_npz(tmp_path / "x.npz", "x")

    assert arrays.npz_names(tmp_path / "x.npz", "x") == ["a", "b", "c"]
    for name, array in saved.items():
        assert found[name].shape == array.shape
        assert found[name].tolist() == array.tolist()


def test_packed_arrays_are_unpacked(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.arange(1000))

    assert torch.equal(arrays.read_npz(tmp_path / "x.npz", "x")["a"], torch.arange(1000))


def forged(header, content=b"", version=1):
    text = header.encode().ljust(118)
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text + content


@pytest.mark.parametrize("content, message", [
    (b"no zip at all", "not a whole .npz file"),
    ({"a.npy": b"text"}, "x.npz:a.npy: not an array of NumPy's"),
    ({"a.npy": forged("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"x" * 8)}, "unsupported dtype '|O'"),
    ({"a.npy": forged("{'descr': '<i8', 'fortran_order': False, 'shape': (3,)}", b"x" * 8)}, "8 bytes for an array of"),
    ({"a.npy": forged("__import__('os').abort()")}, "its header has no valid type and shape"),
    ({"a.npy": forged("{'descr': '<i8'}")}, "its header has no valid type and shape"),
    ({"a.npy": forged("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}")}, "a shape of (-1,)"),
])  # fmt: skip
def test_what_is_no_array_is_refused_and_nothing_in_it_runs(tmp_path, content, message):
    whole = io.BytesIO()
    if isinstance(content, dict):
        with zipfile.ZipFile(whole, "w") as archive:
            for name, raw in content.items():
                archive.writestr(name, raw)
    (tmp_path / "x.npz").write_bytes(whole.getvalue() if isinstance(content, dict) else content)

    with pytest.raises(DataError) as found:
        arrays.read_npz(tmp_path / "x.npz", "x.npz")

    assert message in str(found.value)
