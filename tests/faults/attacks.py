"""One list of named attacks on a server: requests that are cheap to send, and were dear to answer.

Each was found by somebody who tried; the letter and number is that of the finding. All are within HTTP, so that each
gets an answer, unless its client leaves.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, cycle

from faults.clients import Place, closed
from faults.wrong_requests import posted

ROUGHLY = 1 << 20  # bytes: as much as a body may have, less a little
WRITER, TALKER, READER, TRANSLATOR = "writer", "talker", "masked", "en-fr"


@dataclass(frozen=True)
class Attack:
    """A whole request. The client waits for the answer, or leaves after so many seconds; `drip` sends it slowly."""

    name: str
    sent: bytes
    leaves: float | None = None
    drip: int = 0  # bytes at a time, each to be looked at by itself

    @property
    def model(self) -> str:
        return next((name for name in (WRITER, TALKER, READER, TRANSLATOR) if b'"%s"' % name.encode() in self.sent), "")


def attacks(models: tuple[str, ...] = (WRITER, TALKER, READER, TRANSLATOR), room: int = 300) -> list[Attack]:
    """Those on some of the models; `room` is how many tokens of a text the writer reads."""
    every = [*bodies(), *wire(), *work(room)]
    return [each for each in every if each.model in ("", *models)]


def renamed(attack: Attack, name: str) -> Attack:
    """The same on one model, whichever it was meant for. A body in chunks stays as it is."""
    head, gap, body = attack.sent.partition(b"\r\n\r\n")
    length, changed = len(body), body
    for other in (WRITER, TALKER, READER):
        changed = changed.replace(b'"%s"' % other.encode(), b'"%s"' % name.encode())
    head = head.replace(b"Content-Length: %d" % length, b"Content-Length: %d" % len(changed))
    return replace(attack, sent=head + gap + changed)


def post(name: str, path: str, body: bytes | dict, **more: object) -> Attack:
    words = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return Attack(name, posted(path, words), **more)


def repeated(start: bytes, element: bytes, end: bytes = b"", size: int = ROUGHLY) -> bytes:
    """start element,element,... end of about this size."""
    many = (size - len(start) - len(end)) // (len(element) + 1)
    return start + b",".join([element] * many) + end


def names(start: bytes, value: bytes, end: bytes, size: int = ROUGHLY) -> bytes:
    """A table of as many different names."""
    room, parts = size - len(start) - len(end), list[bytes]()
    for number in count():
        parts.append(b'"%d":%s' % (number, value))
        if (room := room - len(parts[-1]) - 1) < 0:
            return start + b",".join(parts[:-1]) + end
    raise AssertionError


# ---------------------------------------------------------------- bodies


def bodies() -> Iterator[Attack]:
    complete, chat = "/v1/completions", "/v1/chat/completions"
    ask = b'{"model":"writer","max_tokens":2,"prompt":'
    hear = b'{"model":"talker","max_tokens":2,"messages":'
    yield post("A1 many names", complete, names(b"{", b"1", b"}"))
    yield post("A1 many names, one twice", complete, names(b"{", b"1", b',"7":1}'))
    yield post("A1 many names inside", complete, names(ask + b'"a","logit_bias":{', b"1", b"}}"))
    yield post(
        "A1 many names of a schema",
        complete,
        names(ask + b'"a","response_format":{"type":"json_schema","json_schema":{"schema":{', b"1", b"}}}}"),
    )
    yield post("A2 tables for prompts", complete, repeated(ask + b"[", b"{}", b"]}", 48_000))
    yield post("A2 more tables for prompts", complete, repeated(ask + b"[", b"{}", b"]}"))
    yield post("A2 lists for prompts", complete, repeated(ask + b"[", b"[]", b"]}"))
    yield post("A2 lists of ids for prompts", complete, repeated(ask + b"[", b"[1]", b"]}", 60_000))
    yield post("A2 nulls for prompts", complete, repeated(ask + b"[", b"null", b"]}"))
    yield post("A2 fractions for prompts", complete, repeated(ask + b"[", b"0.5", b"]}"))
    yield post("A2 texts for prompts", complete, repeated(ask + b"[", b'"a"', b"]}"))
    yield post("A2 ids of one prompt", complete, repeated(ask + b"[", b"3", b"]}"))
    yield post("A2 ids and a text at the end", complete, repeated(ask + b"[", b"3", b',"a"]}', 240_000))
    yield post("A2 tables for turns", chat, repeated(hear + b"[", b"{}", b"]}", 48_000))
    yield post("A2 wrong parts", chat, repeated(hear + b'[{"role":"user","content":[', b"{}", b"]}]}", 48_000))
    yield post("A2 nulls for parts", chat, repeated(hear + b'[{"role":"user","content":[', b"null", b"]}]}"))
    yield post("A2 many turns", chat, repeated(hear + b"[", b'{"role":"user","content":"a"}', b"]}", 400_000))
    yield post("A2 tables for texts", "/v1/embeddings", repeated(b'{"model":"masked","input":[', b"{}", b"]}", 48_000))
    yield post("A2 texts without end", "/v1/embeddings", repeated(b'{"model":"masked","input":[', b'"a"', b"]}"))
    yield post("A2 numbers for texts", "/v1/embeddings", repeated(b'{"model":"masked","input":[', b"1", b"]}"))
    yield post("A2 tables for ids", "/detokenize", repeated(b'{"model":"writer","ids":[', b"{}", b"]}", 48_000))
    yield post("A2 texts for ids", "/detokenize", repeated(b'{"model":"writer","ids":[', b'"a"', b"]}"))
    yield post("A2 ids without end", "/detokenize", repeated(b'{"model":"writer","ids":[', b"1", b"]}"))
    yield post("A2 texts for biases", complete, names(ask + b'"a","logit_bias":{', b'"x"', b"}}"))
    yield post("A2 some texts for biases", complete, names(ask + b'"a","logit_bias":{', b'"x"', b"}}", 9_000))
    yield post("A2 numbers for notes", chat, names(b'{"model":"talker","messages":[],"metadata":{', b"1", b"}}"))
    yield post("A2 stops", complete, repeated(ask + b'"a","stop":[', b'"x"', b"]}"))
    yield post("A2 tools", chat, repeated(b'{"model":"talker","messages":[],"tools":[', b"1", b"]}"))
    yield post("A2 a list for a body", complete, repeated(b"[", b"1", b"]"))
    yield post("deep", complete, ask + b"[" * 60_000 + b"]" * 60_000 + b"}")
    yield post("deep, and never closed", complete, (ask + b'{"a":' * 200_000)[:ROUGHLY])
    yield post("wide and deep", complete, repeated(ask + b"[", b"[[[[]]]]", b"]}"))
    yield post("quotes without end", complete, ask + b"[" * 20_000 + b'"' + b'\\"' * 480_000)
    yield post("half characters", complete, ask + b'"' + b"\\ud83d\\ude00" * 80_000 + b'\\ud800"}')
    yield post("brackets in a text", "/tokenize", b'{"model":"talker","text":"' + b"[{" * 500_000 + b'"}')
    yield post("digits", complete, repeated(ask + b"[", b"9" * 64, b"]}"))
    yield post("A2 four megabytes", complete, repeated(ask + b"[", b"{}", b"]}", 4 << 20))


# ---------------------------------------------------------------- the wire


def wire() -> Iterator[Attack]:
    head = posted("/tokenize", b"", b"Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    inner = b'{"model":"writer","text":"' + b"a" * 30_000 + b'"}'
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in inner) + b"0\r\n\r\n"
    yield Attack("A15 a byte a chunk", head + small)
    large = b"10000\r\n%s\r\n" % (b"a" * 65536)
    yield Attack("A15 chunks without end", head.replace(b"close", b"keep-alive") + large * 40, leaves=0.3)
    yield Attack("a hundred at once", (posted("/health", b"", line=b"GET /health HTTP/1.1").replace(
        b"close", b"keep-alive") * 100) + posted("/health", b"", line=b"GET /health HTTP/1.1"))  # fmt: skip
    yield Attack("A7 a body that never comes", posted("/tokenize", b"", length=90), leaves=0.3)
    yield Attack("byte by byte", posted("/tokenize", b'{"model":"writer","text":"a"}'), drip=9)


# ---------------------------------------------------------------- work


def work(room: int) -> Iterator[Attack]:
    complete, long = "/v1/completions", "a" * (room - 1)
    heavy = [".?" * 2000, "".join(f"(a{place})?.*" for place in range(400)), "(.?a?)" * 600,
             "|".join(f"[a-z]{{{place}}}x" for place in range(330)), "((((.{1,99}){1,99}){1,99}){1,99})",
             "(\\w+ ){1,500}" * 300]  # fmt: skip
    for place, regex in enumerate(heavy):
        yield post(f"A9 regex {place}", complete, {"model": TALKER, "prompt": "a", "max_tokens": 9, "regex": regex})
    yield post("A9 a regex for each of many", complete, {"model": TALKER, "prompt": "a", "max_tokens": 3, "n": 40,
                                                         "regex": "|".join(heavy[3].split("|")[:200])})  # fmt: skip
    for many in (300, 1500):
        wide = {"type": "object", "properties": {f"p{place}": {"type": "integer"} for place in range(many)}}
        yield post(f"A14 a schema of {many} optional properties", complete, formed(wide, n=8))
    several = [{"type": "object", "properties": {f"p{place}": {"type": "string", "pattern": f"[a-z]{{{place}}}"}}}
               for place in range(1500)]  # fmt: skip
    yield post("A9 a schema of many kinds", complete, formed({"anyOf": several}))
    for top in (0, 1, 20):
        yield post(
            f"A9 prompts read aloud, and {top} others",
            complete,
            {"model": WRITER, "prompt": [long] * 72, "max_tokens": 0, "echo": True, "logprobs": top},
        )
    yield post("A9 prompts read aloud to nobody", complete, {
        "model": WRITER, "prompt": [long] * 40, "max_tokens": 1, "echo": True, "logprobs": 1, "stream": True},
        leaves=0.2)  # fmt: skip
    yield post("A9 a long text in pieces", "/tokenize", {"model": TALKER, "text": "é☃" * 130_000})
    yield post("A9 a long text", "/tokenize", {"model": WRITER, "text": "a" * 260_000})
    yield post("A9 a text that is too long", "/tokenize", {"model": WRITER, "text": "a" * 1_000_000})
    yield post("A9 a long prompt", complete, {"model": TALKER, "prompt": "a" * 260_000, "max_tokens": 1})
    yield post(
        "A9 a long chat",
        "/v1/chat/completions",
        {"model": TALKER, "messages": [{"role": "user", "content": "the cat " * 60}] * 2000, "max_tokens": 1},
    )
    yield post("A9 as many ids as may be", "/detokenize", {"model": TALKER, "ids": [5] * (1 << 14)})
    yield post("A3 vectors", "/v1/embeddings", {"model": READER, "input": ["the cat sat " * 9] * 128})
    yield post("A3 vectors of the writer", "/v1/embeddings", {"model": WRITER, "input": [long] * 128})
    yield post("A3 vectors for nobody", "/v1/embeddings", {"model": WRITER, "input": [long] * 128}, leaves=0.1)
    yield post("A3 a long text for a vector", "/v1/embeddings", {"model": READER, "input": "the cat " * 32_000})
    yield post("blanks", "/v1/fill", {"model": READER, "input": ["[MASK] " * 25] * 128, "top_k": 100})
    yield post("A3 beams for nobody", "/v1/translate", {
        "model": TRANSLATOR, "input": ["A dog runs on the beach with two men and a red ball."] * 128, "num_beams": 32},
        leaves=0.5)  # fmt: skip
    yield post("A15 too many texts", complete, {"model": WRITER, "prompt": "a", "max_tokens": 300, "n": 128})
    yield post("texts for nobody", complete, {"model": WRITER, "prompt": "a", "max_tokens": 300, "n": 4}, leaves=0.1)


def formed(schema: dict, **more: object) -> dict:
    wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
    return {"model": TALKER, "prompt": "a", "max_tokens": 9, "response_format": wanted, **more}


# ---------------------------------------------------------------- one who attacks


async def attack(place: Place, one: Attack) -> bytes:
    """All that came back, until the server hung up or the client left."""
    reader, writer = await asyncio.open_connection(*place)
    heard = bytearray()
    try:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(one.leaves):
                for start in range(0, len(one.sent), one.drip or len(one.sent)):
                    writer.write(one.sent[start : start + (one.drip or len(one.sent))])
                    await writer.drain()
                while some := await reader.read(1 << 16):
                    heard += some
    finally:
        await closed(writer)
    return bytes(heard)


async def attack_all(place: Place, corpus: list[Attack]) -> None:
    """One after the other, until it is cancelled."""
    for one in cycle(corpus):
        await attack(place, one)
