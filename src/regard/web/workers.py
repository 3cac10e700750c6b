"""Worker pool: a bounded thread pool for work that grows with a request and must not run on the event loop.

    loop ── run ──► queue, at most `waiting` ──► `count` threads ──► result, or a refusal after `seconds`

A full queue refuses at once (429), which bounds memory and delay. A thread cannot be stopped: a job after its deadline
is abandoned by its request and finishes alone, within the sizes checked before. The threads are daemons: the process
exits without waiting for them.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from regard.web.errors import ApiError

T = TypeVar("T")
Job = tuple[Future[Any], Callable[[], Any]]


def queue_full_error(most: int) -> ApiError:
    """The error of a full queue, which is no fault of the request."""
    return ApiError(429, f"the queue of {most} requests is full; retry in a "
                         "moment",
                   headers={"Retry-After": "1"})  # fmt: skip


def overloaded_error(seconds: float) -> ApiError:
    return ApiError(503, f"the server is busy, and this took longer than {seconds:g} s; retry later, or send less "
                   "at a time", code="overloaded", headers={"Retry-After": "5"})  # fmt: skip


class WorkerPool:
    """A pool of `count` threads; `late` builds the error of a job that takes longer than `seconds`."""

    def __init__(
        self, name: str, count: int, waiting: int, seconds: float, late: Callable[[float], ApiError] | None = None
    ) -> None:  # fmt: skip
        self.name, self.count, self.most, self.seconds = name, count, count + waiting, seconds
        self.late = late or overloaded_error
        self.queue: SimpleQueue[Job | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        self.pending = 0  # queued or running, also for clients that have left

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """Run a job and return its result. Refused when the queue is full, and after the deadline."""
        if self.pending >= self.most:
            raise queue_full_error(self.most)
        return await self.finish(work, *given)

    async def finish(self, work: Callable[..., T], *given: Any) -> T:
        """Run a job for the end of a request that was accepted before, which a full queue does not refuse."""
        future = self.submit(lambda: work(*given))
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            # only a queued job can be cancelled: then the queue was too long, and not the job
            begun = not future.cancel()
            raise (self.late(self.seconds) if begun else queue_full_error(self.most)) from None

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Queue a job from any thread; one that is cancelled before its turn is not run."""
        future: Future[T] = Future()
        with self.lock:
            self.pending += 1
            if len(self.threads) < min(self.count, self.pending):
                thread = threading.Thread(target=self.loop, name=f"regard {self.name}", daemon=True)
                self.threads.append(thread)
                thread.start()
        self.queue.put((future, work))
        return future

    def loop(self) -> None:
        while (job := self.queue.get()) is not None:
            future, work = job
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as problem:
                future.set_exception(problem)
            finally:
                with self.lock:
                    self.pending -= 1
                del job, future, work  # release them: the next job may come much later

    def stop(self) -> None:
        """Cancel queued jobs, and end the threads after their current one."""
        while not self.queue.empty():
            if (job := self.queue.get()) is not None:
                job[0].cancel()
        for _ in self.threads:
            self.queue.put(None)

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()
