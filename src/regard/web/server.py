"""The HTTP server: uvicorn on our own socket, with timeouts, a connection limit, and draining at shutdown.

    first signal     new requests get 503, running ones have some seconds to end, then they are cut off
    second signal    exit at once

Signals are handled by a thread of their own, so that a busy event loop delays neither; the process exits at the
deadline, whatever its threads do.

`BackgroundServer` runs an application in a thread, for tests and notebooks; `run_server` runs it in the main thread
until a signal.
"""

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard import config
from regard.web import access_log
from regard.web.errors import ApiError, error_body, to_json_bytes
from regard.web.middleware import LINGER
from regard.web.model_pool import ModelPool
from regard.web.settings import ServerSettings

LAST = 1.0  # seconds at the end of a drain for the error responses of interrupted requests
SHUTDOWN_SECONDS = 2.0  # seconds after the drain, to close connections and stop threads
EXIT = 0.2  # seconds before the deadline, when the process is ended if it still runs
BACKLOG = 256  # listen backlog: connections accepted at once, before others get their turn
FILES, SPARE = 8192, 64  # wanted limit of open files, and how many of them are not connections
PART, PLAIN = 1 << 11, 1 << 16  # bytes parsed before other connections get their turn: they may be hundreds of
# The thread switch interval of Python, in seconds. The event loop and an engine request the GIL after every call of the
# system or of torch, and wait this long each time while another thread computes.
SWITCH = 0.0001
BUSY = to_json_bytes(
    error_body(ApiError(503, "the server has reached its limit of concurrent requests; retry soon", code="full"))
)
FULL = (b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(BUSY), BUSY))  # fmt: skip
ONCE = 60.0  # seconds in which a lack of file descriptors is logged once


class UvicornConfig(uvicorn.Config):
    """uvicorn's config, with the client timeout and the connection limit."""

    patience, most = 30.0, 1024


class TimeoutProtocol(H11Protocol):
    """HTTP protocol with timeouts: a client that reads nothing, or does not finish its headers, is disconnected.

    The connection is aborted, not closed, since closing would wait for the write buffer.

    At the connection limit, the connection that has waited longest for its client is closed, so that a client that
    sends a request can always connect. Received bytes are parsed in small parts, in turn with those of others.
    """

    clock: asyncio.TimerHandle | None = None
    turn: asyncio.Handle | None = None  # the scheduled parsing of the rest
    since = 0.0  # when it began to wait for the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since, self.rest = self.loop.time(), bytearray()
        self.wind()
        self.make_room()

    def make_room(self) -> None:
        assert isinstance(self.config, UvicornConfig)
        if len(self.connections) <= self.config.most:
            return
        others = [each for each in self.connections if isinstance(each, TimeoutProtocol) and each.is_waiting]
        oldest = min(others, key=lambda each: each.since, default=self)
        if oldest is self:  # all others have a request in progress
            self.transport.write(FULL)
            self.transport.close()
        else:
            oldest.transport.abort()
        self.connections.discard(oldest)

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for the client: for a request, or for the rest of its body."""
        return self.cycle is None or self.cycle.response_complete or self.conn.their_state is h11.SEND_BODY

    @property
    def is_plain(self) -> bool:
        """Whether the next bytes belong to a body of known length, which needs no parsing."""
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers or ())
        return self.conn.their_state is h11.SEND_BODY and not chunked

    def data_received(self, data: bytes) -> None:
        self.rest += data
        if self.turn is None:
            self.look()

    def look(self) -> None:
        """Parse the next part of the received bytes."""
        size = PLAIN if self.is_plain else PART
        self.turn, part = None, bytes(self.rest[:size])
        del self.rest[:size]
        super().data_received(part)
        if self.transport.is_closing():
            self.rest.clear()
        if self.rest:
            self.transport.pause_reading()
            self.turn = self.loop.call_soon(self.look)
        elif not self.flow.read_paused:
            self.transport.resume_reading()
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop()
        elif self.clock is None:
            self.wind()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread and not self.transport.is_closing():  # refused early: read the rest of the body for a short time
            self.wind(LINGER)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.wind()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop()
        if self.turn is not None:
            self.turn.cancel()
        super().connection_lost(exc)

    def wind(self, seconds: float | None = None) -> None:
        self.stop()
        assert isinstance(self.config, UvicornConfig)
        seconds = self.config.patience if seconds is None else seconds
        self.clock = self.loop.call_later(seconds, self.transport.abort)

    def stop(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None


def open_socket(settings: ServerSettings) -> socket.socket:
    """A listening socket at the configured address; ConfigError where that is impossible."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(BACKLOG)
    except OSError as problem:
        found.close()
        taken = problem.errno == errno.EADDRINUSE
        why = "another process listens there already" if taken else (problem.strerror or str(problem)).lower()
        raise config.ConfigError(f"port: {settings.host}:{settings.port}: {why}; choose an address of this machine and "
                                 "another port, or 0 for a free one") from None  # fmt: skip
    return found


