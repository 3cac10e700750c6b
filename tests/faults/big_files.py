"""Files of arrays, of tables and of models whose headers are well-formed and promise more than there is."""

import gzip
import random
import struct
import zipfile
import zlib
from functools import cache
from io import BytesIO
from pathlib import Path

SIDES = (0, 1, 2, 3, 7, 28, 1000, 65_535, 10**6, 10**9, 2**31, 2**32 - 1, 2**40, 2**63, 10**30)
COUNTS = (0, 1, 2, 3, 100, 10**4, 10**6, 10**8, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**64 - 1)


# ---------------------------------------------------------------- .npz, .npy, idx


def arrays(chance: random.Random, place: Path) -> str:
    make = chance.choice((archive, archive, graph, array_file, idx))
    return str(make(chance, place))


def header(chance: random.Random, shape: tuple | None = None) -> bytes:
    sides = tuple(chance.choice(SIDES) for _ in range(chance.choice((0, 1, 1, 2, 3, 4, 40))))
    if shape is None and chance.random() < 0.4:
        return saved([3] * chance.choice((1, 1, 100)))
    shape = sides if shape is None else shape
    said = (
        repr(shape)
        if chance.random() < 0.9
        else chance.choice(
            (
                "(-1,)",
                "(1.5,)",
                "(True,)",
                "[3]",
                "3",
                "(" * 500,
                "(3,)*9",
                "(1e3,)",
                "((3,),)",
                "None",
                "'" + "9" * 9000,
            )
        )
    )
    kind = chance.choice(("<f4", "<f8", "<i8", "|u1", "|b1", "<i2", "|O", "<U9", ">f4", "<c8", "[('a', '<f4')]"))
    told = f"{{'descr': {kind!r}, 'fortran_order': {chance.random() < 0.3}, 'shape': {said}, }}\n".encode("latin1")
    length = len(told) if chance.random() < 0.95 else chance.choice((0, 5, 65_535))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + told


