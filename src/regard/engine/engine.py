"""Engine: continuous batching of requests from any thread, each with the output it would have alone, bit for bit.

    submit ──► waiting ──► prefill: a chunk of one prompt a step ──► slots: a token of every text a step ──► listener
                                   ▲                                     │
                                   └── a free slot ◄── ended, cancelled ─┘

A step always has the same shape, empty slots included (slots.py); prompts are read alone, always in the same chunks
(prefill.py). So a request gives the same ids and the same log-probabilities in any batch, in any slot, at any time; the
engine with one request is the reference. An error in one request ends that one (scheduler.py).
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
from regard.core.cache import KVCache
from regard.engine.prefill import ChunkedPrefill
from regard.engine.prefix_cache import PrefixCache
from regard.engine.request_queue import (
    GenerationRequest,
    RequestQueue,
    RequestTicket,
    TokenEvent,
    TokenListener,
    error_sentence,
)
from regard.engine.scheduler import Scheduler
from regard.engine.slots import CacheSlots
from regard.generation.cache_ops import cache_bytes
from regard.generation.limits import barred_tokens, check_prompts, context_window, min_prompt_tokens
from regard.generation.sampler import Sampler
from regard.generation.session import inference_mode
from regard.inference.model import Model
from regard.models.heads import last_token_logits

USUAL = 1024  # tokens of a slot, by default
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Engine statistics: `running` requests have a slot, with or without prefill; `read` and `made` are the prompt
    tokens prefilled and the tokens generated since the start, `copied` the prompt tokens taken from the prefix cache,
    in `hits` chunks; `bytes` is the size of all caches and kept chunks."""

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
    """Continuous batching engine. `with Engine(model) as engine` runs it in a thread of its own; otherwise call `step`
    until it returns False. Requests are accepted from any thread.

    At most `slots` requests run at once, each with up to `max_context` tokens, prompt included; prompts are prefilled
    in chunks of `chunk` tokens; `max_queue` more may wait; the prefix cache has the memory of `prefixes` slots.
    """

    def __init__(
        self, model: Model, *, slots: int = 8, max_context: int | None = None, chunk: int = 128, max_queue: int = 64,
        prefixes: int = 8,
    ) -> None:  # fmt: skip
        self.max_context = slot_capacity(model, max_context)
        check_engine(
            model, slots=slots, max_context=self.max_context, chunk=chunk, max_queue=max_queue, prefixes=prefixes
        )
        self.model, self.limits, self.modules = model, model.generation_limits, list(model.modules())
        self.barred = barred_tokens(model, self.limits).to(next(model.parameters()).device)
        self.slots = CacheSlots(model, lambda ids, cache: self.forward(ids, cache), slots, self.max_context)
        self.kept = PrefixCache(prefixes * cache_bytes(self.slots.cache) // self.slots.rows)
        self.nursery = ChunkedPrefill(model, self.slots, chunk, self.kept)
        self.line = RequestQueue(slots, max_queue)
        self.steps = Scheduler(self.line, self.slots, self.nursery, self.barred, self.limits.ends)
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.thread: threading.Thread | None = None
        self.closing, self.hurry = False, False
        self.problem: BaseException | None = None

    def forward(self, ids: Tensor, cache: KVCache) -> Tensor:  # (B, N) -> (B, V)
        """The only forward pass of the engine: ids (rows, 1) for a decode step, (1, N) for a prefill chunk."""
        return last_token_logits(self.model, ids, cache=cache)

    # ---------------------------------------------------------------- from any thread

    def submit(self, request: GenerationRequest, hear: TokenListener) -> RequestTicket:
        """Queue a request. `hear` is called in the engine's thread for each token and at the end; True from it stops
        the request.

        Raises ConfigError, DataError or QueueFull if the request cannot be accepted.
        """
        self.admit()
        ids = check_request(request, self.model, self.max_context)
        seed = randbits(32) if request.c.seed is None else request.c.seed
        chooser = Sampler(request.c, [ids], self.barred, ends=self.limits.ends, seed=seed, rules=[request.rule],
                          begin=self.limits.begin)  # fmt: skip
        most = min(request.c.max_new_tokens, self.max_context - len(ids) + 1)  # the last token is never fed
        ticket = RequestTicket(
            asked=request, on_token=hear, chooser=chooser, seed=seed, ids=ids, most=most, ring=self.line.ring
        )
        with self.line.condition:
            self.check_open()  # again, under the lock: the engine may have stopped meanwhile
            self.line.put(ticket)
        return ticket

    def cancel(self, ticket: RequestTicket) -> None:
        """Cancel a request: its slot is free at the next step."""
        ticket.cancel()

    def run_in_thread(self, work: Callable[[], T]) -> "Future[T]":
        """Run other work with the model in the engine's thread, between two steps: at most one such job a step."""
        future: Future[T] = Future()
        with self.line.condition:
            self.check_open()
            self.line.check(len(self.jobs))
            self.jobs.append((future, work))
            self.line.ring()
        return future

    @property
    def stats(self) -> EngineStats:
        steps, held = self.steps, cache_bytes(self.slots.cache) + cache_bytes(self.nursery.cache) + self.kept.bytes
        return EngineStats(
            running=len(steps.rows), waiting=len(self.line.waiting), slots=self.slots.count, made=steps.made,
            read=self.nursery.tokens, copied=steps.copied, hits=self.kept.hits, steps=steps.count, bytes=held,
        )  # fmt: skip

    def admit(self, count: int = 1) -> None:
        """Raise RunError or QueueFull if `count` requests cannot be accepted now."""
        self.check_open()
        self.line.check(self.line.here + count - 1)

    def check_open(self) -> None:
        if self.problem is not None:
            raise config.RunError(f"the engine has failed ({error_sentence(self.problem)}); create another one")
        if self.closing:
            raise config.RunError("the engine has stopped and takes no more requests; start it again")

    # ---------------------------------------------------------------- by hand

    def step(self) -> bool:
        """One prefill chunk, and one token of every running request; False when nothing is left to do."""
        if self.thread not in (None, threading.current_thread()):
            raise RuntimeError("the engine's own thread takes the steps; stop it first")
        try:
            self.work()
            with inference_mode(self.modules):
                self.steps()
        except BaseException as problem:
            self.problem, self.steps.broken = problem, True
            self.abandon(TokenEvent(None, reason="error", problem=error_sentence(problem)))
            raise
        return self.busy

    @property
    def busy(self) -> bool:
        return bool(self.line.here or self.jobs)

    def work(self) -> None:
        """Run one queued job."""
        if not self.jobs:
            return
        future, work = self.jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as problem:
            future.set_exception(problem)

    def abandon(self, event: TokenEvent) -> None:
        """Cancel all jobs and end all requests."""
        while self.jobs:
            self.jobs.popleft()[0].cancel()
        self.steps.abandon(event)

    # ---------------------------------------------------------------- in a thread

    def start(self) -> Self:
        """Start the engine's own thread, which sleeps while there is nothing to do."""
        with self.line.condition:
            self.closing, self.hurry = False, False
            self.check_open()
            if self.thread is None:
                self.thread = threading.Thread(target=self.loop, name="regard-engine", daemon=True)
                self.thread.start()
        return self

    def stop(self, drain: float = 10.0) -> None:
        """Stop: accept nothing more, finish the current requests within `drain` seconds, and cancel the rest."""
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
        self.abandon(TokenEvent(None, reason="cancelled"))

    def loop(self) -> None:
        try:
            while self.wait():
                self.step()
        except Exception:  # `step` has reported it to all requests, and `check_open` reports it to later ones
            return
        self.abandon(TokenEvent(None, reason="cancelled"))

    def wait(self) -> bool:
        """Sleep until there is something to do; False when the thread has to end."""
        with self.line.condition:
            self.line.condition.wait_for(lambda: self.busy or self.closing)
            return self.busy and not self.hurry

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, problem: object, where: TracebackType | None) -> None:
        self.stop(10.0 if problem is None else 0.0)


