"""Inside a text: the bytes that each token adds to what stands before it.

    GPT-2     Ġcat     ──►  20 63 61 74         a byte is a letter
    Llama     ▁cat     ──►  20 63 61 74         a space is ▁, and only the first one of a text is dropped
              <0xE2>   ──►  E2                  a third of a character
    <s>, </s>          ──►  nothing             special tokens are not part of the text

Where tokens have no spelling of their own (`spelling.py`), they are decoded behind another one.
"""

import json
from typing import TYPE_CHECKING, Any

from regard.text.spelling import VALUES

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

# The steps of decoders that change what a token adds only at the beginning of a text.
STEADY = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def bytes_inside(tokenizer: "Tokenizer") -> list[bytes] | None:
    """What each id adds inside a text; None where that depends on its neighbours, as with BERT's WordPiece."""
    if tokenizer.spelling is not None:
        return tokenizer.spelling
    steps = steps_of(tokenizer)
    anchor = first_plain(tokenizer)
    if anchor is None or not all(step["type"] in STEADY and not step.get("stop") for step in steps):
        return None
    falls = any(step["type"] == "ByteFallback" for step in steps)
    before = tokenizer.decode([anchor])
    behind = tokenizer.inner.decode_batch([[anchor, id] for id in range(len(tokenizer))], skip_special_tokens=True)
    found = [text.removeprefix(before).encode() if text.startswith(before) else b"" for text in behind]
    for token, byte in VALUES.items() if falls else ():
        if (id := tokenizer.inner.token_to_id(token)) is not None:
            found[id] = byte
    return [b"" if id in tokenizer.specials else spelt for id, spelt in enumerate(found)]


def steps_of(tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    decoder = json.loads(tokenizer.inner.to_str())["decoder"] or {"type": ""}
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps


def first_plain(tokenizer: "Tokenizer") -> int | None:
    """A token of letters alone, to stand before others."""
    plain = (id for id in range(len(tokenizer)) if id not in tokenizer.specials and tokenizer.token(id).isalpha())
    return next(plain, None)
