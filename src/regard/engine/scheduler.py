"""Scheduler: one engine step. Cancelled requests are released, waiting ones get a slot, prompts are prefilled, tokens
are sampled.

    waiting ── admit ──► prefill ── read ──► running ── sample ──► emit ─ the last? ──► release
                            ▲  │                 ▲                  │
                            └──┘ not all yet     └──────────────────┘ not the last

An error in the prefill, the sampling or the listener of one request ends that request alone.

One token for every running row is sampled with one transfer from the device:

    logits (rows, V) ─┬─ greedy and nothing else: one argmax for all such rows ──┐
                      ├─ any other row: its own sampler ─────────────────────────┼──► ids ──► the next step
                      └─ log-softmax, before anything is filtered ── others ─────┘     └────► one tolist
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import config
from regard.engine.prefill import ChunkedPrefill, PrefillTask
from regard.engine.request_queue import RequestQueue, RequestTicket, TokenEvent, error_sentence
from regard.engine.slots import CacheSlots
from regard.generation.logits_process import NO_TOKEN, NOT_FINITE, greedy_tokens
from regard.generation.session import DAMAGED_LOGITS


@dataclass(frozen=True)
class SampledToken:
    """The sampled token of one row: an id, NOT_FINITE or NO_TOKEN; or the exception that was raised."""

    id: int
    logprob: float
    others: tuple[tuple[int, float], ...]
    problem: Exception | None = None


def sample_rows(
    logits: Tensor, speaking: Mapping[int, RequestTicket], barred: Tensor
) -> tuple[Tensor, dict[int, SampledToken]]:
    """The sampled ids (rows,), on the device of the logits, and the SampledToken of every running row."""
    ids, problems = choose_rows(logits, speaking, barred)
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    best = {row: logs[row].topk(one.asked.logprobs) for row, one in speaking.items() if one.asked.logprobs}
    exact = torch.float32 if logits.device.type == "mps" else torch.float64  # represents every id exactly
    said = [ids, logs.gather(1, ids.clamp(min=0)[:, None])[:, 0], *(side for pair in best.values() for side in pair)]
    numbers = torch.cat([side.to(exact) for side in said]).tolist()
    told, place = {}, 2 * len(ids)
    for row, one in speaking.items():
        count = one.asked.logprobs
        values, others = numbers[place : place + count], numbers[place + count : place + 2 * count]
        pairs = tuple((int(id), value) for id, value in zip(others, values, strict=True))
        told[row] = SampledToken(int(numbers[row]), numbers[len(ids) + row], pairs, problems.get(row))
        place += 2 * count
    return ids.clamp(min=0), told


def choose_rows(
    logits: Tensor, speaking: Mapping[int, RequestTicket], barred: Tensor
) -> tuple[Tensor, dict[int, Exception]]:
    """The sampled ids (rows,), and the exceptions by row: an error in one row does not stop the others."""
    ids, problems = greedy_tokens(logits, barred), dict[int, Exception]()
    for row, one in speaking.items():
        if one.chooser.is_greedy:
            continue
        try:
            ids[row] = one.chooser.choose(logits[row : row + 1])[0]
        except Exception as problem:
            problems[row] = problem
    return ids, problems


class Scheduler:
    """Scheduler of all requests in slots. Only the queue is shared with other threads, and it has a lock."""

    def __init__(
        self, line: RequestQueue, slots: CacheSlots, nursery: ChunkedPrefill, barred: Tensor, ends: frozenset[int]
    ) -> None:
        self.line, self.slots, self.nursery, self.barred, self.ends = line, slots, nursery, barred, ends
        self.reading: deque[PrefillTask] = deque()
        self.running: dict[int, RequestTicket] = {}  # by row
        self.rows: dict[RequestTicket, int] = {}  # of requests in prefill and running
        self.made, self.copied, self.count = 0, 0, 0
        self.broken = False  # the model itself has failed: its slots are not touched again

    def __call__(self) -> None:
        self.drop_cancelled()
        self.admit()
        self.read()
        self.decode()
        self.count += 1

    def drop_cancelled(self) -> None:
        """Release the requests that were cancelled."""
        for ticket in (*self.line.waiting_tickets(), *self.rows):
            if ticket.cancelled:
                self.notify(ticket, TokenEvent(None, reason="cancelled"))

    def admit(self) -> None:
        """Give the free slots to the first waiting requests."""
        while self.slots.free and (ticket := self.line.pop()) is not None:
            row = self.rows[ticket] = self.slots.take()
            if ticket.most:
                self.reading.append(PrefillTask(ticket, row))
            else:
                self.notify(ticket, TokenEvent(None, reason="length"))

    def read(self) -> None:
        """Prefill one chunk of the next prompt; several short prompts share a step if together they fit one chunk."""
        before, first = self.nursery.tokens, True
        while self.reading and (first or self.nursery.tokens - before + self.reading[0].next <= self.nursery.chunk):
            self.piece(self.reading.popleft())
            first = False

    def piece(self, one: PrefillTask) -> None:
        known = one.ticket.cached
        try:
            logits = self.nursery.read(one)
        except Exception as problem:  # the other requests are not affected
            self.nursery.forget(one)
            return self.fail(one.ticket, problem)
        self.copied += one.ticket.cached - known
        if logits is None:
            self.reading.append(one)
        else:
            self.slots.join(one.row, self.nursery.cache, logits)
            self.nursery.forget(one)
            self.running[one.row] = one.ticket

    def decode(self) -> None:
        """Sample a token for every running row; feed it to the rows that continue."""
        if not self.running:
            return
        ids, said = sample_rows(self.slots.logits, self.running, self.barred)
        # a copy: `emit` frees the rows of finished requests
        for row, ticket in list(self.running.items()):
            self.emit(ticket, said[row])
        if self.running:
            self.slots.feed(ids)

    def emit(self, ticket: RequestTicket, pick: SampledToken) -> None:
        """Report the sampled token of a row to its listener."""
        if pick.problem is not None or pick.id == NOT_FINITE:
            return self.fail(ticket, pick.problem or config.RunError(DAMAGED_LOGITS))
        if pick.id == NO_TOKEN:  # the constraint allows nothing more, and there is no end token
            return self.notify(ticket, TokenEvent(None, reason="eos"))
        try:
            ticket.chooser.update([pick.id])
        except Exception as problem:
            return self.fail(ticket, problem)
        self.made += 1
        ticket.generated += 1
        full = "length" if ticket.generated == ticket.most else None
        self.notify(ticket, TokenEvent(pick.id, pick.logprob, pick.others, "eos" if pick.id in self.ends else full))

    def fail(self, ticket: RequestTicket, problem: Exception) -> None:
        ticket.problem = problem
        self.notify(ticket, TokenEvent(None, reason="error", problem=error_sentence(problem)))

    def notify(self, ticket: RequestTicket, event: TokenEvent) -> None:
        """Call the listener with an event; release the request after the last event, a stop, or an error of the
        listener.

        The slot is freed before the last event: a client that has its response is not counted as running.
        """
        if event.reason is not None:
            self.free_slot(ticket)
        try:
            enough = ticket.on_token(event if event.reason is None else replace(event, cached=ticket.cached))
        except Exception as problem:
            ticket.problem, event = problem, TokenEvent(None, reason="error")
        else:
            event = TokenEvent(None, reason="stop") if enough and event.reason is None else event
        if event.reason is not None:
            self.release(ticket, event.reason)

    def release(self, ticket: RequestTicket, reason: str) -> None:
        """Free the slot of a request and mark it finished."""
        self.free_slot(ticket)
        self.line.release(ticket)
        ticket.reason = reason
        ticket.finished.set()

    def free_slot(self, ticket: RequestTicket) -> None:
        """Free the slot of a request, if it has one."""
        row = self.rows.pop(ticket, None)
        if row is not None and not self.broken:
            self.running.pop(row, None)
            for one in [one for one in self.reading if one.ticket is ticket]:
                self.reading.remove(one)
                self.nursery.forget(one)
            self.slots.leave(row)

    def abandon(self, event: TokenEvent) -> None:
        """End all requests."""
        for ticket in (*self.line.waiting_tickets(), *self.rows):
            self.notify(ticket, event)