def slot_capacity(model: Model, capacity: int | None) -> int:
    """Tokens of a slot: the given number, or the context window up to USUAL."""
    most = context_window(model, model.generation_limits)
    if capacity is None:
        return min(USUAL, most or USUAL)
    if most is not None and capacity > most:
        raise config.ConfigError(
            f"max_context: {capacity} is more than the {most} tokens that this model reads at once"
        )
    return capacity


def check_engine(model: Model, **numbers: int) -> None:
    """Refuse encoder-decoders and sizes that are too small."""
    few = min_prompt_tokens(model)  # the tokens of a prefix mask need one chunk
    if model.encoder is not None:
        raise config.ConfigError("encoder: an engine runs decoders only, and this is an encoder-decoder; use translate")
    for name, lowest in {"slots": 1, "max_context": few, "chunk": few, "max_queue": 0, "prefixes": 0}.items():
        if numbers[name] < lowest:
            raise config.ConfigError(f"{name}: {numbers[name]} is too few; this model needs {lowest} or more")


def check_request(request: GenerationRequest, model: Model, capacity: int) -> tuple[int, ...]:
    """Check a request; returns its prompt ids without padding."""
    ids, c, vocab = tuple(id for id in request.ids if id != model.c.embed.pad_id), request.c, model.head.out_features
    check_prompts(model, [ids])
    if len(ids) > capacity:
        raise config.DataError(f"prompt: {len(ids)} tokens exceed max_context, {capacity}; shorten it, or give "
                               "the engine a larger max_context")  # fmt: skip
    if not 0 <= request.logprobs <= vocab:  # type: ignore[operator]
        raise config.ConfigError(f"logprobs: {request.logprobs} is not from 0 to the vocabulary size, {vocab}")
    if c.stop:
        raise config.ConfigError("stop: an Engine works on ids and has no stop strings; use TextEngine")
    if request.rule is None and (c.regex or c.json_schema) is not None:
        raise config.ConfigError(f"{'json_schema' if c.regex is None else 'regex'}: an Engine needs its rule as "
                                 "well (structured_output.build_constraint); or use TextEngine")  # fmt: skip
    return ids
