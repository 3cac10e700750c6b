"""Texts become ids once; what is kept is whole, and made again where it is not."""

import json
import os
from pathlib import Path

import pytest
import torch

from regard import config as C
from regard.config.errors import DataError
from regard.data import sources as module
from regard.data.prepare import prepare_text
from regard.data.sources import read_texts
from regard.data.token_shards import TokenShards, map_shards, smallest_int_type
from regard.files import atomic, content_cache
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

TEXT = "Speak, speak.\nYou are all resolved rather to die than to famish?\n" * 40


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "texts" / "one.txt"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def quiet(line):
    raise AssertionError(f"nothing was to be said, but: {line}")


def data(*paths, validation=0.0):
    return C.Data(source=tuple(map(str, paths)), validation=validation)


def test_shakespeare_is_split_where_everybody_splits_it(tmp_path):
    """nanoGPT's prepare.py: the first int(0.9 n) characters to train on."""
    made = prepare_text(C.Data(), C.CharTokenizer(byte_fallback=False), cache=tmp_path)
    [document] = read_texts(("shakespeare",))

    assert (len(made.train), len(made.validation)) == (1_003_854, 111_540)
    assert made.tokenizer.decode(made.train.ids(0, 99)) == document.text[:99]
    assert made.tokenizer.decode(made.validation.ids()) == document.text[1_003_854:]
    assert made.train.data.dtype == torch.uint8


@pytest.mark.parametrize(
    "setting", [C.ByteTokenizer(), C.WordTokenizer(vocab=299), C.SubwordTokenizer(vocab=311)], ids=lambda s: s.kind
)
def test_ids_are_those_of_the_tokenizer_and_come_back_from_the_file(setting, file, tmp_path):
    first = prepare_text(data(file), setting, cache=tmp_path / "cache", notice=quiet)
    again = prepare_text(data(file), setting, cache=tmp_path / "cache", notice=quiet)

    start = [first.tokenizer.special_ids[role] for role in ("bos",) if role in first.tokenizer.special_ids]
    assert first.train.ids().tolist() == start + first.tokenizer.encode(TEXT)
    assert torch.equal(again.train.ids(), first.train.ids()) and again.tokenizer.text() == first.tokenizer.text()
    assert first.train.ids(3, 7).dtype == torch.int64 and first.train.ids(3, 7).shape == (4,)


def test_a_text_read_in_small_parts_gives_the_same_ids(file, tmp_path, monkeypatch):
    whole = prepare_text(data(file), C.SubwordTokenizer(vocab=311), cache=tmp_path / "a")
    monkeypatch.setattr(module, "BLOCK", 101)
    parts = prepare_text(data(file), C.SubwordTokenizer(vocab=311), cache=tmp_path / "b")

    assert torch.equal(parts.train.ids(), whole.train.ids()) and parts.tokenizer.text() == whole.tokenizer.text()


def test_nothing_is_encoded_twice(file, tmp_path, monkeypatch):
    prepare_text(data(file), C.SubwordTokenizer(vocab=311), cache=tmp_path / "cache")
    monkeypatch.setattr(Tokenizer, "encode", quiet)
    monkeypatch.setattr("regard.data.prepare.train_tokenizer", quiet)

    prepare_text(data(file), C.SubwordTokenizer(vocab=311), cache=tmp_path / "cache")


def test_another_text_or_tokenizer_is_another_entry(file, tmp_path):
    cache = tmp_path / "cache"
    first = prepare_text(data(file), C.CharTokenizer(), cache=cache)
    other = prepare_text(data(file), C.ByteTokenizer(), cache=cache)
    file.write_text(TEXT.replace("die", "lie"))
    changed = prepare_text(data(file), C.CharTokenizer(), cache=cache)

    assert first.tokenizer.decode(first.train.ids()) == TEXT == other.tokenizer.decode(other.train.ids())
    assert changed.tokenizer.decode(changed.train.ids()) == TEXT.replace("die", "lie")
    assert len(list(cache.glob("*.ids"))) == 3


