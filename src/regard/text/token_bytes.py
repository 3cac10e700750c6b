"""Spelling: the bytes that each token stands for, so that decoding is joining bytes.

A tokenizer.json says how tokens become text by its decoder. For the decoders below every token has bytes of its own,
whatever stands beside it; others (BERT's, SentencePiece's, with rules for spaces) are left to `tokenizers`.
"""

from collections.abc import Callable
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # the byte tokens of SentencePiece
VALUES = {name: bytes([value]) for value, name in enumerate(BYTES)}
PREFIX = "##"  # begins a WordPiece token that continues a word
SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥"}


def letters() -> dict[str, int]:
    """GPT-2's letter for each byte: printable bytes are their own, the others are moved up from U+0100."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(others)}


LETTERS = letters()
assert set(LETTERS) == set(ByteLevel.alphabet())


def by_letters(token: str) -> bytes:
    """A token in GPT-2's letters; one that is not (an added token) is text."""
    return bytes(map(LETTERS.__getitem__, token)) if LETTERS.keys() >= set(token) else token.encode()


def by_bytes(token: str) -> bytes:
    return VALUES[token] if token in VALUES else token.encode()


# The decoders that leave every token its own bytes, by the types of their steps.
SPELT: dict[tuple[str, ...], Callable[[str], bytes]] = {
    ("Fuse",): str.encode,
    ("ByteFallback", "Fuse"): by_bytes,
    ("ByteLevel",): by_letters,
    ("Replace", "ByteLevel"): lambda token: by_letters(token.removeprefix(PREFIX)),
}


def spelling_of(spec: dict[str, Any], vocabulary: dict[str, int], specials: set[int]) -> list[bytes] | None:
    """The bytes of each id, none for special tokens; None where tokens have no bytes of their own."""
    decoder = spec["decoder"] or {"type": ""}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    spell = SPELT.get(tuple(step["type"] for step in steps))
    if spell is None or any(step["type"] == "Replace" and not joins(step) for step in steps):
        return None
    found = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, id in vocabulary.items():
        found[id] = b"" if id in specials else spell(token)
    return found


def joins(step: dict[str, Any]) -> bool:
    """Is this the decoder's step that takes WordPiece's prefix away?"""
    return (step["pattern"], step["content"]) == ({"Regex": f"^{PREFIX}"}, "")


def direct_of(spec: dict[str, Any], vocabulary: dict[str, int]) -> Callable[[str], list[int]] | None:
    """Encoding by looking up, for vocabularies of single characters or of bytes; KeyError where one is missing."""
    model, splits = spec["model"], spec["pre_tokenizer"]
    if model["type"] != "BPE" or model["merges"] or spec["normalizer"] or spec["added_tokens"]:
        return None
    if splits is None and all(len(token) == 1 or token in VALUES for token in vocabulary):
        return lambda text: list(map(vocabulary.__getitem__, text))
    if splits and splits["type"] == "ByteLevel" and not splits["add_prefix_space"] and vocabulary == LETTERS:
        return lambda text: list(text.encode())
    return None


def alphabet_of(spec: dict[str, Any], vocabulary: dict[str, int]) -> frozenset[str] | None:
    """The characters that can be said; None where there is a way to say any, or where `tokenizers` will complain."""
    model = spec["model"]
    if model["type"] != "BPE" or spec["normalizer"] or spec["pre_tokenizer"]:
        return None
    if model["byte_fallback"] or model["unk_token"]:
        return None
    return frozenset(token for token in vocabulary if len(token) == 1)


def shown(spelt: bytes) -> str:
    """Bytes as a person should see them: characters, signs for spaces, and <0x..> for what cannot be printed."""
    try:
        return "".join(map(sign, spelt.decode()))
    except UnicodeDecodeError:
        return "".join(BYTES[byte] for byte in spelt)


def sign(character: str) -> str:
    if character in SIGNS or character.isprintable():
        return SIGNS.get(character, character)
    return "".join(BYTES[byte] for byte in character.encode())
