"""Tokens as clients are told of them: as text, as bytes, and with the odds that they and others had.

OpenAI has two ways to tell them: a list for each thing to be known (completions), and a table for each token (chats).
"""

import math
from collections.abc import Sequence
from typing import Any

from regard.generate.many import Token
from regard.text import Tokenizer

LEAST = -9999.0  # what clients are told for the logarithm of nothing


def columns(tokens: Sequence[Token], known: Tokenizer, start: int) -> dict[str, Any]:
    """`start` is where in the text the first token stands. Before the first token of all nothing stands, so it has no
    odds."""
    offsets = list[int]()
    for each in tokens:
        offsets.append(start)
        start += len(each.bytes.decode(errors="ignore"))
    return {
        "tokens": [word(each, known) for each in tokens],
        "token_logprobs": [odds(each) for each in tokens],
        "top_logprobs": [None if odds(each) is None else {word(other, known): odds(other) for other in each.others}
                         for each in tokens],
        "text_offset": offsets,
    }  # fmt: skip


def rows(tokens: Sequence[Token], known: Tokenizer) -> dict[str, Any]:
    told = [row(each, known) | {"top_logprobs": [row(other, known) for other in each.others]} for each in tokens]
    return {"content": told, "refusal": None}


def row(token: Token, known: Tokenizer) -> dict[str, Any]:
    return {"token": word(token, known), "logprob": odds(token), "bytes": list(token.bytes)}


def word(token: Token, known: Tokenizer) -> str:
    """A token as text: a special one by its name, half a character by its bytes, as OpenAI does it."""
    if token.id in known.specials:
        return known.token(token.id)
    try:
        return token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def odds(token: Token) -> float | None:
    return None if math.isnan(token.logprob) else max(token.logprob, LEAST)