@cache
def zeros() -> bytes:
    """A mebibyte of zeros, packed so that many may stand one after the other."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)


def packed(begin: bytes, mebibytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15)
    return first + zeros() * mebibytes + end.flush()


def archive(chance: random.Random, place: Path, named: dict | None = None) -> Path:
    """A zip of arrays whose sizes are true, or not; of a few kilobytes at most a gibibyte may come."""
    path = place / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        for name, raw in (named or {str(n): None for n in range(chance.choice((1, 1, 2, 9)))}).items():
            many = chance.choice((0, 0, 0, 1, 8, 600))
            if raw is None and many:
                shape = (many << 20,) if chance.random() < 0.7 else None
                begin = header(chance, shape)
                data, size = packed(begin, many), len(begin) + (many << 20)
            else:
                plain = (header(chance) + bytes(chance.choice((0, 0, 8, 800)))) if raw is None else raw
                data, size = packed(plain, 0), len(plain)
            size = size if chance.random() < 0.7 else chance.choice((0, 5, 10**6, 2**31, 2**32 - 2))
            file.writestr(f"{name}.npy", data)
            found = file.infolist()[-1]
            # the packed bytes are stored as they are, then called deflated: the header may say any size
            found.compress_type, found.file_size = zipfile.ZIP_DEFLATED, size
            found.CRC = zlib.crc32(zlib.decompress(data, -15)) if many < 600 or raw is not None else 0
            at = file.fp.tell()
            file.fp.seek(found.header_offset + 8)
            file.fp.write(struct.pack("<H", zipfile.ZIP_DEFLATED))
            file.fp.seek(at)
    return path


def saved(values, kind: str = "<i8", shape: tuple | None = None) -> bytes:
    raw = struct.pack(f"<{len(values)}{'q' if kind == '<i8' else 'B'}", *values)
    told = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape or (len(values),)!r}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told)) + told + raw


def graph(chance: random.Random, place: Path) -> Path:
    """One graph in arrays, of which some say more than there is."""
    nodes, width = chance.choice((3, 3, 3, *SIDES[:13])), chance.choice((4, 4, *SIDES[:13]))
    named = {
        "feat_indptr": saved([0, 1, 1, 2]), "feat_indices": saved([0, chance.choice((2, -1, 10**9))]),
        "num_nodes": saved([min(nodes, 2**63 - 1)], shape=()) if chance.random() < 0.9 else saved([3, 3]),
        "num_features": saved([min(width, 2**63 - 1)], shape=()), "edges": saved([0, 1, 1, 2], shape=(2, 2)),
        "labels": saved([0, 1, 0]), "train": saved([0]), "val": saved([1]), "test": saved([2]),
    }  # fmt: skip
    if chance.random() < 0.5:
        named[chance.choice(list(named))] = header(chance) + bytes(chance.choice((0, 8, 800)))
    return archive(chance, place, named)


def array_file(chance: random.Random, place: Path) -> Path:
    raw = header(chance) + bytes(chance.choice((0, 0, 8, 4000)))
    path = place / chance.choice(("a.npy", "a.npy.gz"))
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def idx(chance: random.Random, place: Path) -> Path:
    sides = [min(chance.choice(SIDES), 2**32 - 1) for _ in range(chance.choice((1, 2, 3, 3, 4)))]
    kind, axes = chance.choice((8, 8, 8, 13)), len(sides) if chance.random() < 0.9 else chance.choice((0, 9, 255))
    raw = struct.pack(">BBBB", 0, 0, kind, axes) + struct.pack(f">{len(sides)}I", *sides)
    path = place / chance.choice(("a-idx3-ubyte", "a-idx3-ubyte.gz"))
    if path.suffix != ".gz":
        path.write_bytes(raw + bytes(chance.choice((0, 7, 784, 5000))))
        return path
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    path.write_bytes(head + packed(raw, chance.choice((0, 1, 8, 300))) + bytes(8))
    return path


# ---------------------------------------------------------------- Parquet


@cache
def tables() -> list[bytes]:
    """Small files of all kinds of columns, by the library itself."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    many = 20_000
    words = pa.array(["x" * 5000, "y", None] * 700)
    lists = pa.ListArray.from_arrays(pa.array([0, many - 5, many]), pa.nulls(many, pa.int64()))
    columns = (
        {"text": words}, {"a": pa.nulls(many, pa.int64()), "b": pa.array([7] * many)}, {"text": lists},
        {"text": pa.array([["p" * 900] * 300, []])}, {"s": pa.array([{"u": "x" * 99, "v": [1, 2]}] * 9)},
        {"t": pa.array([1, 2**40], pa.timestamp("us", "Europe/Paris"))}, {"d": pa.array([1.5, None] * 99)},
        {"m": pa.array([[("k", "v" * 400)]], pa.map_(pa.string(), pa.string()))},
    )  # fmt: skip
    found = []
    for table in columns:
        for how in ({}, {"compression": "gzip"}, {"store_schema": False, "data_page_version": "2.0"},
                    {"use_dictionary": False, "compression": "zstd"}):  # fmt: skip
            file = BytesIO()
            pq.write_table(pa.table(table), file, **how)
            found.append(file.getvalue())
    file = BytesIO()
    pq.write_table(pa.table({"text": pa.array([f"{'p' * 5000}{n}" for n in range(900)])}), file, use_dictionary=False,
                   column_encoding={"text": "DELTA_BYTE_ARRAY"}, store_schema=False)  # fmt: skip
    return [*found, file.getvalue()]


