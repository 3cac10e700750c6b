"""The server: uvicorn on a socket that is ours, and the way it closes.

    first signal     nobody comes in any more (503), texts have some seconds to end, then they are ended
    second signal    at once

`Server` runs an application in a thread, for tests and notebooks; `serve` runs it in the main thread until a signal.
"""

import asyncio
import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard import config
from regard.serve.house import House
from regard.serve.settings import Settings

LAST = 1.0  # seconds of a drain that are left to tell those whose texts were ended
HOUSE = 2.0  # seconds after it, to close connections and stop threads
BACKLOG = 1024  # connections that wait to be taken


class Config(uvicorn.Config):
    """uvicorn's, and how long a client may do nothing."""

    patience = 30.0


class Patient(H11Protocol):
    """HTTP with a client that may be slow: one that reads nothing, or ends no header, for so long is left.

    What was written for it waits in a buffer, so closing the connection would wait as well; it is cut.
    """

    clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.wind()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop()
        elif self.clock is None:
            self.wind()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.wind()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop()
        super().connection_lost(exc)

    def wind(self) -> None:
        self.stop()
        assert isinstance(self.config, Config)
        self.clock = self.loop.call_later(self.config.patience, self.transport.abort)

    def stop(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None


def listening(settings: Settings) -> socket.socket:
    """A socket at the address; refuses in a sentence where that cannot be."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(BACKLOG)
    except OSError as problem:
        found.close()
        taken = problem.errno == errno.EADDRINUSE
        why = "somebody listens there already" if taken else (problem.strerror or str(problem)).lower()
        raise config.ConfigError(f"port: {settings.host}:{settings.port}: {why}; choose an address of this machine and "
                                 "another port, or 0 for a free one") from None  # fmt: skip
    return found


def address(found: socket.socket) -> str:
    """Where a client finds a socket."""
    host, port = found.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Quiet(uvicorn.Server):
    """uvicorn that leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def quiet(app: FastAPI) -> Quiet:
    """The log is ours, so uvicorn says nothing; and it names neither itself nor its version."""
    house: House = app.state.house
    c = Config(
        app, http=Patient, ws="none", lifespan="on", loop="asyncio", log_config=None, access_log=False,
        log_level="critical", server_header=False, proxy_headers=False, timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    c.patience = house.settings.patience
    return Quiet(c)


async def drained(house: House, seconds: float) -> None:
    """Let nobody in, and give those inside some time; texts that are not over by then are ended."""
    house.closing, until = True, time.monotonic() + seconds
    while house.inside and time.monotonic() < until - LAST:
        await asyncio.sleep(0.02)
    house.hang_up()
    while house.inside and time.monotonic() < until:
        await asyncio.sleep(0.02)


# ---------------------------------------------------------------- in the main thread


def serve(app: FastAPI, found: socket.socket) -> int:
    """Serve until a signal; the number of that signal."""
    house: House = app.state.house
    server, caught = quiet(app), list[int]()

    async def run() -> None:
        loop, closing = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        def catch(number: int) -> None:
            caught.append(number)
            if len(caught) > 1:
                os._exit(128 + number)  # nothing here is to be saved, and a thread may be in the middle of a step
            closing.append(loop.create_task(close()))

        async def close() -> None:
            await drained(house, house.settings.drain - HOUSE)
            server.should_exit = True

        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, catch, each)
        await server.serve(sockets=[found])

    asyncio.run(run())
    return caught[0] if caught else 0


# ---------------------------------------------------------------- in a thread


class Server:
    """An application that listens while this is open, in a thread: `with Server(app) as server: server.url`.

    It listens on a free port of this machine, whatever the settings say.
    """

    def __init__(self, app: FastAPI) -> None:
        self.app, self.house = app, app.state.house
        self.socket = listening(Settings(port=0))
        self.url = address(self.socket)
        self.server = quiet(app)
        self.loop: Any = None
        self.thread = threading.Thread(target=self.run, name="regard-server", daemon=True)

    def run(self) -> None:
        with asyncio.Runner() as runner:
            self.loop = runner.get_loop()
            with suppress(asyncio.CancelledError):
                runner.run(self.server.serve(sockets=[self.socket]))

    def __enter__(self) -> Self:
        self.thread.start()
        while not self.server.started:
            if not self.thread.is_alive():
                raise config.RunError("the server did not start")
            time.sleep(0.01)
        return self

    def drain(self, seconds: float) -> None:
        """What the first signal does."""
        asyncio.run_coroutine_threadsafe(drained(self.house, seconds), self.loop).result()

    def __exit__(self, *raised: object) -> None:
        self.drain(0.0)
        self.server.should_exit = True
        self.thread.join()
