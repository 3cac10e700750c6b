"""Sizes are known before memory is taken: small files that promise gigabytes are refused in a moment, by a sentence."""

import gzip
import lzma
import os
import struct
import time
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from faults.big_files import packed, saved

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records, find_texts
from regard.files.size_limits import DEFAULT, check_bytes, format_bytes, max_bytes

RAISED = "set REGARD_MAX_BYTES"


def read(path, **how):
    return [record for table in find_records([str(path)], C.Data(**how)) for record in table.records(BadRecordPolicy())]


def npz(path: Path, **named: bytes | int) -> Path:
    """Arrays by name; a number is so many mebibytes of zeros, packed."""
    with zipfile.ZipFile(path, "w") as file:
        for name, data in named.items():
            if isinstance(data, bytes):
                file.writestr(f"{name}.npy", data, zipfile.ZIP_DEFLATED)
                continue
            told = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({data << 20},), }}\n".encode()
            begin = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told)) + told
            file.writestr(f"{name}.npy", packed(begin, data))
            found, at = file.infolist()[-1], file.fp.tell()
            found.compress_type, found.file_size = zipfile.ZIP_DEFLATED, len(begin) + (data << 20)
            file.fp.seek(found.header_offset + 8)
            file.fp.write(struct.pack("<H", zipfile.ZIP_DEFLATED))
            file.fp.seek(at)
    return path


def held() -> int:
    """Bytes that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def nodes(count: int, width: int, **more: bytes) -> dict[str, bytes]:
    return {"feat_indptr": saved([0, 1]), "feat_indices": saved([0]), "num_nodes": saved([count], shape=()),
            "num_features": saved([width], shape=()), "edges": saved([0, 1], shape=(1, 2)), "labels": saved([0]),
            "train": saved([0]), "val": saved([]), "test": saved([]), **more}  # fmt: skip


def tall(path: Path) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = pa.ListArray.from_arrays(pa.array([0, 20_000_000]), pa.nulls(20_000_000, pa.null()))
    pq.write_table(pa.table({"a": lists.cast(pa.list_(pa.int8()))}), path)
    return path


PROMISES = {
    "a packed array": lambda p: npz(p / "a.npz", a=2000),
    "several packed arrays": lambda p: npz(p / "a.npz", a=200, b=200, c=200),
    "an array of a terabyte": lambda p: write(p / "a.npy", saved([], shape=(1 << 37,))),
    "packed images": lambda p: write(p / "a-idx3-ubyte.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + packed(
        struct.pack(">BBBBIII", 0, 0, 8, 3, 1 << 20, 1 << 10, 1), 1024)),
    "a wide graph": lambda p: npz(p / "a.npz", **nodes(1, 10**12)),
    "a list of many": lambda p: tall(p / "a.parquet"),
}  # fmt: skip


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("name", PROMISES)
def test_a_small_file_that_promises_gigabytes_is_refused_at_once(name, tmp_path):
    path = PROMISES[name](tmp_path)
    before, began = held(), time.process_time()
    with pytest.raises(DataError, match=f"in memory by its header.*{RAISED}") as caught:
        read(path)

    assert path.stat().st_size < 3 << 20 and str(path) in str(caught.value)
    assert time.process_time() - began < 1 and held() - before < 100 << 20


def test_bytes_are_written_for_people():
    sizes = (12, 1000, 2048, 1020 << 10, 3 << 30, 1.5 * 2**40, 10**400)

    assert [format_bytes(size) for size in sizes] == [
        "12 B", "1000 B", "2 KiB", "1020 KiB", "3 GiB", "1.5 TiB", "more than an EiB"
    ]  # fmt: skip


def test_the_limit_is_raised_by_the_environment(tmp_path, monkeypatch):
    path = npz(tmp_path / "a.npz", a=3)
    monkeypatch.setenv("REGARD_MAX_BYTES", "2M")
    with pytest.raises(DataError, match="2 MiB are the most"):
        read(path)
    monkeypatch.setenv("REGARD_MAX_BYTES", "4M")
    with pytest.raises(DataError, match="CRC"):  # read now, and the sum of its bytes was never right
        read(path)
    monkeypatch.setenv("REGARD_MAX_BYTES", "much")
    with pytest.raises(ConfigError, match="REGARD_MAX_BYTES: 'much' in the environment is no size"):
        read(path)


def test_a_file_that_is_large_itself_may_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_MAX_BYTES", "1000")
    torch.manual_seed(0)
    path = write(tmp_path / "a.npy", saved(list(range(2000)), shape=(20, 100)))

    assert len(read(path)) == 20  # sixteen kilobytes out of sixteen kilobytes


def test_a_file_with_holes_is_not_large(tmp_path):
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    if 512 * path.stat().st_blocks > 1 << 20:
        pytest.skip("a disk that fills holes")

    assert max_bytes(path) == DEFAULT
    check_bytes(DEFAULT, path, path)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_text_that_is_a_thousand_times_as_long_unpacked_is_refused(pack, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_MAX_BYTES", "1M")
    path = write(tmp_path / ("a.txt.gz" if pack is gzip.compress else "a.txt.xz"), pack(b"a line\n" * 1_000_000))
    [source] = find_texts([str(path)])
    with pytest.raises(DataError, match="come out of .* bytes; unpack it yourself, or set REGARD_MAX_BYTES"):
        list(source.parts())


def test_an_xz_file_cannot_say_how_much_memory_it_takes(tmp_path):
    packer = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 16}])
    raw = bytearray(packer.compress(b"a\n" * 9) + packer.flush())
    small = raw.index(b"\x21\x01") + 2  # the property of LZMA2: how far it looks back
    raw[small] = 38  # two gigabytes
    head = raw[12 : 12 + 4 * (raw[12] + 1) - 4]
    raw[12 + len(head) : 16 + len(head)] = struct.pack("<I", zlib.crc32(head))
    with pytest.raises(DataError, match="not a whole xz file .*emory"):
        read(write(tmp_path / "a.txt.xz", bytes(raw)))


@pytest.mark.parametrize("shape", [(10**9, 0), (0,), (3, 0), ()])
def test_rows_of_nothing_are_no_records(shape, tmp_path):
    raw = saved([] if 0 in shape else [1], shape=None).replace(b"(0,)" if 0 in shape else b"(1,)", repr(shape).encode())
    length = raw.index(b"\n") + 1 - 10
    with pytest.raises(DataError, match="a shape of|arrays without (numbers|rows)"):
        read(write(tmp_path / "a.npy", raw[:8] + struct.pack("<H", length) + raw[10:]))


@pytest.mark.parametrize("change", [
    {"num_nodes": saved([1, 2])}, {"num_nodes": saved([10**9], shape=())}, {"labels": saved([0] * 9)},
    {"feat_indptr": saved([0, 1], shape=(1, 2))}, {"train": saved([0] * 4, shape=(2, 2))},
], ids=["two counts", "too many nodes", "too many labels", "a square", "another square"])  # fmt: skip
def test_arrays_that_are_no_graph_are_one_sentence(change, tmp_path):
    with pytest.raises(DataError, match=r"a\.npz"):
        read(npz(tmp_path / "a.npz", **nodes(1, 2, **change)))


def test_one_text_said_a_thousand_times_takes_little_memory(tmp_path):
    """A dictionary holds it once, and rows are made one at a time."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 250, pa.int32()), pa.array(["x" * 4_000_000]))
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet", compression="zstd", store_schema=False)
    before, most, number = held(), 0, 0
    for table in find_records([str(tmp_path / "a.parquet")]):
        for record in table.records(BadRecordPolicy()):
            most, number = max(most, held() - before), number + 1
            assert len(record["a"]) == 4_000_000

    assert number == 250 and most < 400 << 20