def parquet(chance: random.Random, place: Path) -> str:
    """The footer, or the header of a page, with other numbers in it; all lengths around them are mended."""
    raw = chance.choice(tables())
    length = int.from_bytes(raw[-8:-4], "little")
    body, footer = raw[: -8 - length], raw[-8 - length : -8]
    if chance.random() < 0.5:
        footer = changed(footer, chance)
    if chance.random() < 0.6:  # the first page begins behind the four letters
        _, end = thrift(body, 4)
        head = changed(body[4:end], chance)
        body = body[:4] + head + body[end:] if chance.random() < 0.5 else body[:4] + same_length(head, end - 4, body)
    path = place / "a.parquet"
    path.write_bytes(body + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return str(path)


def same_length(head: bytes, length: int, body: bytes) -> bytes:
    """The header and the page behind it, of which as much is left out as the header is longer now."""
    return head + body[4 + length + max(0, len(head) - length) :]


def changed(raw: bytes, chance: random.Random) -> bytes:
    tree, _ = thrift(raw, 0)
    places = list(numbers(tree))
    for _ in range(chance.choice((1, 1, 2, 4))):
        holder, key = chance.choice(places)
        kind, value = holder[key]
        near = (value + 1, value - 1, value * 2, value * 1000, -value, 0)
        holder[key] = (kind, chance.choice((*near, *COUNTS[:12])))
    return written(tree)


def thrift(raw: bytes, at: int):
    """A struct in Thrift's compact form as a list of (number, kind, value), and where it ends."""
    found, last = [], 0
    while raw[at]:
        step, kind = raw[at] >> 4, raw[at] & 15
        at += 1
        last, at = (last + step, at) if step else zigzag(raw, at)
        value, at = item(raw, at, kind, True)
        found.append([last, (kind, value)])
    return found, at + 1


def item(raw: bytes, at: int, kind: int, field: bool):
    if kind in (1, 2):
        return (None, at) if field else (raw[at], at + 1)
    if kind == 3:
        return raw[at], at + 1
    if kind in (4, 5, 6):
        return zigzag(raw, at)
    if kind == 7:
        return raw[at : at + 8], at + 8
    if kind == 8:
        size, at = varint(raw, at)
        return raw[at : at + size], at + size
    if kind == 9:
        size, inner = raw[at] >> 4, raw[at] & 15
        size, at = varint(raw, at + 1) if size == 15 else (size, at + 1)
        made = []
        for _ in range(size):
            each, at = item(raw, at, inner, False)
            made.append((inner, each))
        return (inner, made), at
    return thrift(raw, at)


def numbers(tree):
    """Where whole numbers stand."""
    for row in tree:
        holder, key = row, len(row) - 1
        kind, value = row[key]
        if kind in (4, 5, 6):
            yield holder, key
        elif kind == 12:
            yield from numbers(value)
        elif kind == 9:
            rows = [[each] for each in value[1]]
            value[1][:] = rows  # so that each has a place of its own
            yield from numbers(rows)


def written(tree) -> bytes:
    made, last = b"", 0
    for number, (kind, value) in tree:
        step = number - last
        made += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + leb(number << 1)
        made, last = made + said(kind, value, True), number
    return made + b"\0"


def said(kind: int, value, field: bool) -> bytes:
    if kind in (1, 2):
        return b"" if field else bytes([value])
    if kind == 3:
        return bytes([value])
    if kind in (4, 5, 6):
        return leb((value << 1) ^ (value >> 63) if abs(value) < 2**63 else 2**64 - 1)
    if kind == 7:
        return value
    if kind == 8:
        return leb(len(value)) + value
    if kind == 9:
        inner, rows = value
        pairs = [row[0] if isinstance(row, list) else row for row in rows]
        size = bytes([len(pairs) << 4 | inner]) if len(pairs) < 15 else bytes([0xF0 | inner]) + leb(len(pairs))
        return size + b"".join(said(each[0], each[1], False) for each in pairs)
    return written(value)


def varint(raw: bytes, at: int):
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at


def zigzag(raw: bytes, at: int):
    value, at = varint(raw, at)
    return (value >> 1) ^ -(value & 1), at


def leb(value: int) -> bytes:
    value &= 2**64 - 1
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


# ---------------------------------------------------------------- GGUF


def gguf(chance: random.Random, place: Path) -> str:
    """Facts, lists and tensors whose counts and lengths are true, or not."""
    facts = dict(right(chance))
    for _ in range(chance.choice((0, 1, 2, 3))):
        name = chance.choice([*facts, f"x{chance.randrange(9)}"])
        facts[name] = odd(chance)
    tensors = [shape_of(chance, name) for name in chance.choice((NAMES, NAMES, NAMES * 3, ["x"] * 50))]
    count = len(tensors) if chance.random() < 0.85 else chance.choice(COUNTS)
    many = len(facts) if chance.random() < 0.85 else chance.choice(COUNTS)
    raw = b"GGUF" + struct.pack("<IQQ", 3, count, many)
    raw += b"".join(text(name) + value for name, value in facts.items()) + b"".join(tensors)
    path = place / "a.gguf"
    path.write_bytes(raw + bytes(-len(raw) % 32) + bytes(chance.choice((40_000, 40_000, 100, 2_000_000))))
    return str(path)


NAMES = ["token_embd.weight", "output_norm.weight"] + [
    f"blk.0.{name}.weight" for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm",
                                        "ffn_gate", "ffn_up", "ffn_down")]  # fmt: skip


