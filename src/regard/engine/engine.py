"""The engine: many texts at once, each saying what it would say alone, bit for bit.

    submit ──► waiting ──► nursery: a piece of one prompt a step ──► slots: a token of every text a step ──► hear
                                   ▲                                     │
                                   └── a free slot ◄── ended, cancelled ─┘

A step has always the same shape, empty slots included (slots.py); prompts are read alone, always in the same pieces
(nursery.py). So a request gives the same ids and the same log-probabilities beside any others, in any slot, whenever it
comes; the engine with one request is the reference. What goes wrong in one request ends that one (steps.py).
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from secrets import randbits
from types import TracebackType
from typing import Any, Self, TypeVar

from torch import Tensor

from regard import config
from regard.core.cache import Cache
from regard.generate.caches import size
from regard.generate.choosing import Chooser
from regard.generate.limits import barred, check_texts, least, window
from regard.generate.model import Transformer
from regard.generate.nursery import Nursery
from regard.generate.prefixes import Prefixes
from regard.generate.queueing import Asked, Busy, Hear, Line, Ticket, Told, sentence
from regard.generate.session import still
from regard.generate.slots import Slots
from regard.generate.steps import Steps
from regard.heads import last

__all__ = ["Asked", "Busy", "Engine", "Figures", "Hear", "Ticket", "Told"]

USUAL = 1024  # tokens of a slot, unless said
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How an engine is doing: who is `running` has a slot, its prompt read or not; `read` and `made` are tokens of
    prompts and of what came after them since the start, `copied` those of prompts that had been read before, in `hits`
    pieces; `bytes` are those of all caches and kept pieces."""

    running: int
    waiting: int
    slots: int
    made: int
    read: int
    copied: int
    hits: int
    steps: int
    bytes: int


