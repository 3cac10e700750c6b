"""The queue of an engine: what is asked, what is told, and who comes next.

    submit ──► waiting ──► in a slot: its prompt is read, then it says a token a step ──► over, with a reason

First come, first served. At most so many are here at once; whoever comes then is told when to come again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from regard import config
from regard.generate.choosing import Chooser, Rule

SOON, LATE = 0.5, 60.0  # seconds: between these lies every guess of when to come again
MEMORY = 0.9  # how much of a guess is what was known before: about the last ten requests count


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt in ids, how to choose what comes after it, and how many of the likeliest others to tell of."""

    ids: tuple[int, ...]
    c: config.Sampling
    rule: Rule | None = None
    logprobs: int = 0


@dataclass(frozen=True)
class Told:
    """One token: its log-probability and the likeliest others, as the model has them before anything is filtered.

    The last one has a reason, `length`, `end`, `cancelled` or `error`, and no id where none was said.
    """

    id: int | None
    logprob: float = 0.0
    others: tuple[tuple[int, float], ...] = ()
    reason: str | None = None
    problem: str | None = None  # what went wrong, in a sentence
    cached: int = 0  # with the last: tokens of the prompt that had been read before


Hear = Callable[[Told], bool | None]  # True: enough, nothing more is to be told


class Busy(config.RunError):
    """As many requests as may be are here; in about so many `seconds` one will have left."""

    def __init__(self, most: int, seconds: float) -> None:
        super().__init__(f"{most} requests are here, and no more may be; come again in about {seconds:.0f} seconds")
        self.seconds = seconds


@dataclass(eq=False, kw_only=True)
class Ticket:
    """A request on its way. `cached` tokens of its prompt need not be read, since they were read for another."""

    asked: Asked
    hear: Hear
    chooser: Chooser
    seed: int
    ids: tuple[int, ...]  # the prompt
    most: int  # tokens that may be made
    ring: Callable[[], None]  # wakes the engine
    made: int = 0
    cached: int = 0
    cancelled: bool = False
    reason: str | None = None  # why it is over
    problem: Exception | None = None
    began: float | None = None  # when it got its slot
    over: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Its slot is free at the next step. From any thread, at any time, as often as you like."""
        self.cancelled = True
        self.ring()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it is over; False if that takes longer."""
        return self.over.wait(seconds)


class Line:
    """Who waits for a slot, and how long a request takes. Many threads meet here, so all of it is behind the `bell`."""

    def __init__(self, slots: int, waiting: int) -> None:
        self.bell = threading.Condition()
        self.slots, self.most = slots, slots + waiting
        self.waiting: deque[Ticket] = deque()
        self.here = 0  # waiting or in a slot
        self.usual = 1.0  # seconds in a slot, as it has been lately

    def join(self, ticket: Ticket) -> None:
        with self.bell:
            self.check(self.here)
            self.waiting.append(ticket)
            self.here += 1
            self.bell.notify()

    def check(self, count: int) -> None:
        """Refuses one more than may be here."""
        if count >= self.most:
            raise Busy(self.most, self.guess())

    def guess(self) -> float:
        """Seconds until the last of those who wait gets a slot, if all take as long as usual."""
        return min(max(self.usual * (len(self.waiting) + 1) / self.slots, SOON), LATE)

    def everybody(self) -> list[Ticket]:
        """Those who wait, in their order."""
        with self.bell:
            return list(self.waiting)

    def first(self) -> Ticket | None:
        """Who gets the next free slot."""
        with self.bell:
            if not self.waiting:
                return None
            ticket = self.waiting.popleft()
        ticket.began = time.monotonic()
        return ticket

    def left(self, ticket: Ticket) -> None:
        """One is over, and had a slot or not."""
        with self.bell:
            self.here -= 1
            if ticket.began is None:
                self.waiting.remove(ticket)
            else:
                self.usual = MEMORY * self.usual + (1 - MEMORY) * (time.monotonic() - ticket.began)

    def ring(self) -> None:
        """Wake whoever sleeps until something comes."""
        with self.bell:
            self.bell.notify()


def sentence(problem: BaseException) -> str:
    """What went wrong: our own errors are sentences already."""
    ours = isinstance(problem, config.ConfigError | config.DataError | config.RunError)
    return str(problem) if ours else f"{type(problem).__name__}: {problem}"
