"""Token bytes: the bytes that each token stands for, alone and inside a text, so that decoding is joining bytes.

    GPT-2     Ġcat     ──►  20 63 61 74         each byte is shown as a letter
    Llama     ▁cat     ──►  20 63 61 74         a space is ▁, and only the first one of a text is dropped
              <0xE2>   ──►  E2                  part of a character
    <s>, </s>          ──►  nothing             special tokens are not part of the text

The decoder in tokenizer.json converts tokens to text. For the decoders below every token has its own bytes, whatever
its neighbours; for others (BERT's, SentencePiece's, with rules for spaces) a token is decoded after another one, and
decoding is left to `tokenizers`.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

# Decoder steps that treat a token differently only at the beginning of a text.
STEADY = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def token_bytes_in_context(tokenizer: "Tokenizer") -> list[bytes] | None:
    """The bytes of each id inside a text; None if they depend on its neighbours, as in BERT's WordPiece."""
    if tokenizer.spelling is not None:
        return tokenizer.spelling
    steps = decoder_steps(tokenizer)
    anchor = find_plain_token(tokenizer)
    if anchor is None or not all(step["type"] in STEADY and not step.get("stop") for step in steps):
        return None
    falls = any(step["type"] == "ByteFallback" for step in steps)
    before = tokenizer.decode([anchor])
    behind = tokenizer.inner.decode_batch([[anchor, id] for id in range(len(tokenizer))], skip_special_tokens=True)
    found = [text.removeprefix(before).encode() if text.startswith(before) else b"" for text in behind]
    for token, byte in BYTE_VALUES.items() if falls else ():
        if (id := tokenizer.inner.token_to_id(token)) is not None:
            found[id] = byte
    return [b"" if id in tokenizer.specials else spelt for id, spelt in enumerate(found)]


def decoder_steps(tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    decoder = json.loads(tokenizer.inner.to_str())["decoder"] or {"type": ""}
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps


def find_plain_token(tokenizer: "Tokenizer") -> int | None:
    """A token of letters only, used as context for others."""
    plain = (id for id in range(len(tokenizer)) if id not in tokenizer.specials and tokenizer.token(id).isalpha())
    return next(plain, None)


BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))  # the byte tokens of SentencePiece
BYTE_VALUES = {name: bytes([value]) for value, name in enumerate(BYTE_TOKENS)}
WORDPIECE_PREFIX = "##"  # prefix of a WordPiece token that continues a word
SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥"}


def byte_to_letter() -> dict[str, int]:
    """GPT-2's letter for each byte: printable bytes are themselves, the others are shifted to U+0100 and up."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_LETTERS = byte_to_letter()
assert set(BYTE_LETTERS) == set(ByteLevel.alphabet())


def bytes_from_letters(token: str) -> bytes:
    """The bytes of a token in GPT-2's letters; an added token is plain text."""
    return bytes(map(BYTE_LETTERS.__getitem__, token)) if BYTE_LETTERS.keys() >= set(token) else token.encode()


def bytes_from_byte_token(token: str) -> bytes:
    return BYTE_VALUES[token] if token in BYTE_VALUES else token.encode()


# Decoders in which every token has its own bytes, by the types of their steps.
SPELT: dict[tuple[str, ...], Callable[[str], bytes]] = {
    ("Fuse",): str.encode,
    ("ByteFallback", "Fuse"): bytes_from_byte_token,
    ("ByteLevel",): bytes_from_letters,
    ("Replace", "ByteLevel"): lambda token: bytes_from_letters(token.removeprefix(WORDPIECE_PREFIX)),
}


def bytes_of_vocabulary(spec: dict[str, Any], vocabulary: dict[str, int], specials: set[int]) -> list[bytes] | None:
    """The bytes of each id, none for special tokens; None if the decoder depends on context."""
    decoder = spec["decoder"] or {"type": ""}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    spell = SPELT.get(tuple(step["type"] for step in steps))
    if spell is None or any(step["type"] == "Replace" and not is_prefix_step(step) for step in steps):
        return None
    found = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, id in vocabulary.items():
        found[id] = b"" if id in specials else spell(token)
    return found


def is_prefix_step(step: dict[str, Any]) -> bool:
    """Whether a decoder step removes WordPiece's prefix."""
    return (step["pattern"], step["content"]) == ({"Regex": f"^{WORDPIECE_PREFIX}"}, "")


def lookup_encoder(spec: dict[str, Any], vocabulary: dict[str, int]) -> Callable[[str], list[int]] | None:
    """Encode by table lookup, for vocabularies of single characters or bytes; KeyError for unknown ones."""
    model, splits = spec["model"], spec["pre_tokenizer"]
    if model["type"] != "BPE" or model["merges"] or spec["normalizer"] or spec["added_tokens"]:
        return None
    if splits is None and all(len(token) == 1 or token in BYTE_VALUES for token in vocabulary):
        return lambda text: list(map(vocabulary.__getitem__, text))
    if splits and splits["type"] == "ByteLevel" and not splits["add_prefix_space"] and vocabulary == BYTE_LETTERS:
        return lambda text: list(text.encode())
    return None


def sayable_characters(spec: dict[str, Any], vocabulary: dict[str, int]) -> frozenset[str] | None:
    """The characters in the vocabulary; None if any can be encoded, or if `tokenizers` reports unknown ones."""
    model = spec["model"]
    if model["type"] != "BPE" or spec["normalizer"] or spec["pre_tokenizer"]:
        return None
    if model["byte_fallback"] or model["unk_token"]:
        return None
    return frozenset(token for token in vocabulary if len(token) == 1)


def printable(spelt: bytes) -> str:
    """Bytes for display: characters, symbols for spaces, and <0x..> for bytes that cannot be printed."""
    try:
        return "".join(map(printable_character, spelt.decode()))
    except UnicodeDecodeError:
        return "".join(BYTE_TOKENS[byte] for byte in spelt)


def printable_character(character: str) -> str:
    if character in SIGNS or character.isprintable():
        return SIGNS.get(character, character)
    return "".join(BYTE_TOKENS[byte] for byte in character.encode())