def test_what_stands_beside_the_ids_says_what_they_are(file, tmp_path):
    prepare_text(data(file), C.ByteTokenizer(), cache=tmp_path / "cache")
    [path] = (tmp_path / "cache").glob("*.json")
    about = json.loads(path.read_text())

    assert (about["format"], about["dtype"], about["count"]) == (1, "uint8", len(TEXT))
    assert path.with_suffix(".ids").read_bytes() == TEXT.encode()
    assert not list((tmp_path / "cache").glob(".*"))


def test_ids_take_no_more_room_than_the_vocabulary_needs():
    sizes = (2, 256, 257, 65_536, 65_537)

    assert [smallest_int_type(size) for size in sizes] == ["uint8", "uint8", "uint16", "uint16", "uint32"]


@pytest.mark.parametrize("letters", [300, 70_001])
def test_wide_ids_come_back_whole(letters, tmp_path):
    text = "".join(chr(0x1F000 + number) for number in range(letters))
    (tmp_path / "a.txt").write_text(text)
    made = prepare_text(
        data(tmp_path / "a.txt"), C.CharTokenizer(byte_fallback=False), cache=tmp_path / "cache", notice=quiet
    )

    assert made.train.ids().tolist() == list(range(letters))


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "gone": lambda path: path.unlink(),
    "no JSON": lambda path: path.with_suffix(".json").write_text("{"),
    "another JSON": lambda path: path.with_suffix(".json").write_text("[1]"),
    "no count": lambda path: path.with_suffix(".json").write_text('{"count": "many"}'),
    "deep JSON": lambda path: path.with_suffix(".json").write_text("[" * 99_999),
    "JSON gone": lambda path: path.with_suffix(".json").unlink(),
    "tokenizer": lambda path: [p.write_text("{}") for p in path.parent.glob("*.tokenizer.json")],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_again(damage, file, tmp_path):
    cache = tmp_path / "cache"
    made = prepare_text(data(file), C.WordTokenizer(vocab=299), cache=cache)
    kept = {path.name: path.read_bytes() for path in cache.iterdir()}
    del made
    [path] = cache.glob("*.ids")
    DAMAGE[damage](path)
    again = prepare_text(data(file), C.WordTokenizer(vocab=299), cache=cache, notice=quiet)

    assert again.tokenizer.decode(again.train.ids()) == TEXT
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == kept


def test_where_nothing_can_be_written_the_tokens_stay_in_memory_and_somebody_is_told(file, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    said = []
    made = prepare_text(data(file), C.SubwordTokenizer(vocab=311), cache=tmp_path / "cache", notice=said.append)

    assert made.tokenizer.decode(made.train.ids()) == TEXT
    assert len(said) == 1 and str(tmp_path / "cache") in said[0] and "REGARD_CACHE" in said[0]
    with pytest.warns(UserWarning, match="REGARD_CACHE"):
        prepare_text(data(file), C.ByteTokenizer(), cache=tmp_path / "cache")


def test_a_full_disk_leaves_nothing_half_written(file, tmp_path, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = []
    made = prepare_text(data(file), C.ByteTokenizer(), cache=tmp_path / "cache", notice=said.append)

    assert made.tokenizer.decode(made.train.ids()) == TEXT
    assert "no space left on device" in said[0] and list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_run_left_is_swept_and_a_living_writer_and_a_strangers_download_stay(tmp_path):
    torn = tmp_path / ".b.json.0a1b2c3d.regard-new"
    torn.mkdir()
    (torn / "b.json").write_bytes(b"{")
    for name in ("film.part", ".film.mkv.0a1b2c3d.part"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9, 1e9))
    with atomic.open_atomic(tmp_path / "c.json") as file:
        os.utime(Path(file.name).parent, (1e9, 1e9))  # it takes days
        atomic.write_file(tmp_path / "a.json", [b"{}"])
        file.write(b"{}")

    assert {path.name for path in tmp_path.iterdir()} == {".film.mkv.0a1b2c3d.part", "a.json", "c.json", "film.part"}


def test_the_cache_is_where_one_says(file, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "said"))
    prepare_text(data(file), C.ByteTokenizer(), notice=quiet)
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    prepare_text(data(file), C.ByteTokenizer(), notice=quiet)

    assert list((tmp_path / "said").glob("*.ids")) and list((tmp_path / "home/.cache/regard").glob("*.ids"))


