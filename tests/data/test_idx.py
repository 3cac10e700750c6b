"""The files of MNIST, packed or not; images with their labels, found or named; and what is torn is refused."""

import gzip
import lzma
import struct
from pathlib import Path

import pytest
import torch

from regard.config.errors import DataError
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records

MNIST = Path(__file__).resolve().parents[3] / "shared/data/mnist"


def idx(table, kind=8):
    sizes = struct.pack(f">{table.dim()}I", *table.shape)
    return bytes((0, 0, kind, table.dim())) + sizes + bytes(table.flatten().tolist())


def images(count=5):
    return torch.randint(256, (count, 3, 4), dtype=torch.uint8)


def records(*names):
    return [record for table in find_records(names) for record in table.records(BadRecordPolicy())]


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_images_come_with_the_labels_that_are_called_as_they_are(tmp_path, suffix, pack):
    pictures, labels = images(), torch.tensor([3, 1, 4, 1, 5], dtype=torch.uint8)
    first, second = tmp_path / f"train-images-idx3-ubyte{suffix}", tmp_path / f"train-labels-idx1-ubyte{suffix}"
    first.write_bytes(pack(idx(pictures)))
    second.write_bytes(pack(idx(labels)))

    for name in (str(first), f"{first} + {second}"):
        found = records(name)
        assert [record["label"] for record in found] == [3, 1, 4, 1, 5]
        assert torch.equal(torch.stack([record["image"] for record in found]), pictures)
        assert found[1].where == f"{first}:2"


def test_images_alone_have_no_labels(tmp_path):
    (tmp_path / "my-images.idx3-ubyte").write_bytes(idx(images(2)))

    assert [set(record) for record in records(str(tmp_path / "my-images.idx3-ubyte"))] == [{"image"}] * 2


@pytest.mark.parametrize(("raw", "why"), [
    (b"hello there", "not an idx file: it begins with 68 65 6c 6c"),
    (b"\0\0", "not an idx file: it begins with 00 00"),
    (idx(images())[:-1], "60 bytes by its header, and there are 59; fetch it again"),
    (idx(images()) + b"x", "60 bytes by its header, and there are more"),
    (idx(images(), kind=13), "its numbers are of type 0d, and only bytes"),
    (b"\0\0\x08\x03\0\0", "numbers by its header; fetch it again"),
    (b"\0\0\x08\x03" + b"\xff" * 12, "in memory by its header, and .* set REGARD_MAX_BYTES"),
], ids=["words", "nothing", "cut", "longer", "floats", "a torn header", "endless"])  # fmt: skip
def test_a_torn_file_is_one_sentence(tmp_path, raw, why):
    path = tmp_path / "a-idx3-ubyte"
    path.write_bytes(raw)

    with pytest.raises(DataError, match=why):
        records(str(path))


def test_other_labels_than_there_are_images_are_refused(tmp_path):
    (tmp_path / "images-idx3-ubyte").write_bytes(idx(images(5)))
    (tmp_path / "labels-idx1-ubyte").write_bytes(idx(torch.zeros(4, dtype=torch.uint8)))

    with pytest.raises(DataError, match="5 images and 4 labels; name files that go together"):
        records(str(tmp_path / "images-idx3-ubyte"))
    with pytest.raises(DataError, match="expected images, or images and a label for each"):
        records(f"{tmp_path / 'images-idx3-ubyte'} + {tmp_path / 'images-idx3-ubyte'}")


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST's own files are not here")
@pytest.mark.slow
def test_mnist_itself_is_read():
    found = records(str(MNIST / "t10k-images-idx3-ubyte.xz"))

    assert len(found) == 10_000 and found[0]["image"].shape == (28, 28) and found[0]["label"] == 7
    counts = torch.tensor([record["label"] for record in found]).bincount().tolist()
    assert counts == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]  # as published