@pytest.mark.parametrize("where", ["a.txt", "a.npz", "a.parquet", "a-idx3-ubyte", "graphs:a.txt", "a.csv", "a.wav"])
def test_a_pipe_is_refused_and_not_waited_for(where, tmp_path):
    prefix, _, name = where.rpartition(":")
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="not a regular file|no such file"):
        read(f"{prefix}:{tmp_path / name}" if prefix else tmp_path / name)


def test_a_pipe_among_pictures_is_refused_and_not_waited_for(tmp_path):
    from regard.data.readers.images import load_image

    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(DataError, match="not a regular file; name an image"):
        load_image(tmp_path / "a.png", 3, "here")
    with pytest.raises(DataError, match="not a regular file; remove it from the folder"):
        _ = find_records([str(tmp_path)])[0].digest


@pytest.mark.parametrize(("date", "why"), [
    ("99999999999999999", "in memory by its header"), ("9" * 5000, "is no date")])  # fmt: skip
def test_a_date_far_ahead_is_no_row_for_every_second_until_then(date, why, tmp_path):
    from regard.data.readers.time_series import read_series

    path = write(tmp_path / "a.csv", f"date,x\n1,1\n2,2\n3,3\n{date},4\n".encode())
    with pytest.raises(DataError, match=why):
        read_series(find_records([str(path)])[0], C.Forecasting(date_column="date", fill_gaps="last"))


def test_numbers_of_a_toy_that_are_none_are_a_sentence():
    with pytest.raises(DataError, match="expected sizes of one or more") as caught:
        find_texts([f"toy:sort({'9' * 5000})"])

    assert len(str(caught.value)) < 400


def test_a_batch_of_a_thousand_million_rows_is_refused_before_it_is_made():
    says = "train.batch_size: 1,000,000,000 rows of 64 tokens .*gradient_accumulation higher"
    with pytest.raises(ConfigError, match=says):
        C.from_dict(C.Recipe, {"train": {"batch_size": 10**9, "context": 64, "steps": 1}})