def text(said: str) -> bytes:
    return struct.pack("<Q", len(said.encode())) + said.encode()


def right(chance: random.Random):
    yield "general.architecture", struct.pack("<I", 8) + text("llama")
    for name, value in (("context_length", 32), ("embedding_length", 8), ("block_count", 1),
                        ("feed_forward_length", 8), ("attention.head_count", 2)):  # fmt: skip
        value = value if chance.random() < 0.9 else min(chance.choice(COUNTS), 2**32 - 1)
        yield f"llama.{name}", struct.pack("<II", 4, value)
    yield "llama.attention.layer_norm_rms_epsilon", struct.pack("<If", 6, 1e-5)
    tokens = [f"t{n}" for n in range(16)]
    yield "tokenizer.ggml.model", struct.pack("<I", 8) + text("gpt2")
    yield "tokenizer.ggml.pre", struct.pack("<I", 8) + text("gpt-2")
    yield "tokenizer.ggml.tokens", struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens))


def odd(chance: random.Random) -> bytes:
    """A fact that promises: a text, a list of numbers or texts, a list of lists."""
    count = chance.choice(COUNTS)
    some = bytes(chance.choice((0, 8, 100, 100_000)))
    return chance.choice((
        struct.pack("<IQ", 8, count) + some,
        struct.pack("<IIQ", 9, chance.choice((0, 4, 5, 7, 10, 12)), count) + some,
        struct.pack("<IIQ", 9, 7, 3_000_000) + bytes(3_000_000),
        struct.pack("<IIQ", 9, 8, count) + some,
        struct.pack("<IIQ", 9, 8, 200_000) + bytes(8 * 200_000),
        struct.pack("<II", 9, 9) * 300 + struct.pack("<IQ", 4, 1) + some,
        struct.pack("<I", chance.choice((13, 99, 2**31))) + some,
        struct.pack("<IQ", 10, count),
    ))  # fmt: skip


def shape_of(chance: random.Random, name: str) -> bytes:
    shape = (8, 16) if name.startswith("token") else (8,) if "norm" in name else (8, 8)
    if chance.random() < 0.05:
        shape = tuple(min(chance.choice(SIDES), 2**64 - 1) for _ in range(chance.choice((0, 1, 2, 4, 9))))
    kind = 0 if chance.random() < 0.95 else chance.choice((1, 2, 8, 16, 30, 99))
    place = chance.randrange(30) * 512 if chance.random() < 0.95 else chance.choice(COUNTS)
    return (
        text(name)
        + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, place)
    )
