"""Files of every kind give the records that were written, one at a time; and a bad line is one sentence."""

import csv
import gzip
import io
import json
import lzma
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.data import records, sources
from regard.data.prepare import prepare_examples, prepare_text
from regard.data.readers import text_formats as module
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records, read_texts

ROWS = [{"en": "Go.", "fr": "Va !"}, {"en": 'He said "no", twice', "fr": "«Non»\tdit-il"}, {"en": "日本 🙂", "fr": ""}]


def read(*names, on_bad_record="error", **how):
    tally = BadRecordPolicy(on_bad_record)
    data = C.Data(on_bad_record=on_bad_record, **how)
    found = [record for table in find_records([str(name) for name in names], data)
             for record in table.records(tally)]  # fmt: skip
    return found, tally


def comma(rows, **how):
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), **how)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


WRITTEN = {
    "a.jsonl": "\n".join(json.dumps(row) for row in ROWS) + "\n\n",
    "a.ndjson": "\ufeff" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS),
    "a.json": json.dumps(ROWS, indent=2, ensure_ascii=False),
    "b.json": "".join(json.dumps(row) + "\n" for row in ROWS),
    "a.csv": comma(ROWS),
    "a.tsv": comma(ROWS, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n"),
    "b.csv": "\ufeff" + comma(ROWS, lineterminator="\n"),
}
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("name", WRITTEN)
def test_what_others_wrote_is_read(name, packed, tmp_path):
    path = tmp_path / (name + packed)
    path.write_bytes(PACKED[packed](WRITTEN[name].encode()))

    assert read(path)[0] == ROWS


def test_a_record_says_where_it_stood(tmp_path):
    (tmp_path / "a.csv").write_text('x,y\n1,"two\nlines"\n\n3,4\n')
    (tmp_path / "a.json").write_text('[\n {"x": 1},\n\n {"x": {"y": [2]}}]\n')
    (tmp_path / "a.txt").write_text("\none\n\ntwo\n")

    for name, places in (("a.csv", (2, 5)), ("a.json", (2, 4)), ("a.txt", (2, 4))):
        found, _ = read(tmp_path / name)
        assert [record.where for record in found] == [f"{tmp_path / name}:{place}" for place in places]


