"""Folders of files: each file is a record, and the folder it is in its label."""

from pathlib import Path

import pytest

from regard.config.errors import DataError
from regard.data.readers.file_folder import path_in_record
from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import find_records


@pytest.fixture
def pets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("dog/1.png", "cat/b.JPG", "cat/a.png", "cat/young/c.png", ".hidden/x.png"):
        path = tmp_path / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "pets" / "notes.bin").write_bytes(b"\0")
    return tmp_path / "pets"


def read(name):
    return [record for table in find_records((name,)) for record in table.records(BadRecordPolicy())]


def test_the_first_folder_of_a_file_is_its_label(pets):
    found = read("pets")

    assert [(str(record["image"]), record["label"]) for record in found] == [
        ("pets/cat/a.png", "cat"),
        ("pets/cat/b.JPG", "cat"),
        ("pets/cat/young/c.png", "cat"),
        ("pets/dog/1.png", "dog"),
    ]
    assert [record.where for record in found] == [str(record["image"]) for record in found]


def test_a_file_by_itself_has_no_label(pets):
    [record] = read("pets/dog/1.png")

    assert record == {"image": Path("pets/dog/1.png")}


def test_the_digest_is_of_names_and_bytes(pets):
    before, again = (find_records(("pets",))[0].digest for _ in range(2))
    (pets / "dog" / "1.png").write_bytes(b"another")
    after = find_records(("pets",))[0].digest

    assert before == again != after


def test_sounds_are_records_too_and_both_together_are_refused(pets):
    (pets / "cat" / "meow.wav").write_bytes(b"RIFF")
    with pytest.raises(DataError, match=r"pets: files of several kinds.*image.*sound"):
        read("pets")
    (pets.parent / "said" / "yes").mkdir(parents=True)
    (pets.parent / "said" / "yes" / "1.flac").write_bytes(b"fLaC")

    assert [(record["sound"].name, record["label"]) for record in read("said")] == [("1.flac", "yes")]


def test_records_in_a_folder_come_before_files_that_are_records(pets):
    (pets / "list.csv").write_text("file,label\ncat/a.png,cat\n")

    assert read("pets") == [{"file": "cat/a.png", "label": "cat"}]


def test_a_file_is_found_from_here_or_beside_the_list_that_names_it(pets, monkeypatch):
    record = Record({"file": "cat/a.png"}, "pets/list.csv:2")

    assert path_in_record(record, "file") == Path("pets/cat/a.png")
    monkeypatch.chdir(pets)
    assert path_in_record(record, "file") == Path("cat/a.png")
    with pytest.raises(DataError, match=r"pets/list.csv:3: column 'file' names 'cat/z.png', and there is no such file"):
        path_in_record(Record({"file": "cat/z.png"}, "pets/list.csv:3"), "file")


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="no .txt or .md files in this folder"):
        find_records((str(tmp_path),))
