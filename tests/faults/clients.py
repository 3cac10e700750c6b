"""Clients that see when each byte came: sockets and asyncio alone, so that two cores carry many of them."""

import asyncio
import io
import json
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPResponse

Place = tuple[str, int]
PIECE = b"data: {"


@dataclass
class Heard:
    """All that came back, the moments at which some of a text came, and in how many pieces."""

    began: float = field(default_factory=time.perf_counter)
    raw: bytearray = field(default_factory=bytearray)
    moments: list[float] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    ended: float = 0.0

    def hear(self, some: bytes) -> None:
        self.raw += some
        self.ended = time.perf_counter()
        if many := some.count(PIECE):
            self.moments.append(self.ended)
            self.pieces.append(many)

    def makefile(self, *_: object) -> io.BytesIO:
        """What http.client reads, which takes this for a socket."""
        return io.BytesIO(self.raw)

    @cached_property
    def response(self) -> tuple[HTTPResponse, bytes]:
        """Read by http.client, which complains about whatever was cut off."""
        answer = HTTPResponse(self)  # type: ignore[arg-type]
        answer.begin()
        return answer, answer.read()

    @property
    def status(self) -> int:
        return self.response[0].status

    @property
    def body(self) -> bytes:
        return self.response[1]

    @property
    def events(self) -> list[dict]:
        """Those of a stream that came to its end."""
        *events, last, empty = self.body.split(b"\n\n")
        assert (last, empty) == (b"data: [DONE]", b""), self.body[-200:]
        return [json.loads(event.removeprefix(b"data: ")) for event in events]

    @property
    def text(self) -> str:
        """What was said, in pieces or at once."""
        streamed = self.response[0].headers["content-type"].startswith("text/event-stream")
        told = self.events if streamed else [json.loads(self.body)]
        assert not any("error" in each for each in told), told[-1]
        return "".join(each["choices"][0]["text"] for each in told)

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.moments[0] - self.began

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.moments, self.moments[1:], strict=False)]


def request(path: str, body: dict | None = None) -> bytes:
    """One whole request, after which the server hangs up."""
    words = b"" if body is None else json.dumps(body).encode()
    kind = b"" if body is None else b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(words)
    verb = b"GET" if body is None else b"POST"
    return b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n%s" % (verb, path.encode(), kind, words)


async def ask(place: Place, path: str, body: dict | None = None) -> Heard:
    heard = Heard()
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(request(path, body))
        while some := await reader.read(1 << 16):
            heard.hear(some)
    finally:
        await closed(writer)
    return heard


async def complete(place: Place, asked: dict, stream: bool = True) -> Heard:
    return await ask(place, "/v1/completions", asked | {"stream": stream})


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def metrics(place: Place) -> dict[str, float]:
    """The figures of the server, as in {'regard_running{model="scribe"}': 3.0}."""
    page = (await ask(place, "/metrics")).body.decode()
    lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def share(values: Iterable[float], part: float) -> float:
    """The value that this part of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