class Engine:
    """Give it requests from any thread. `with Engine(model) as engine` runs it in a thread of its own; without one,
    call `step` until it says False.

    `slots` texts at once, each of `capacity` tokens with its prompt; prompts are read in pieces of `chunk` tokens; so
    many more may be `waiting`; pieces of prompts are kept in as much memory as `prefixes` slots have.
    """

    def __init__(
        self, model: Transformer, *, slots: int = 8, capacity: int | None = None, chunk: int = 128, waiting: int = 64,
        prefixes: int = 8,
    ) -> None:  # fmt: skip
        self.capacity = room(model, capacity)
        check(model, slots=slots, capacity=self.capacity, chunk=chunk, waiting=waiting, prefixes=prefixes)
        self.model, self.limits, self.modules = model, model.limits, list(model.modules())
        self.barred = barred(model, self.limits).to(next(model.parameters()).device)
        self.slots = Slots(model, lambda ids, cache: self.forward(ids, cache), slots, self.capacity)
        self.kept = Prefixes(prefixes * size(self.slots.cache) // self.slots.rows)
        self.nursery = Nursery(model, self.slots, chunk, self.kept)
        self.line = Line(slots, waiting)
        self.steps = Steps(self.line, self.slots, self.nursery, self.barred, self.limits.ends)
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.thread: threading.Thread | None = None
        self.closing, self.hurry = False, False
        self.problem: BaseException | None = None

    def forward(self, ids: Tensor, cache: Cache) -> Tensor:  # (B, N) -> (B, V)
        """The one place where the model is called: with (rows, 1) for a step, with (1, N) for a piece of a prompt."""
        return last(self.model, ids, cache=cache)

    # ---------------------------------------------------------------- from any thread

    def submit(self, asked: Asked, hear: Hear) -> Ticket:
        """`hear` is called in the engine's thread, for each token and at the end; True from it means enough.

        ConfigError, DataError or Busy where the request cannot be taken.
        """
        self.welcome()
        ids = checked(asked, self.model, self.capacity)
        seed = randbits(32) if asked.c.seed is None else asked.c.seed
        chooser = Chooser(asked.c, [ids], self.barred, ends=self.limits.ends, seed=seed, rules=[asked.rule],
                          begin=self.limits.begin)  # fmt: skip
        most = min(asked.c.new, self.capacity - len(ids) + 1)  # the last token is never read
        ticket = Ticket(asked=asked, hear=hear, chooser=chooser, seed=seed, ids=ids, most=most, ring=self.line.ring)
        with self.line.bell:
            self.check_open()
            self.line.join(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Its slot is free at the next step."""
        ticket.cancel()

    def do(self, work: Callable[[], T]) -> "Future[T]":
        """Other work with the model, in the engine's thread, between two steps: one such piece of work a step."""
        future: Future[T] = Future()
        with self.line.bell:
            self.check_open()
            self.line.check(len(self.jobs))
            self.jobs.append((future, work))
            self.line.ring()
        return future

    @property
    def figures(self) -> Figures:
        steps, held = self.steps, size(self.slots.cache) + size(self.nursery.cache) + self.kept.bytes
        return Figures(
            running=len(steps.rows), waiting=len(self.line.waiting), slots=self.slots.count, made=steps.made,
            read=self.nursery.tokens, copied=steps.copied, hits=self.kept.hits, steps=steps.count, bytes=held,
        )  # fmt: skip

    def welcome(self, count: int = 1) -> None:
        """Refuses where `count` requests cannot be taken now: RunError, or Busy."""
        self.check_open()
        self.line.check(self.line.here + count - 1)

    def check_open(self) -> None:
        if self.problem is not None:
            raise config.RunError(f"the engine has failed ({sentence(self.problem)}); make another one")
        if self.closing:
            raise config.RunError("the engine has stopped and takes no more requests; start it again")

    # ---------------------------------------------------------------- by hand

    def step(self) -> bool:
        """One piece of one prompt, and one token of every text; False when nothing is left to do."""
        if self.thread not in (None, threading.current_thread()):
            raise RuntimeError("the engine's own thread takes the steps; stop it first")
        try:
            self.work()
            with still(self.modules):
                self.steps()
        except BaseException as problem:
            self.problem, self.steps.broken = problem, True
            self.abandon(Told(None, reason="error", problem=sentence(problem)))
            raise
        return self.busy

    @property
    def busy(self) -> bool:
        return bool(self.line.here or self.jobs)

    def work(self) -> None:
        """One piece of other work."""
        if not self.jobs:
            return
        future, work = self.jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as problem:
            future.set_exception(problem)

    def abandon(self, told: Told) -> None:
        """Nothing that is here goes on."""
        while self.jobs:
            self.jobs.popleft()[0].cancel()
        self.steps.abandon(told)

    # ---------------------------------------------------------------- in a thread

    def start(self) -> Self:
        """In a thread of its own, which sleeps while there is nothing to do."""
        with self.line.bell:
            self.closing, self.hurry = False, False
            self.check_open()
            if self.thread is None:
                self.thread = threading.Thread(target=self.loop, name="regard-engine", daemon=True)
                self.thread.start()
        return self

    def stop(self, drain: float = 10.0) -> None:
        """Take nothing more, finish what is here in at most `drain` seconds, and end the rest."""
        self.closing = True
        self.line.ring()
        if (thread := self.thread) is not None:
            thread.join(drain)
            self.hurry = True
            thread.join()
            self.thread = None
        until = time.monotonic() + drain
        while self.problem is None and self.busy and time.monotonic() < until:
            self.step()
        self.abandon(Told(None, reason="cancelled"))

    def loop(self) -> None:
        try:
            while self.awaited():
                self.step()
        except Exception:  # all who were here have been told, and whoever comes is
            return
        self.abandon(Told(None, reason="cancelled"))

    def awaited(self) -> bool:
        """Sleep until there is something to do; False when it is time to go."""
        with self.line.bell:
            self.line.bell.wait_for(lambda: self.busy or self.closing)
            return self.busy and not self.hurry

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, problem: object, where: TracebackType | None) -> None:
        self.stop(10.0 if problem is None else 0.0)


def room(model: Transformer, capacity: int | None) -> int:
    """Tokens of a slot: as many as said, or as the model reads at once."""
    most = window(model, model.limits)
    if capacity is None:
        return min(USUAL, most or USUAL)
    if most is not None and capacity > most:
        raise config.ConfigError(f"capacity: {capacity} is more than the {most} tokens that this model reads at once")
    return capacity


def check(model: Transformer, **numbers: int) -> None:
    """Refuses what cannot be run."""
    few = least(model)  # the first tokens of a prefix mask come in one piece
    if model.encoder is not None:
        raise config.ConfigError("encoder: an engine goes on from texts, and this model translates them; use translate")
    for name, lowest in {"slots": 1, "capacity": few, "chunk": few, "waiting": 0, "prefixes": 0}.items():
        if numbers[name] < lowest:
            raise config.ConfigError(f"{name}: {numbers[name]} is too few; this model takes {lowest} or more")


def checked(asked: Asked, model: Transformer, capacity: int) -> tuple[int, ...]:
    """The prompt as it is read, of a request that can be done."""
    ids, c, vocab = tuple(id for id in asked.ids if id != model.c.embed.pad), asked.c, model.head.out_features
    check_texts(model, [ids])
    if len(ids) > capacity:
        raise config.DataError(f"prompt: {len(ids)} tokens, and texts of {capacity} are read here; shorten it, or give "
                               "the engine more capacity")  # fmt: skip
    if not 0 <= asked.logprobs <= vocab:  # type: ignore[operator]
        raise config.ConfigError(f"logprobs: {asked.logprobs} others are not between 0 and the {vocab} there are")
    if c.stop:
        raise config.ConfigError("stop: strings stop texts, and an engine speaks in ids; ask through Answers")
    if asked.rule is None and (c.regex or c.schema) is not None:
        raise config.ConfigError(f"{'schema' if c.regex is None else 'regex'}: an engine in ids needs its rule as well "
                                 "(rules.rule_of); or ask through Answers")  # fmt: skip
    return ids
