"""Stream bridge: passes completion chunks from an engine thread to the event loop and its client.

    engine's thread ── send ──► [chunk, chunk, ...] ── async for ──► client
                                 at most AHEAD

The engine never waits for a client: one that does not read is cut off when AHEAD chunks are queued. When a client
disconnects, its stream is closed, and its slots are free at the engine's next step.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

from regard.engine.text_engine import CompletionChunk
from regard.web import access_log
from regard.web.errors import ApiError, ClientDisconnected, to_api_error
from regard.web.model_pool import ModelPool, ServedModel

T = TypeVar("T")
AHEAD = 4096  # chunks of a request in the queue
CLOSING = ApiError(503, "the server is closing, and the text ends here", code="closing")
SLOW = ApiError(408, f"{AHEAD:,} chunks wait to be read; read faster, or ask for less", code="slow_reader")
CUT = ApiError(500, "the text was cut off", code="cancelled")


class LoopMailbox:
    """A queue from the engine threads to the event loop. The loop is woken once for all that is queued, since waking it
    costs a thread more than sampling a token."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.rung = loop, False
        self.bag: deque[tuple[CompletionStream, int, CompletionChunk]] = deque()

    def send(self, line: "CompletionStream", place: int, piece: CompletionChunk) -> None:
        self.bag.append((line, place, piece))
        if not self.rung:
            self.rung = True
            with suppress(RuntimeError):  # the event loop is closed
                self.loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        self.rung = False  # chunks from here on wake the loop again
        while self.bag:
            line, place, piece = self.bag.popleft()
            line.put(place, piece)


class CompletionStream:
    """The stream of `count` texts of one model for one client."""

    def __init__(self, house: ModelPool, resident: ServedModel, count: int, post: LoopMailbox) -> None:
        self.house, self.resident, self.count, self.post = house, resident, count, post
        self.ready = asyncio.Event()
        self.pieces: deque[tuple[int, CompletionChunk]] = deque()
        self.tickets: list[Any] = []
        self.ended, self.closed, self.problem = 0, False, ApiError(500, "")
        self.began = time.perf_counter()
        house.lines.add(self)

    # ---------------------------------------------------------------- in worker and engine threads

    def submit(self, prompts: list[list[int]], settings: list[dict[str, Any]]) -> None:
        """Submit all texts to the engine. It compiles schemas, so it runs in a worker thread.

        All texts are accepted, or none: QueueFull where there is no room for all.
        """
        answers = self.resident.answers
        try:
            answers.engine.admit(len(prompts))
            rule = answers.constraint(settings[0])
            for place, (prompt, each) in enumerate(zip(prompts, settings, strict=True)):
                self.tickets.append(answers.submit(prompt, self.listener(place), rule=rule, **each))
                if self.closed:
                    break
        except BaseException:
            self.closed = True
            raise
        finally:
            if self.closed:  # the client has disconnected, or one of the texts was refused
                self.cancel()

    def listener(self, place: int) -> Callable[[CompletionChunk], None]:
        """The listener for one text. It is called in the engine's thread."""
        last, name, figures = self.began, self.resident.name, self.house.figures
        waits = figures.first.labels(name)

        def on_chunk(piece: CompletionChunk) -> None:
            nonlocal last, waits
            now = time.perf_counter()
            waits.observe(now - last)
            last, waits = now, figures.gap.labels(name)
            self.post.send(self, place, piece)

        return on_chunk

    # ---------------------------------------------------------------- in the event loop

    def put(self, place: int, piece: CompletionChunk) -> None:
        if len(self.pieces) >= AHEAD:
            return self.fail(SLOW)
        self.pieces.append((place, piece))
        self.ready.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, CompletionChunk]]:
        """The index of a text and its next chunk, until all have ended."""
        while self.ended < self.count:
            while not self.pieces:
                if self.closed:
                    raise self.problem
                self.ready.clear()
                await self.ready.wait()
            place, piece = self.pieces.popleft()
            if piece.reason == "error":
                raise self.raise_error(place)
            if piece.reason == "cancelled":
                raise self.problem if self.closed else CUT
            self.ended += piece.reason is not None
            yield place, piece

    def raise_error(self, place: int) -> ApiError:
        """The error of a text: a mistake in the request, or a bug."""
        problem = self.tickets[place].problem
        try:
            return to_api_error(problem)
        except Exception as bug:
            access_log.log_event(model=self.resident.name, **access_log.error_location(bug))
            return ApiError(500, "this is a bug in regard; the server's log has its location", code="internal_error")

    def fail(self, problem: ApiError) -> None:
        """End the stream with this error, after the chunks in the queue."""
        self.problem, self.closed = problem, True
        self.cancel()
        self.ready.set()

    def disconnect(self) -> None:
        self.fail(CLOSING)

    def close(self) -> None:
        """Close the stream, when the client has everything or has disconnected."""
        self.house.lines.discard(self)
        self.closed = True
        if self.ended < self.count:
            self.cancel()
            self.house.figures.cancelled.labels(self.resident.name).inc(len(self.tickets) - self.ended)

    def cancel(self) -> None:
        for ticket in self.tickets:
            ticket.cancel()


# ---------------------------------------------------------------- clients that disconnect


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, which is cancelled when the client disconnects or the server closes."""
    house: ModelPool = request.app.state.house
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(request.receive))
    closed = asyncio.ensure_future(house.closed.wait())
    try:
        await asyncio.wait({task, left, closed}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected if left.done() else CLOSING
        return task.result()
    finally:
        for each in (task, left, closed):
            each.cancel()


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
