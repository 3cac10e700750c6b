"""Requests that are wrong in thousands of ways, each made of a right one by its number.

    values   {"max_tokens": 3}  ──►  {"max_tokens": 1e308}          still JSON, and still HTTP
    bytes    {"max_tokens": 3}  ──►  {"max_tok\\xffens": 3           still HTTP
    wire     Content-Length: 23 ──►  Content-Length: -1

Some of them come out right, and are to be answered like any other.
"""

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from faults import request_tables as odd

LARGE = 4 << 20  # who sends more is cut off, and may not hear why


def wrong(number: int) -> tuple[str, bytes, bool]:
    """How it was made, what is sent, and whether there must be an answer to it."""
    dice = Random(number)
    path, body = copy.deepcopy(dice.choice(odd.RIGHT))
    if number % 5 < 3:
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            change(body, dice)
        sent = posted(path, written(body))
        return "values", sent, len(sent) < LARGE
    if number % 5 == 3:
        return "bytes", posted(path, damaged(written(body), dice)), True
    name = dice.choice(list(WIRE))
    return f"wire, {name}", WIRE[name](path, written(body), dice), name not in UNANSWERED


# ---------------------------------------------------------------- values


def change(body: dict[str, Any], dice: Random) -> None:
    """One place in it is something else, is gone, or is called otherwise."""
    places = list(inside(body))
    if not places:
        return
    table, name = dice.choice(places)
    match dice.randrange(9):
        case 0:
            del table[name]
        case 1 if isinstance(table, dict):
            table[dice.choice(odd.NAMES)] = table.pop(name)
        case 2 if isinstance(table, dict):
            table[dice.choice(odd.NAMES)] = copy.deepcopy(dice.choice(odd.ODD))
        case 3:
            table[name] = dice.choice(([table[name]], {"a": table[name]}, [table[name]] * 40, str(table[name])))
        case _:
            table[name] = copy.deepcopy(dice.choice(odd.ODD))


def inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a value: the table or list that has it, and its name there."""
    for name in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, name
        yield from inside(value[name])


def written(body: Any) -> bytes:
    """As Python writes it: with NaN, and with halves of characters."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------- bytes


def damaged(body: bytes, dice: Random) -> bytes:
    """Some bytes are others, more, or fewer."""
    start, end = sorted(dice.randrange(len(body) + 1) for _ in range(2))
    match dice.randrange(8):
        case 0:
            return body[:start] + dice.randbytes(1) + body[start + 1 :]
        case 1:
            return body[:start] + body[end:]
        case 2:
            return body[:end] + body[start:]
        case 3:
            return body[:start]
        case 4:
            return body[:start] + dice.choice(odd.SPLINTERS) + body[start:]
        case 5:
            return b"{" + body[1:-1] + b", " + body[1:]  # all names twice
        case 6:
            return body.replace(b": ", b": " + dice.choice(odd.DEEP) * dice.choice((60, 70, 900, 99_999)), 1)
    mark = b"\xef\xbb\xbf"
    return dice.choice((body.decode().encode("utf-16"), mark + body, b"", b"null", b"[]", dice.randbytes(99)))


# ---------------------------------------------------------------- the wire


def posted(
    path: str, body: bytes, *more: bytes, line: bytes = b"", host: bytes = b"Host: localhost",
    kind: bytes = b"Content-Type: application/json", length: object = None,
) -> bytes:  # fmt: skip
    """A whole request, of which any part may be another."""
    size = f"Content-Length: {len(body) if length is None else length}".encode()
    heads = (line or f"POST {path} HTTP/1.1".encode(), host, kind, size, b"Connection: close", *more)
    return b"\r\n".join([*filter(None, heads), b"", body])


def in_pieces(path: str, body: bytes, dice: Random, *more: bytes) -> bytes:
    """The body chunk by chunk."""
    cuts = sorted({0, *(dice.randrange(len(body)) for _ in range(3)), len(body)})
    pieces = [body[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]
    inner = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = posted(path, b"", b"Transfer-Encoding: chunked", *more).replace(b"Content-Length: 0\r\n", b"")
    return head + inner


def cut_off(path: str, body: bytes, dice: Random) -> bytes:
    whole = posted(path, body)
    return whole[: dice.randrange(1, len(whole))]


def in_words(method: bytes, path: bytes, version: bytes = b" HTTP/1.1") -> bytes:
    return method + b" " + path + version


WIRE: dict[str, Callable[[str, bytes, Random], bytes]] = {
    "method": lambda path, body, dice: posted(path, body, line=in_words(dice.choice(odd.METHODS), path.encode())),
    "path": lambda path, body, dice: posted(
        path, body, line=in_words(dice.choice((b"GET", b"POST")), dice.choice(odd.PATHS))),
    "version": lambda path, body, dice: posted(
        path, body, line=in_words(b"POST", path.encode(), dice.choice(odd.VERSIONS))),
    "header": lambda path, body, dice: posted(path, body, dice.choice(odd.HEADERS)),
    "host": lambda path, body, dice: posted(path, body, host=dice.choice(odd.HOSTS)),
    "kind": lambda path, body, dice: posted(path, body, kind=dice.choice(odd.KINDS)),
    "length": lambda path, body, dice: posted(path, body, length=dice.choice(odd.LENGTHS)),
    "less than its length": lambda path, body, dice: posted(path, body, length=len(body) + dice.choice((1, 99, 9999))),
    "more than its length": lambda path, body, dice: posted(path, body, length=dice.randrange(len(body))),
    "pieces": in_pieces,
    "wrong pieces": lambda path, body, dice: in_pieces(path, body, dice).replace(
        b"\r\n0\r\n", dice.choice(odd.PIECES)),
    "pieces and a length": lambda path, body, dice: in_pieces(path, body, dice, b"Content-Length: 5"),
    "cut off": cut_off,
    "three at once": lambda path, body, dice: posted(path, body).replace(b"close", b"keep-alive") * 2 + posted(
        path, body),
    "other": lambda path, body, dice: dice.choice((dice.randbytes(200), *odd.OTHERS)),
}  # fmt: skip
# What is no request, or may become one when more of it comes.
UNANSWERED = {"version", "header", "length", "less than its length", "wrong pieces", "pieces and a length", "cut off",
              "other"}  # fmt: skip
