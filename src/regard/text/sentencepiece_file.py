"""SentencePiece file parser (spiece.model, tokenizer.model, source.spm): pieces with scores, and the settings for them.

Such a file is a protocol buffer: fields, each a number, a wire type and a value, and some values are nested fields.

    1 pieces      1 piece "▁the"   2 score -3.1   3 type (1 normal, 2 unknown, 3 control, 4 user's, 5 unused, 6 byte)
    2 trainer     3 model type (1 unigram, 2 bpe)   35 byte fallback   40 id of the unknown piece
    3 normalizer  2 a compiled character map

Of two hundred settings these few decide how a text is split; the rest describe training.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.text.tokenizer_limits import check_charsmap

NORMAL, UNKNOWN, CONTROL, USERS, UNUSED, BYTE = range(1, 7)
LONGEST = 1024  # bytes of a piece; SentencePiece makes none longer than 16 characters by default
MOST = 1 << 21  # pieces

Value = int | bytes


class SentencePiece(NamedTuple):
    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass
class SentencePieceModel:
    """The contents of a SentencePiece file; `bpe` for merges, else Unigram."""

    pieces: list[SentencePiece] = field(default_factory=list)
    bpe: bool = False
    unknown: int = 0
    fallback: bool = False
    charsmap: bytes = b""

    @property
    def scores(self) -> list[tuple[str, float]]:
        return [(piece.text, piece.score) for piece in self.pieces]


def parse_sentencepiece(data: bytes) -> SentencePieceModel:
    """Parse a SentencePiece file; ValueError if it is none."""
    found = SentencePieceModel()
    for number, value in protobuf_fields(data):
        if number == 1:
            found.pieces.append(parse_piece(as_bytes(value)))
            if len(found.pieces) > MOST:
                raise ValueError(f"more than {MOST:,} pieces")
        elif number == 2:
            trainer = dict(protobuf_fields(as_bytes(value)))
            if (kind := as_int(trainer.get(3, 1))) not in (1, 2):
                raise ValueError(f"pieces of type {kind}; known are 1 (unigram) and 2 (bpe)")
            found.bpe, found.fallback = kind == 2, bool(trainer.get(35, 0))
            found.unknown = as_int(trainer.get(40, 0))
        elif number == 3:
            found.charsmap = as_bytes(dict(protobuf_fields(as_bytes(value))).get(2, b""))
            check_charsmap(found.charsmap)
    if not 0 <= found.unknown < len(found.pieces):
        raise ValueError(f"{len(found.pieces)} pieces, of which {found.unknown} is the unknown one")
    return found


def parse_piece(data: bytes) -> SentencePiece:
    told = dict(protobuf_fields(data))
    text, score = as_bytes(told.get(1, b"")), struct.unpack("<f", as_bytes(told.get(2, bytes(4))))[0]
    if len(text) > LONGEST or not math.isfinite(score):
        raise ValueError(f"a piece of {len(text)} bytes with the score {score}")
    return SentencePiece(text.decode(), score, as_int(told.get(3, NORMAL)))


def protobuf_fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The number and value of each field; lengths are checked against the remaining bytes."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, at = read_varint(data, at)
        elif key & 7 in (1, 5):
            size = 8 if key & 7 == 1 else 4
        else:
            raise ValueError(f"a field of an unknown kind at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes at byte {at}, and {len(data) - at} are left")
        yield key >> 3, data[at : at + size]
        at += size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint, seven bits per byte, and its end offset."""
    value = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError(f"no number at byte {at}")


def as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where a text or a table stands")
    return value


def as_int(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError("a text or a table where a number stands")
    return value


def merges_from_ranks(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """BPE merges in the order of the pieces: SentencePiece has ranks where BPE needs pairs."""
    found: list[tuple[int, int, int, int, int, tuple[str, str]]] = []
    for text, id in vocabulary.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocabulary and right in vocabulary:
                order = (id, len(left), len(right), vocabulary[left], vocabulary[right])
                found.append((*order, (left, right)))
    return [pair for *_, pair in sorted(found)]