def socket_url(found: socket.socket) -> str:
    """The URL of a socket."""
    host, port = found.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class QuietServer(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def build_server(app: FastAPI) -> QuietServer:
    """Build the uvicorn server: without a log of its own, without a server header."""
    house: ModelPool = app.state.house
    c = UvicornConfig(
        app, http=TimeoutProtocol, ws="none", lifespan="on", loop="asyncio", log_config=None, access_log=False,
        log_level="critical", server_header=False, proxy_headers=False, timeout_keep_alive=5,
        timeout_graceful_shutdown=1, backlog=BACKLOG,
    )  # fmt: skip
    c.patience, c.most = house.settings.patience, connection_limit(house.settings)
    return QuietServer(c)


# ---------------------------------------------------------------- files and threads of a process


def connection_limit(settings: ServerSettings) -> int:
    """The largest number of connections: the setting, or the limit of open files less those used otherwise.

    A connection over the limit is open for a moment, before another is closed for it; BACKLOG may be accepted at once.
    """
    return min(settings.connections, max(file_limit() - SPARE - BACKLOG, SPARE))


def file_limit() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return FILES
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Raise the soft limit of open files, which is often 1,024 where the hard limit is much higher."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def tune_process() -> None:
    """Process settings of a server: a shorter thread switch interval, and a garbage collector that does not scan the
    objects from before the first request again and again, which takes a tenth of a second each time."""
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log errors of the event loop in a line each: asyncio would print a traceback for every connection without a file
    descriptor, hundreds of megabytes a minute."""
    last = -ONCE

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last
        problem = context.get("exception")
        if isinstance(problem, OSError) and problem.errno in (errno.EMFILE, errno.ENFILE):
            if loop.time() - last >= ONCE:
                last = loop.time()
                access_log.log_event(problem="no file descriptor is left for a connection; raise the limit (ulimit -n)")
        elif isinstance(problem, BaseException) and not isinstance(problem, ConnectionError):
            access_log.log_event(**access_log.error_location(problem))

    loop.set_exception_handler(handle)


async def drain(house: ModelPool, seconds: float) -> None:
    """Refuse new requests and wait for those in progress; after the deadline they are cut off."""
    house.closing, until = True, time.monotonic() + seconds
    while house.inside and time.monotonic() < until - LAST:
        await asyncio.sleep(0.02)
    house.disconnect_all()
    while house.inside and time.monotonic() < until:
        await asyncio.sleep(0.02)


# ---------------------------------------------------------------- in the main thread


def run_server(app: FastAPI, found: socket.socket) -> int:
    """Serve until a signal; returns the number of that signal."""
    house: ModelPool = app.state.house
    raise_file_limit()
    server, caught = build_server(app), list[int]()
    tune_process()

    async def run() -> None:
        loop, closing = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        log_loop_errors(loop)

        async def close() -> None:
            await drain(house, house.settings.drain - SHUTDOWN_SECONDS)
            server.should_exit = True

        def catch(number: int) -> None:
            """Called in the signal thread, whatever the event loop does."""
            caught.append(number)
            if len(caught) > 1:
                os._exit(128 + number)  # there is nothing to save, and a thread may be in the middle of a step
            house.closing = True
            loop.call_soon_threadsafe(lambda: closing.append(loop.create_task(close())))
            clock = threading.Timer(max(house.settings.drain - EXIT, 0.0), os._exit, [128 + number])
            clock.daemon = True
            clock.start()

        with watch_signals(catch):
            await server.serve(sockets=[found])

    asyncio.run(run())
    if house.has_threads:  # a step is running, and would crash while Python tears down modules
        os._exit(128 + caught[0])
    return caught[0] if caught else 0


@contextmanager
def watch_signals(catch: Callable[[int], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM in a thread.

    Python calls a handler in the main thread, at its next bytecode instruction; but it writes the number of a signal to
    the wakeup file descriptor at once, where this thread reads it.
    """
    inner, outer = socket.socketpair()
    outer.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        with inner:
            while numbers := inner.recv(64):
                for number in numbers:
                    if number in before:
                        catch(number)

    threading.Thread(target=listen, name="regard signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        outer.close()  # the thread ends


# ---------------------------------------------------------------- in a thread


class BackgroundServer:
    """A server in a thread, for as long as the context is open: `with BackgroundServer(app) as server: server.url`.

    It listens on a free port of this machine, whatever the settings say.
    """

    def __init__(self, app: FastAPI) -> None:
        self.app, self.house = app, app.state.house
        self.socket = open_socket(ServerSettings(port=0))
        self.url = socket_url(self.socket)
        self.server = build_server(app)
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
        """Drain as after the first signal."""
        asyncio.run_coroutine_threadsafe(drain(self.house, seconds), self.loop).result()

    def __exit__(self, *raised: object) -> None:
        self.drain(0.0)
        self.server.should_exit = True
        self.thread.join()
