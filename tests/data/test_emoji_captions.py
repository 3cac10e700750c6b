"""The packaged pictures with captions: all of them, each in one part, as they were published."""

import gzip
from pathlib import Path

import pytest
import torch

from regard.config.errors import DataError
from regard.data.builtin import EMOJI_GROUP_OF, EMOJI_GROUPS
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records

PARTS = {"emoji": 1523, "emoji:validation": 208, "emoji:test": 180}
PUBLISHED = Path(__file__).resolve().parents[3] / "shared/data/emoji-captions"


def records(name):
    [table] = find_records([name])
    return list(table.records(BadRecordPolicy()))


@pytest.mark.parametrize("name, count", PARTS.items())
def test_a_part_has_its_records_with_a_picture_each(name, count):
    rows = records(name)

    assert len(rows) == count
    assert all(row["image"].dtype == torch.uint8 and row["image"].shape == (3, 32, 32) for row in rows)
    assert all(row["text"] and row["label"] and row["text_fr"] and row["text_de"] for row in rows)
    assert len({row["label"] for row in rows}) >= 9


def test_every_picture_has_a_plain_word_that_texts_to_train_on_use():
    rows = [row for name in PARTS for row in records(name)]
    said = {word for row in records("emoji") for word in row["both"].lower().replace(",", " ").split()}

    assert {row["thing"] for row in rows} == {*EMOJI_GROUPS} and {*EMOJI_GROUPS} <= said
    assert {row["group"] for row in rows} == {*EMOJI_GROUP_OF}, "no group is named that is not there"
    assert {row["thing"] for row in rows if row["label"] == "Flags"} == {"flag"}


def test_no_caption_is_in_two_parts():
    texts = [row["text"] for name in PARTS for row in records(name)]

    assert len(texts) == len(set(texts)) == 1911


def test_parts_are_other_data_and_read_the_same_twice():
    digests = [find_records([name])[0].digest for name in (*PARTS, "emoji:train")]

    assert len(set(digests)) == 3
    assert digests == [find_records([name])[0].digest for name in (*PARTS, "emoji:train")]


def test_pictures_are_those_that_were_published():
    image, numpy = pytest.importorskip("PIL.Image"), pytest.importorskip("numpy")
    if not PUBLISHED.is_dir():
        pytest.skip("the published pictures are not on this machine")
    sheet = numpy.asarray(image.open(PUBLISHED / "images.png").convert("RGB"))
    cut = sheet.reshape(-1, 32, 50, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
    lines = gzip.decompress((PUBLISHED / "captions.tsv.gz").read_bytes()).decode().splitlines()[1:]
    known = {line.split("\t")[5]: cut[number] for number, line in enumerate(lines)}

    for row in records("emoji:test"):
        assert numpy.array_equal(row["image"].movedim(0, -1).numpy(), known[row["text"]])


@pytest.mark.parametrize("name, sentence", [
    ("emoji:tset", "no part 'tset'; did you mean 'test'?"), ("emojy", "did you mean 'emoji'?"),
])  # fmt: skip
def test_a_slip_of_the_pen_is_one_sentence(name, sentence):
    with pytest.raises(DataError, match=sentence.replace("?", r"\?")):
        find_records([name])
