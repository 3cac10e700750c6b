"""Examples come back as they were made, from files that are whole or made again; and two parts share no question."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import config as C
from regard.config.errors import DataError
from regard.data import example_store as module
from regard.data.example_store import store_examples
from regard.data.prepare import prepare_examples, split_rows, tokenizer_from_records
from regard.data.sources import read_texts
from regard.data.token_shards import TokenShards
from regard.doctor.check_data import count_leaks

whole = st.integers(-(2**31), 2**31 - 1)
ROWS = st.lists(
    st.fixed_dictionaries({"ids": st.lists(whole, max_size=9), "segment": st.lists(whole, max_size=5),
                           "label": st.integers(-(2**53), 2**53), "score": st.floats(allow_nan=False)}),
    min_size=1, max_size=7)  # fmt: skip


def quiet(line):
    raise AssertionError(f"nothing was to be said, but: {line}")


def made(rows, folder, key="key", **how):
    return store_examples(lambda tally: iter(rows), {"key": key}, Path(folder), "rows", **{"notice": quiet, **how})


@given(rows=ROWS)
def test_rows_of_any_length_come_back_from_the_files(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    first = made(rows, folder)
    again = store_examples(quiet, {"key": "key"}, folder, "rows", notice=quiet)

    assert list(first) == list(again) == rows and first[-1] == rows[-1] and again[:2] == rows[:2]
    assert first.lengths().tolist() == [max(len(row["ids"]), len(row["segment"])) for row in rows]
    assert all(type(row["label"]) is int and type(row["score"]) is float for row in again)


@given(rows=ROWS)
def test_where_nothing_can_be_written_the_rows_are_the_same(rows, tmp_path_factory):
    file, said = tmp_path_factory.mktemp("cache") / "file", []
    file.write_text("a file where a folder should be")

    assert list(made(rows, file, notice=said.append)) == rows
    assert len(said) == 1 and "REGARD_CACHE" in said[0]


def test_rows_are_written_in_chunks_and_the_count_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 9)
    done = []
    rows = [{"ids": [n, n], "n": n} for n in range(10)]

    assert list(made(rows, tmp_path, progress=done.append)) == rows
    assert done == [3, 6, 9, 10]


DAMAGE = {
    "ids": lambda path: path.with_suffix(".ids").write_bytes(b"\0" * 4),
    "ends": lambda path: path.with_suffix(".ends").unlink(),
    "numbers": lambda path: path.with_suffix(".numbers").write_bytes(path.with_suffix(".numbers").read_bytes() + b"\0"),
    "marks": lambda path: path.with_suffix(".marks").write_bytes(b""),
    "no JSON": lambda path: path.write_text("{"),
    "a list": lambda path: path.write_text("[]"),
    "no columns": lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "columns": 5})),
    "no count": lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "count": "many"})),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_again(damage, tmp_path):
    rows = [{"ids": [n, n], "n": n} for n in range(5)]
    made(rows, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    [path] = tmp_path.glob("*.json")
    DAMAGE[damage](path)

    assert list(made(rows, tmp_path)) == rows
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_interrupted_leaves_nothing_half(tmp_path):
    def torn(tally):
        yield from ({"ids": [n]} for n in range(3000))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_examples(torn, {}, tmp_path, "rows", notice=quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_half_and_the_rows_in_memory(tmp_path, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = []

    assert list(made([{"ids": [1]}], tmp_path, notice=said.append)) == [{"ids": [1]}]
    assert "no space left on device" in said[0] and list(tmp_path.iterdir()) == []


def test_what_is_no_example_is_refused(tmp_path):
    for rows in ([{"label": 3}], [{"ids": [1], "text": "x"}], [{"ids": [1]}, {"ids": [1], "n": 2}]):
        with pytest.raises(TypeError, match="example"):
            made(rows, tmp_path)
    with pytest.raises(DataError, match="rows: no records to train on"):
        made([], tmp_path)


# ---------------------------------------------------------------- from records


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "line {n % 400}", "label": {n % 3}}}\n' for n in range(500)))
    return path


def example(record):
    ids = list(record["text"].encode())
    return {"ids": ids[:7], "label": int(record["label"]), "cut": max(0, len(ids) - 7)}


@pytest.mark.spec("S028")
def test_records_become_examples_once_and_what_is_cut_is_told_each_time(file, tmp_path):
    data, said = C.Data(source=str(file), validation=0.0), []
    rows, none = prepare_examples(data, example, "bytes", tmp_path / "cache", notice=said.append)
    again, _ = prepare_examples(data, quiet, "bytes", tmp_path / "cache", notice=said.append)

    assert none is None and len(rows) == 500 and rows[3] == {"ids": list(b"line 3"), "label": 0, "cut": 0}
    assert list(again) == list(rows)
    cut = sum(n % 400 > 99 for n in range(500))
    assert said == [f"{file}: {cut} of 500 rows were too long, and {cut} of their tokens are cut off"] * 2


def test_other_content_another_make_or_another_way_with_bad_records_is_another_entry(file, tmp_path):
    def keys():
        return len(list((tmp_path / "cache").glob("*.json")))

    def asked(about="bytes", **how):
        data = C.Data(source=str(file), validation=0.0, **how)
        prepare_examples(data, example, about, tmp_path / "cache", notice=lambda line: None)

    asked()
    asked()
    assert keys() == 1
    asked("other")
    asked(on_bad_record="skip")
    assert keys() == 3
    file.write_text(file.read_text().replace("line 7", "line x"))
    asked()
    file.rename(file.with_suffix(".ndjson")).rename(file)  # the name alone does not matter
    asked()
    assert keys() == 4


def test_a_record_may_make_several_examples_or_none(file, tmp_path):
    def several(record):
        return [{"ids": [int(record["label"])]}] * int(record["label"])

    rows, _ = prepare_examples(C.Data(source=str(file), validation=0.0), several, "several", tmp_path / "cache")

    assert len(rows) == sum(n % 3 for n in range(500))


def test_a_record_that_cannot_be_used_stops_or_is_counted(file, tmp_path):
    def strict(record):
        if record["text"] == "line 9":
            raise DataError(f"{record.where}: line 9 is not wanted")
        return example(record)

    with pytest.raises(DataError, match="a.jsonl:10: line 9 is not wanted"):
        prepare_examples(C.Data(source=str(file)), strict, "strict", tmp_path / "cache")
    said = []
    rows, _ = prepare_examples(
        C.Data(source=str(file), validation=0.0, on_bad_record="skip"),
        strict,
        "strict",
        tmp_path / "cache",
        notice=said.append,
    )
    assert len(rows) == 498 and "2 bad records were skipped" in said[-1] and "a.jsonl:10" in said[-1]


def test_the_part_for_validation_is_chosen_by_what_is_asked(file, tmp_path):
    def asked(path):
        data = C.Data(source=str(path), validation=0.3)
        train, back = prepare_examples(
            data, lambda record: {"ids": list(record["text"].encode())}, "all", tmp_path / "cache"
        )
        return [[bytes(row["ids"]) for row in rows] for rows in (train, back)]

    train, back = asked(file)
    lines = file.read_text().splitlines()
    turned = file.with_name("turned.jsonl")
    turned.write_text("\n".join(reversed([*lines, '{"text": "one more", "label": 0}'])))
    others = asked(turned)

    assert len(train) + len(back) == 500 and 90 <= len(set(back)) <= 150  # of 400: 120, and 9 to either side is 1 in 3
    assert not set(train) & set(back)
    assert set(others[1]) - set(back) <= {b"one more"} and set(back) <= set(others[1])


def test_too_few_rows_to_keep_some_back_name_the_setting(tmp_path):
    (tmp_path / "a.txt").write_text("one line")

    with pytest.raises(DataError, match=r"a\.txt: 1 rows are too few to keep 0\.1 .*data\.validation=0"):
        prepare_examples(C.Data(source=str(tmp_path / "a.txt")), lambda record: {"ids": [1]}, "", tmp_path / "cache")


def test_a_tokenizer_learns_from_the_columns_it_is_told(tmp_path):
    (tmp_path / "a.tsv").write_text("Go.\tVa !\nRun!\tCours !\n")
    data = C.Data(source=str(tmp_path / "a.tsv"), column_names=("en", "fr"))
    both = tokenizer_from_records(data, C.CharTokenizer(byte_fallback=False), ("en", "fr"), tmp_path / "cache")
    one = tokenizer_from_records(data, C.CharTokenizer(byte_fallback=False), ("en",), tmp_path / "cache")

    assert one.encode("Go.") and both.encode("Cours !")
    with pytest.raises(DataError, match="'C'"):
        one.encode("Cours !")


# ---------------------------------------------------------------- leaks


def test_leaks_are_counted(tmp_path):
    train = made([{"ids": [n, n + 1], "label": 0} for n in range(100)], tmp_path, "train")
    validation = made([{"ids": [n, n + 1], "label": 1} for n in range(95, 106)], tmp_path, "validation")

    assert count_leaks(train, validation) == (5, 11)
    assert count_leaks(*split_rows(train, 0.2))[0] == 0
    with pytest.raises(TypeError, match="not one of each"):
        count_leaks(train, TokenShards(torch.arange(9)))


def test_a_stretch_of_text_that_was_trained_on_is_found_wherever_it_stands(monkeypatch):
    monkeypatch.setattr("regard.doctor.check_data.BLOCK", 100)
    [document] = read_texts(["shakespeare"])
    ids = torch.tensor(list(document.text.encode()[:7000]), dtype=torch.uint8)
    train, clean = TokenShards(ids[:6000]), TokenShards(ids[6000:6970])
    planted = TokenShards(torch.cat([ids[6000:6064], ids[1234 : 1234 + 64], ids[6064:6100], ids[5968:6000]]))

    assert count_leaks(train, clean) == (0, 30)
    assert count_leaks(train, planted) == (2, 6)  # the last stretch of 32 begins four tokens too early
    assert count_leaks(train, TokenShards(ids[:9])) == (0, 0)


# ---------------------------------------------------------------- larger than memory

LIMITED = """
    import resource, sys
    import torch
    from regard import config as C
    from regard.data import FixedSizeBatches, prepare_examples

    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

    def limit(room):
        resource.setrlimit(resource.RLIMIT_AS, (used + (room << 20), resource.RLIM_INFINITY))

    def rows(make):
        return prepare_examples(C.Data(source=sys.argv[1], validation=0.0), make, "", sys.argv[2])[0]

    limit(16)
    make = lambda record: {"ids": record["ids"]}
    for attempt in (lambda: torch.empty(24 << 20, dtype=torch.uint8), lambda: rows(make)):
        try:
            attempt()
            sys.exit("the limit does not hold")
        except RuntimeError as problem:
            print("no room for the map" if "mmap" in str(problem) else "no room")
    limit(16 + 24)
    found = rows(None)
    made = FixedSizeBatches(found, lambda some, chance: {"ids": torch.tensor([row["ids"][:5] for row in some])}, 3, 0)
    batch = made.batch(7)
    print(len(found), found.kept.ids.numel() * 4 >> 20, found[len(found) - 1]["ids"][:3], batch["ids"].shape)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_more_examples_than_memory_are_made_and_read(tmp_path):
    """24 MiB of ids, from 46 MB of text, are made and kept by a process that may have 16 MiB; only mapping them takes
    as much room as they are long.
    """
    line = json.dumps({"ids": list(range(1000, 1000 + (1 << 14)))}) + "\n"
    (tmp_path / "large.jsonl").write_text(line * 384)
    script = tmp_path / "limited.py"
    script.write_text(textwrap.dedent(LIMITED))

    done = subprocess.run([sys.executable, str(script), str(tmp_path / "large.jsonl"), str(tmp_path / "cache")],
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout == "no room\nno room for the map\n384 24 [1000, 1001, 1002] torch.Size([3, 5])\n"
