"""Requests, their tickets and token events, and the waiting queue of an engine.

    submit ──► waiting ──► in a slot: prefill, then a token a step ──► finished, with a reason

First come, first served. The number of requests is limited; one too many is refused with a time to retry.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from regard import config
from regard.generation.sampler import Sampler, TokenConstraint

SOON, LATE = 0.5, 60.0  # seconds: bounds of the estimated time to retry
MEMORY = 0.9  # weight of the past in the moving average: about the last ten requests count


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A request: prompt ids, sampling params, a constraint, and the number of alternatives whose log-probabilities are
    reported."""

    ids: tuple[int, ...]
    c: config.SamplingParams
    rule: TokenConstraint | None = None
    logprobs: int = 0


@dataclass(frozen=True)
class TokenEvent:
    """One token: its log-probability and the most probable alternatives, by the model's logits before any processor.

    The last event has a reason, `length`, `eos`, `cancelled` or `error`, and no id where no token was generated.
    """

    id: int | None
    logprob: float = 0.0
    others: tuple[tuple[int, float], ...] = ()
    reason: str | None = None
    problem: str | None = None  # the error, in a sentence
    cached: int = 0  # in the last event: prompt tokens taken from the prefix cache


TokenListener = Callable[[TokenEvent], bool | None]  # True: stop this request


class QueueFull(config.RunError):
    """The queue is full; about `seconds` until a request has left."""

    def __init__(self, most: int, seconds: float) -> None:
        super().__init__(f"the queue is full ({most} requests); retry in about {seconds:.0f} seconds")
        self.seconds = seconds


@dataclass(eq=False, kw_only=True)
class RequestTicket:
    """An accepted request and its state. `cached` tokens of its prompt came from the prefix cache."""

    asked: GenerationRequest
    on_token: TokenListener
    chooser: Sampler
    seed: int
    ids: tuple[int, ...]  # the prompt
    most: int  # limit of new tokens
    ring: Callable[[], None]  # wakes the engine
    generated: int = 0
    cached: int = 0
    cancelled: bool = False
    reason: str | None = None  # the finish reason
    problem: Exception | None = None
    started: float | None = None  # when it got its slot
    finished: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Cancel: the slot is free at the next step. Callable from any thread, at any time, any number of times."""
        self.cancelled = True
        self.ring()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the request has finished; False after a timeout."""
        return self.finished.wait(seconds)


class RequestQueue:
    """The queue of waiting requests, and the mean time in a slot. One condition guards it for all threads."""

    def __init__(self, slots: int, waiting: int) -> None:
        self.condition = threading.Condition()
        self.slots, self.most = slots, slots + waiting
        self.waiting: deque[RequestTicket] = deque()
        self.here = 0  # waiting or in a slot
        self.usual = 1.0  # seconds in a slot, a moving average

    def put(self, ticket: RequestTicket) -> None:
        with self.condition:
            self.check(self.here)
            self.waiting.append(ticket)
            self.here += 1
            self.condition.notify()

    def check(self, count: int) -> None:
        """Refuse a request over the limit."""
        if count >= self.most:
            raise QueueFull(self.most, self.guess())

    def guess(self) -> float:
        """Estimated seconds until the last waiting request gets a slot, by the mean time in a slot."""
        return min(max(self.usual * (len(self.waiting) + 1) / self.slots, SOON), LATE)

    def waiting_tickets(self) -> list[RequestTicket]:
        """The waiting requests, in their order."""
        with self.condition:
            return list(self.waiting)

    def pop(self) -> RequestTicket | None:
        """The request that gets the next free slot."""
        with self.condition:
            if not self.waiting:
                return None
            ticket = self.waiting.popleft()
        ticket.started = time.monotonic()
        return ticket

    def release(self, ticket: RequestTicket) -> None:
        """Remove a finished request, which had a slot or was waiting."""
        with self.condition:
            self.here -= 1
            if ticket.started is None:
                self.waiting.remove(ticket)
            else:
                self.usual = MEMORY * self.usual + (1 - MEMORY) * (time.monotonic() - ticket.started)

    def ring(self) -> None:
        """Wake the engine's thread."""
        with self.condition:
            self.condition.notify()


def error_sentence(problem: BaseException) -> str:
    """An error in one sentence: the message of our own errors, with the type for others."""
    ours = isinstance(problem, config.UserError)
    return str(problem) if ours else f"{type(problem).__name__}: {problem}"
