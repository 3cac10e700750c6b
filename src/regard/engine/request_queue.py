"""Requests, their tickets and token events, and the waiting queue of an engine.

    submit ──► waiting ──► in a slot: its prompt is read, then it gets a token a step ──► over, with a reason

First come, first served. The number of requests is limited; one too many is refused with a time to come again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from regard import config
from regard.generation.sampler import Sampler, TokenConstraint

SOON, LATE = 0.5, 60.0  # seconds: between these lies every guess of when to come again
MEMORY = 0.9  # how much of a guess is what was known before: about the last ten requests count


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A prompt in ids, how to choose what comes after it, and how many of the likeliest others to tell of."""

    ids: tuple[int, ...]
    c: config.SamplingParams
    rule: TokenConstraint | None = None
    logprobs: int = 0


@dataclass(frozen=True)
class TokenEvent:
    """One token: its log-probability and the likeliest others, as the model has them before anything is filtered.

    The last one has a reason, `length`, `eos`, `cancelled` or `error`, and no id where none was said.
    """

    id: int | None
    logprob: float = 0.0
    others: tuple[tuple[int, float], ...] = ()
    reason: str | None = None
    problem: str | None = None  # what went wrong, in a sentence
    cached: int = 0  # with the last: tokens of the prompt that had been read before


TokenListener = Callable[[TokenEvent], bool | None]  # True: enough, nothing more is to be told


class QueueFull(config.RunError):
    """As many requests as may be are here; in about so many `seconds` one will have left."""

    def __init__(self, most: int, seconds: float) -> None:
        super().__init__(f"{most} requests are here, and no more may be; come again in about {seconds:.0f} seconds")
        self.seconds = seconds


@dataclass(eq=False, kw_only=True)
class RequestTicket:
    """A request on its way. `cached` tokens of its prompt need not be read, since they were read for another."""

    asked: GenerationRequest
    on_token: TokenListener
    chooser: Sampler
    seed: int
    ids: tuple[int, ...]  # the prompt
    most: int  # tokens that may be made
    ring: Callable[[], None]  # wakes the engine
    generated: int = 0
    cached: int = 0
    cancelled: bool = False
    reason: str | None = None  # why it is over
    problem: Exception | None = None
    started: float | None = None  # when it got its slot
    finished: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Its slot is free at the next step. From any thread, at any time, as often as you like."""
        self.cancelled = True
        self.ring()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it is over; False if that takes longer."""
        return self.finished.wait(seconds)


class RequestQueue:
    """The requests that wait for a slot, and how long one takes. Many threads use it, behind one condition."""

    def __init__(self, slots: int, waiting: int) -> None:
        self.condition = threading.Condition()
        self.slots, self.most = slots, slots + waiting
        self.waiting: deque[RequestTicket] = deque()
        self.here = 0  # waiting or in a slot
        self.usual = 1.0  # seconds in a slot, as it has been lately

    def put(self, ticket: RequestTicket) -> None:
        with self.condition:
            self.check(self.here)
            self.waiting.append(ticket)
            self.here += 1
            self.condition.notify()

    def check(self, count: int) -> None:
        """Refuses one more than may be here."""
        if count >= self.most:
            raise QueueFull(self.most, self.guess())

    def guess(self) -> float:
        """Seconds until the last waiting request gets a slot, if all take as long as usual."""
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
        """One is over, and had a slot or not."""
        with self.condition:
            self.here -= 1
            if ticket.started is None:
                self.waiting.remove(ticket)
            else:
                self.usual = MEMORY * self.usual + (1 - MEMORY) * (time.monotonic() - ticket.started)

    def ring(self) -> None:
        """Wake the thread that sleeps until something comes."""
        with self.condition:
            self.condition.notify()


def error_sentence(problem: BaseException) -> str:
    """What went wrong: our own errors are sentences already."""
    ours = isinstance(problem, config.UserError)
    return str(problem) if ours else f"{type(problem).__name__}: {problem}"