def test_documents_are_parted_by_the_end_token_where_there_is_one(file, tmp_path):
    second = file.with_name("two.txt")
    second.write_text("The end.")
    pieces = prepare_text(data(file.parent), C.SubwordTokenizer(vocab=311), cache=tmp_path / "cache")
    letters = prepare_text(data(file, second), C.CharTokenizer(), cache=tmp_path / "cache")
    encode, end = pieces.tokenizer.encode, pieces.tokenizer.special_ids["eos"]

    assert pieces.train.ids().tolist() == [*encode(TEXT), end, *encode("The end.")]
    assert letters.tokenizer.decode(letters.train.ids()) == TEXT + "The end."


def test_validation_may_be_files_of_their_own_which_the_tokenizer_has_not_seen(file, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Zounds!")
    made = prepare_text(data(file, validation=str(other)), C.CharTokenizer(), cache=tmp_path / "cache")

    assert made.tokenizer.decode(made.validation.ids()) == "Zounds!" and len(made.train) == len(TEXT)
    assert "Z" not in made.tokenizer.inner.get_vocab()
    assert prepare_text(data(file, validation=0.0), C.CharTokenizer(), cache=tmp_path / "cache").validation is None


def test_a_character_that_cannot_be_said_is_named_with_file_line_and_remedy(file, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7)
    other = tmp_path / "other.txt"
    other.write_text("Speak\nspeak\nspeak Zounds!")

    with pytest.raises(DataError, match=rf"{other}: 'Z' \(character 18, line 3\) .*tokenizer.byte_fallback=true"):
        prepare_text(
            data(file, validation=(str(other),)), C.CharTokenizer(byte_fallback=False), cache=tmp_path / "cache"
        )


def test_a_given_tokenizer_is_used(file, tmp_path):
    given = train_tokenizer(C.SubwordTokenizer(vocab=300), [TEXT])
    made = prepare_text(data(file), C.CharTokenizer(), cache=tmp_path / "cache", tokenizer=given)

    assert made.tokenizer is given and made.train.ids().tolist() == given.encode(TEXT)


def test_a_saved_tokenizer_is_used(file, tmp_path):
    train_tokenizer(C.SubwordTokenizer(vocab=300), [TEXT]).save(tmp_path / "mine")
    made = prepare_text(data(file), C.TokenizerFile(path=str(tmp_path / "mine")), cache=tmp_path / "cache")
    with pytest.raises(DataError, match="nowhere"):
        prepare_text(data(file), C.TokenizerFile(path=str(tmp_path / "nowhere")), cache=tmp_path / "cache")

    assert made.tokenizer.decode(made.train.ids()) == TEXT


def test_too_little_text_to_validate_on_names_the_setting(file, tmp_path):
    file.write_text("short")

    with pytest.raises(DataError, match=f"{file}: 5 tokens are too few .*data.validation=0"):
        prepare_text(data(file, validation=0.1), C.ByteTokenizer(), cache=tmp_path / "cache")


def test_ids_are_mapped_and_not_read(file, tmp_path):
    """A file with a hole of eight gigabytes opens at once, and its far end can be read."""
    count = 4 << 30
    about = {"format": 1, "dtype": "uint16", "texts": [], "tokenizer": ""}
    path = tmp_path / f"{content_cache.content_key(about)}.ids"
    try:
        with path.open("wb") as hole:
            hole.truncate(2 * count)
    except OSError:
        pytest.skip("this file system has no holes")
    path.with_suffix(".json").write_text(json.dumps({**about, "count": count}))
    shards = TokenShards(map_shards(path, about))

    assert len(shards) == count and shards.ids(count - 3, count).tolist() == [0, 0, 0]
    path.unlink()
