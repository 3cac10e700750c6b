"""Arrays come back as they were made, of every type and shape, from files that are whole or made again."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.config.errors import DataError
from regard.data import tensor_store as module
from regard.data.batching import FixedSizeBatches
from regard.data.prepare import split_rows
from regard.data.tensor_store import TensorRows, hash_row, store_tensors
from regard.doctor.check_data import count_leaks

TYPES = (torch.uint8, torch.float32, torch.int64, torch.bool)


def quiet(line):
    raise AssertionError(f"nothing was to be said, but: {line}")


def made(rows, folder, key="key", **how):
    return store_tensors(lambda tally: iter(rows), {"key": key}, Path(folder), "rows", **{"notice": quiet, **how})


def drawn(shape, kind, seed):
    chance = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=chance) * 90).to(kind)


def same(ours, theirs):
    pairs = [(ours.get(name), theirs[name]) for name in theirs]
    return ours.keys() == theirs.keys() and all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@st.composite
def tables(draw):
    """Rows with the same columns, each column with so many axes of any size, nothing included."""
    axes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    kinds = [draw(st.sampled_from(TYPES)) for _ in axes]
    return [{f"c{place}": drawn(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), kind, row)
             for place, (count, kind) in enumerate(zip(axes, kinds, strict=True))}
            for row in range(draw(st.integers(1, 5)))]  # fmt: skip


@given(rows=tables())
def test_rows_of_every_type_and_shape_come_back_from_the_files(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    first, again = made(rows, folder), store_tensors(quiet, {"key": "key"}, folder, "rows", notice=quiet)

    for found in (first, again):
        assert len(found) == len(rows) and all(map(same, found, rows)) and same(found[-1], rows[-1])
    assert again.marks().tolist() == [hash_row(row) for row in rows]


@given(rows=tables())
def test_where_nothing_can_be_written_the_rows_are_the_same(rows, tmp_path_factory):
    file, said = tmp_path_factory.mktemp("cache") / "file", []
    file.write_text("a file where a folder should be")

    assert all(map(same, made(rows, file, notice=said.append), rows))
    assert len(said) == 1 and "REGARD_CACHE" in said[0]


def test_rows_are_written_in_chunks_and_the_count_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 40)
    done, rows = [], [{"x": drawn((3, 1 + n % 2), torch.float32, n)} for n in range(7)]

    assert all(map(same, made(rows, tmp_path, progress=done.append), rows))
    assert done[-1] == 7 and len(done) > 2 and done == sorted(done)


def test_what_is_read_can_be_changed_and_the_file_cannot(tmp_path):
    rows = made([{"x": torch.arange(5)}], tmp_path)
    rows[0]["x"].fill_(9)

    assert rows[0]["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("file", ["bytes", "shapes", "lengths", "marks", "json"])
def test_files_that_are_damaged_are_made_again(file, tmp_path):
    rows = [{"x": drawn((3, n), torch.uint8, n), "label": torch.tensor(n)} for n in (2, 5)]
    made(rows, tmp_path)
    [path] = tmp_path.glob(f"*.{file}")
    path.write_bytes(path.read_bytes()[:-8])

    assert all(map(same, made(rows, tmp_path), rows))


def test_sizes_that_do_not_go_with_the_bytes_are_made_again(tmp_path):
    rows = [{"x": drawn((3, 5), torch.uint8, 1)}]
    made(rows, tmp_path)
    [path] = tmp_path.glob("*.shapes")
    path.write_bytes(path.read_bytes()[:8] + (99).to_bytes(8, "little"))

    assert all(map(same, made(rows, tmp_path), rows))


def test_two_questions_have_one_mark_only_if_they_are_the_same():
    zeros = [torch.zeros(6, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(3, 2).to(torch.uint8),
             torch.zeros(6, dtype=torch.bool)]  # fmt: skip

    assert len({hash_row({"x": each}) for each in zeros}) == len(zeros)
    assert hash_row({"x": zeros[0], "label": torch.tensor(1)}) == hash_row({"x": zeros[0], "label": torch.tensor(2)})


def test_parts_share_no_question_and_lose_none(tmp_path):
    rows = made([{"x": torch.tensor([n % 61]), "n": torch.tensor(n)} for n in range(200)], tmp_path)
    train, kept = split_rows(rows, 0.3)

    assert sorted(int(row["n"]) for part in (train, kept) for row in part) == list(range(200))
    assert count_leaks(train, kept) == (0, len(kept)) and 0 < len(kept) < len(train)
    again = kept.part(torch.tensor([2, 0]), "some")
    assert [int(row["n"]) for row in again] == [int(kept[2]["n"]), int(kept[0]["n"])]


def test_lengths_are_what_the_sense_says_and_alike_means_one_shape(tmp_path):
    rows = made([{"x": torch.zeros(n, 3)} for n in (4, 2, 7)], tmp_path, length=lambda row: len(row["x"]))
    even = made([{"x": torch.zeros(5, 3)} for _ in range(3)], tmp_path, key="even")

    assert rows.lengths().tolist() == [4, 2, 7] and not rows.alike and even.alike
    assert rows.part(torch.tensor([2]), "one").lengths().tolist() == [7]


def test_rows_that_differ_in_their_columns_are_refused(tmp_path):
    with pytest.raises(TypeError, match="the same columns"):
        made([{"x": torch.zeros(2)}, {"y": torch.zeros(2)}], tmp_path)
    with pytest.raises(TypeError, match="float64"):
        made([{"x": torch.zeros(2, dtype=torch.float64)}], tmp_path, key="other")


def test_no_rows_are_one_sentence(tmp_path):
    with pytest.raises(DataError, match="rows: no records to train on"):
        made([], tmp_path)


def test_batches_by_step_are_a_function_of_seed_and_step(tmp_path):
    rows: TensorRows = made([{"x": torch.tensor([n])} for n in range(11)], tmp_path)
    first, again = (FixedSizeBatches(rows, lambda some, chance: {"x": torch.stack([row["x"] for row in some]),
                                                      "luck": torch.rand(3, generator=chance)}, 4, seed=5)
                    for _ in range(2))  # fmt: skip

    assert same(first.batch(7), again.batch(7)) and not same(first.batch(7), again.batch(8))