@pytest.mark.parametrize("block", [3, 7, 64, 1 << 18])
def test_a_json_list_is_the_same_in_blocks_of_any_size(block, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", block)
    rows = [{"text": 'a ] , [ { } " é', "n": [1, {"m": 2}]}, {}, {"x": -1.5e3}]
    (tmp_path / "a.json").write_text(" " + json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    (tmp_path / "b.json").write_text("[ ]")

    assert read(tmp_path / "a.json")[0] == rows and read(tmp_path / "b.json")[0] == []


words = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=9)


@given(rows=st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_whatever_stands_between_tabs_comes_back_unless_it_is_how_csv_writes_quotes(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("tabs") / "a.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in [("one", "two"), *rows]), newline="")
    found = [tuple(record.values()) for record in read(path)[0]]

    assert found == [tuple(map(module.unquote_field, row)) for row in rows]
    assert all(module.unquote_field(word) == word for row in rows for word in row if '""' not in word)


def test_a_quote_between_tabs_is_a_character_and_a_doubled_one_is_how_csv_writes_it(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('label\tsentence\n0\t"Stop," he said.\n1\t"No."\n1\t"She said ""yes""."\n0\t5\' 6"\n0\t""\n')

    assert [record["sentence"] for record in read(path)[0]] == [
        '"Stop," he said.', '"No."', 'She said "yes".', "5' 6\"", '""']  # fmt: skip


def test_columns_are_named_where_the_file_does_not_and_a_header_of_these_names_is_no_row(tmp_path):
    (tmp_path / "a.tsv").write_text("Go.\tVa !\nRun!\tCours !\n")
    (tmp_path / "b.tsv").write_text("en\tfr\nGo.\tVa !\n")

    assert read(tmp_path / "a.tsv", tmp_path / "b.tsv", column_names=("en", "fr"))[0] == [
        {"en": "Go.", "fr": "Va !"}, {"en": "Run!", "fr": "Cours !"}, {"en": "Go.", "fr": "Va !"}]  # fmt: skip


def test_the_lines_of_a_text_are_records_or_its_documents_are(tmp_path):
    (tmp_path / "a.txt").write_text("=== One ===\nfirst\r\n\n\n \nsecond\nthird")

    assert read(tmp_path / "a.txt", text_column="line")[0] == [
        {"line": "=== One ==="}, {"line": "first"}, {"line": "second"}, {"line": "third"}]  # fmt: skip
    assert read(tmp_path / "a.txt", blank_line_ends_document=True)[0] == [
        {"text": ["=== One ===", "first"]}, {"text": ["second", "third"]}]  # fmt: skip


def test_lines_of_two_files_belong_together(tmp_path):
    (tmp_path / "a.en").write_text("Go.\n\nRun!\n")
    (tmp_path / "a.fr.gz").write_bytes(gzip.compress(b"Va !\r\n\r\nCours !"))
    pair = f"{tmp_path / 'a.en'} + {tmp_path / 'a.fr.gz'}"

    assert read(pair)[0] == [{"source": "Go.", "target": "Va !"}, {"source": "", "target": ""},
                             {"source": "Run!", "target": "Cours !"}]  # fmt: skip
    assert read(pair, column_names=("en", "fr"))[0][2] == {"en": "Run!", "fr": "Cours !"}


def test_files_of_unequal_length_are_refused_with_both_counts(tmp_path):
    (tmp_path / "a.en").write_text("1\n2\n3\n")
    (tmp_path / "a.fr").write_text("un\n")

    for bad in ("error", "skip"):
        with pytest.raises(DataError, match=r"a\.en \+ .*a\.fr: 3 and 1 lines"):
            read(f"{tmp_path / 'a.en'} + {tmp_path / 'a.fr'}", on_bad_record=bad)


def test_a_folder_and_a_pattern_give_their_files_in_order(tmp_path):
    for name in ("b/2.jsonl", "1.jsonl", "3.csv", ".no.jsonl", "README.md", "empty.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        content = {"3.csv": "n\n3\n", "empty.jsonl": ""}.get(name, '{"n": "' + name[-7:-6] + '"}')
        (tmp_path / name).write_text(content)

    assert [record["n"] for record in read(tmp_path)[0]] == ["1", "3", "2"]
    assert [record["n"] for record in read(tmp_path / "**/*.jsonl")[0]] == ["1", "2"]
    with pytest.raises(DataError, match="both texts .README.md. and records"):
        list(read_texts([str(tmp_path)]))
    with pytest.raises(DataError, match=r"\*\.parquet: no file matches this pattern"):
        read(tmp_path / "*.parquet")


def test_standard_input_is_of_the_kind_one_says(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x,y\n1,2\n")))
    [table] = find_records(["-.csv"])

    assert [list(table.records(BadRecordPolicy())) for _ in range(2)] == [[{"x": "1", "y": "2"}]] * 2


BAD = {  # what is written, and what is said of it besides file and line
    "list.jsonl": (b'{"text": "a"}\n[1]\n', 2, "list '.1.', expected a JSON object"),
    "torn.jsonl": (b'{"text": "a"}\n{"text": "b"\n{"text": "c"}', 2, "not JSON .*expected an object a line"),
    "deep.jsonl": (b'{"text": "a"}\n' + b"[" * 99_999, 2, "nested too deeply"),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "\xe9"}\n', 2, "not UTF-8: byte 0xE9 at 10 of the line.*iconv"),
    "utf16.csv": ("text\na\n".encode("utf-16"), 1, "not UTF-8"),
    "fields.csv": (b"text,label\na,1\nb,2,3\nc,3\n", 3, r"3 fields, expected 2 \(text, label\)"),
    "quote.csv": (b'text,label\na,1\n"b" c,2\nd,3\n', 3, "expected after.*quotes closed"),
    "open.csv": (b'text,label\na,1\n"b,2\nd,3\n', 3, "quotes closed"),
    "fields.tsv": (b"text\tlabel\na\t1\nb\nc\t3\n", 3, "1 fields, expected 2"),
    "latin.txt": (b"fine\nn\xe9\nfine", 2, "not UTF-8"),
    "long.txt": (b"fine\n" + b"x" * 99 + b"\nfine", 2, "a line of more than"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_stops_with_its_number_and_what_was_expected_or_is_passed_over_and_counted(
    name, tmp_path, monkeypatch
):
    content, line, says = BAD[name]
    if name == "long.txt":
        monkeypatch.setattr(records, "MAX_LINE_BYTES", 50)
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(DataError, match=says) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ") and "\n" not in str(caught.value)

    if name == "utf16.csv":
        return  # nothing in it is good
    found, tally = read(path, on_bad_record="skip")
    assert tally.count == 1 and tally.first == str(caught.value) and str(caught.value) in tally.summary
    assert len(found) == {"list.jsonl": 1, "deep.jsonl": 1, "latin.jsonl": 1, "open.csv": 1}.get(name, 2)


def test_a_bad_line_of_a_pair_takes_its_other_half_with_it(tmp_path):
    (tmp_path / "a.en").write_bytes(b"one\ntw\xff\nthree\n")
    (tmp_path / "a.fr").write_bytes(b"un\ndeux\ntrois\n")
    found, tally = read(f"{tmp_path / 'a.en'} + {tmp_path / 'a.fr'}", on_bad_record="skip")

    assert [record["target"] for record in found] == ["un", "trois"] and tally.count == 1


WRONG = {  # a file, its content, what is said
    "half.json": ('[\n{"a": 1},\n{"a": ', ":3: not JSON from .* on; expected a list of objects"),
    "more.json": ('[{"a": 1}] x', ":1: not JSON from"),
    "mixed.json": ('[{"a": 1}, 2]', ":1: not JSON from"),
    "twice.csv": ("a,b,a\n1,2,3\n", ":1: two columns have the same name in a, b, a"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_leaves_nothing_certain_stops_in_any_case(name, tmp_path):
    content, says = WRONG[name]
    (tmp_path / name).write_text(content)

    with pytest.raises(DataError, match=f"{tmp_path / name}{says}"):
        read(tmp_path / name, on_bad_record="skip")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.xz"])
def test_a_torn_packed_file_is_one_sentence(name, tmp_path):
    whole = PACKED[name[-3:]]("".join(f'{{"n": {n}}}\n' for n in range(999)).encode())
    (tmp_path / name).write_bytes(whole[:-20])

    with pytest.raises(DataError, match=f"{tmp_path / name}: not a whole (gzip|xz) file"):
        read(tmp_path / name)


def test_a_missing_column_names_those_there_are(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "x", "id": 7}\n')
    [record], _ = read(tmp_path / "a.jsonl")

    with pytest.raises(DataError, match=r"a\.jsonl:1: no column 'text'; there are body, id"):
        record["text"]
    with pytest.raises(DataError, match="no column 'text'"):
        list(read_texts([str(tmp_path / "a.jsonl")]))
    with pytest.raises(DataError, match=r"'id' is 7 and no text; name one that is by data\.text_column"):
        list(read_texts([str(tmp_path / "a.jsonl")], C.Data(text_column="id")))


def test_a_setting_that_no_source_heeds_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 9)

    with pytest.raises(ConfigError, match=r"data\.column_names: .*leave it out"):
        prepare_examples(
            C.Data(source=str(tmp_path / "a.jsonl"), column_names=("a",)), lambda record: {"ids": [1]}, "x", tmp_path
        )
    with pytest.raises(ConfigError, match=r"data\.blank_line_ends_document: .*leave it out"):
        prepare_text(
            C.Data(source=str(tmp_path / "a.jsonl"), blank_line_ends_document=True), C.ByteTokenizer(), tmp_path
        )


def test_each_record_of_a_text_to_learn_is_a_document(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": ""}\n{"text": "two two"}\n')
    data = C.Data(source=str(tmp_path / "a.jsonl"), validation=0.0)
    made = prepare_text(data, C.SubwordTokenizer(vocab=300), cache=tmp_path / "cache")
    encode, end = made.tokenizer.encode, made.tokenizer.special_ids["eos"]

    assert made.train.ids().tolist() == [*encode("one"), end, *encode("two two")]


def test_bad_records_of_a_text_are_told_of_every_time(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nno\n{"text": 3}\n')
    data = C.Data(source=str(tmp_path / "a.jsonl"), validation=0.0, on_bad_record="skip")
    for _ in range(2):
        said = []
        made = prepare_text(data, C.ByteTokenizer(), cache=tmp_path / "cache", notice=said.append)

        assert bytes(made.train.ids().tolist()) == b"one"
        [line] = said
        assert line.startswith("2 bad records were skipped") and "a.jsonl:2: not JSON" in line
    with pytest.raises(DataError, match="a.jsonl:2: not JSON"):
        prepare_text(
            C.Data(source=str(tmp_path / "a.jsonl"), validation=0.0), C.ByteTokenizer(), cache=tmp_path / "cache"
        )


# ---------------------------------------------------------------- what comes with the package


def test_the_pairs_that_come_with_the_package_are_as_published_and_no_test_sentence_is_trained_on():
    sets = {part: read(f"tatoeba-en-fr:{part}")[0] for part in ("validation", "test")}
    train, _ = read("tatoeba-en-fr")
    english = {record["en"] for record in train}

    assert [len(train), *map(len, sets.values())] == [161_693, 2_623, 2_623]
    assert all(record["en"] not in english for part in sets.values() for record in part)
    assert train[0].where == "tatoeba-en-fr.train.tsv.xz:1" and list(train[0]) == ["en", "fr"]


def test_the_reviews_that_come_with_the_package_are_half_good_and_half_bad():
    for part, count in (("train", 1600), ("validation", 200), ("test", 200)):
        found, _ = read(f"movie-reviews:{part}")
        assert len(found) == count and sum(record["label"] == "pos" for record in found) == count // 2


def test_the_digits_that_come_with_the_package_are_eight_by_eight():
    found, rest = read("digits")[0], read("digits:test")[0]
    assert (len(found), len(rest)) == (1438, 359)
    found = [*found, *rest]

    assert len(found) == 1797 and {len(record["pixels"]) for record in found} == {64}
    assert {pixel for record in found for pixel in record["pixels"]} == set(range(17))
    assert [sum(record["label"] == digit for record in found) for digit in range(10)] == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as scikit-learn's page has it  # fmt: skip


def test_a_slip_of_the_pen_is_told_what_was_meant():
    for name, says in {
        "tatoeba-en-fr:tset": "no part 'tset'; did you mean 'test'", "tatoeba": "did you mean 'tatoeba-en-fr'",
        "toy:revers(9)": "no toy task 'revers'; did you mean 'reverse'", "toy:sort": r"such as toy:sort\(20\)",
        "toy:sort(0)": "sizes of one or more", "toy:sort(3, 0)": "sizes of one or more", "a.en+a.fr": "a space on both",
        "a + b + c": "3 files and 2 columns",
    }.items():  # fmt: skip
        with pytest.raises(DataError, match=says) as caught:
            find_records([name])
        assert str(caught.value).startswith(name)


# ---------------------------------------------------------------- what the extra `data` reads


def test_without_the_extra_one_sentence_names_it(tmp_path, monkeypatch):
    for name in ("zstandard", "pyarrow", "pyarrow.parquet", "datasets", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("a.jsonl.zst", "a.parquet"):
        (tmp_path / name).write_bytes(b"some bytes")
    for name in (tmp_path / "a.jsonl.zst", tmp_path / "a.parquet", "hf:owner/name"):
        with pytest.raises(DataError, match=r"pip install 'regard\[data\]'"):
            read(name)


def test_zstd_is_unpacked_and_a_torn_file_is_not_taken_for_a_whole_one(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="the extra data is not installed")
    text = "".join(f'{{"n": {n}}}\n' for n in range(50_000)).encode()
    packed = zstandard.ZstdCompressor().compress(text)
    (tmp_path / "a.jsonl.zst").write_bytes(packed + zstandard.ZstdCompressor().compress(b'{"n": 50000}\n'))
    for name, content in (("torn", packed[: len(packed) // 2]), ("noise", b"no zstd at all")):
        (tmp_path / f"{name}.jsonl.zst").write_bytes(content)
        with pytest.raises(DataError, match=f"{name}.jsonl.zst: not a whole zstd file"):
            read(tmp_path / f"{name}.jsonl.zst")

    assert [record["n"] for record in read(tmp_path / "a.jsonl.zst")[0]] == list(range(50_001))


def test_parquet_is_read_a_batch_at_a_time(tmp_path):
    arrow, parquet = (pytest.importorskip(name, reason="the extra data is not installed")
                      for name in ("pyarrow", "pyarrow.parquet"))  # fmt: skip
    rows = [{"text": f"n {n}", "label": n % 3, "ids": [n, n + 1], "score": n / 2} for n in range(3001)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=700)
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    found, _ = read(tmp_path / "a.parquet")

    assert found == rows and found[2999].where == f"{tmp_path / 'a.parquet'}:3000"
    assert next(read_texts([str(tmp_path / "a.parquet")])).text == "n 0"
    with pytest.raises(DataError, match="torn.parquet: not a whole Parquet file"):
        read(tmp_path / "torn.parquet")


class Fake:
    """What `datasets` offers, of which we use one function."""

    @staticmethod
    def load_dataset(path, name=None, *, split, trust_remote_code):
        assert trust_remote_code is False, "the code of a dataset never runs"
        if path != "owner/known":
            raise FileNotFoundError(f"Dataset '{path}' doesn't exist on the Hub.\nMore lines.")
        return [{"text": f"{name} {split}", "n": n} for n in range(2)]


def test_a_dataset_of_the_hub_is_read_by_its_name_config_and_split(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", Fake)

    assert read("hf:owner/known/sst2:validation")[0] == [{"text": "sst2 validation", "n": n} for n in range(2)]
    assert read("hf:owner/known")[0][1]["text"] == "None train"
    with pytest.raises(DataError, match="hf:owner/other: cannot be loaded .Dataset 'owner/other' doesn't exist on the"):
        read("hf:owner/other")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_one_sentence(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{}")
    path.chmod(0)

    with pytest.raises(DataError, match=f"{path}: permission denied"):
        read(path)
