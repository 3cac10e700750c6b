"""Arrays whose first axis counts records, as NumPy writes them; and nothing pickled."""

import numpy
import pytest
import torch

from regard.config.errors import DataError
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records


def records(*names):
    return [record for table in find_records(names) for record in table.records(BadRecordPolicy())]


def test_every_array_of_a_file_is_a_column(tmp_path):
    images, labels = numpy.random.randint(256, size=(5, 4, 3, 3), dtype="uint8"), numpy.arange(5)
    numpy.savez_compressed(tmp_path / "a.npz", images=images, labels=labels)
    found = records(str(tmp_path / "a.npz"))

    assert [record["labels"] for record in found] == [0, 1, 2, 3, 4]
    assert torch.equal(found[3]["images"], torch.from_numpy(images[3]))
    assert found[3].where == f"{tmp_path / 'a.npz'}:4"


def test_an_array_alone_is_images(tmp_path):
    images = numpy.asfortranarray(numpy.random.rand(3, 4, 6).astype("float32"))
    numpy.save(tmp_path / "a.npy", images)

    assert torch.equal(records(str(tmp_path / "a.npy"))[2]["image"], torch.from_numpy(images[2].copy()))


def test_one_number_in_the_order_of_fortran_is_no_list_of_images(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': True, 'shape': ()}".ljust(117) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4))

    with pytest.raises(DataError, match="a.npy"):
        records(str(tmp_path / "a.npy"))


def test_arrays_of_different_lengths_are_no_records(tmp_path):
    numpy.savez(tmp_path / "a.npz", images=numpy.zeros((5, 2)), labels=numpy.zeros(4))

    with pytest.raises(DataError, match=r"arrays of different lengths \(images \(5, 2\), labels \(4,\)\)"):
        records(str(tmp_path / "a.npz"))


def test_objects_are_never_unpacked(tmp_path):
    numpy.savez(tmp_path / "a.npz", images=numpy.array([{"a": 1}, None], dtype=object))

    with pytest.raises(DataError, match=r"unsupported dtype '\|O'"):
        records(str(tmp_path / "a.npz"))


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_a_torn_file_is_one_sentence(tmp_path, name):
    numpy.savez(tmp_path / "a.npz", images=numpy.zeros((5, 200)))
    numpy.save(tmp_path / "a.npy", numpy.zeros((5, 200)))
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(raw[: len(raw) // 2])

    with pytest.raises(DataError, match=name):
        records(str(tmp_path / name))
