"""Scheduler: one engine step. Cancelled requests leave, waiting ones get a slot, prompts are read, tokens are sampled.

    waiting ── admit ──► reading ── read ──► running ── speak ──► tell ── the last? ──► release
                            ▲  │                 ▲                  │
                            └──┘ not all yet     └──────────────────┘ not the last

An error in one request, while its prompt is read or its token chosen or told, ends that request alone.

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
    """What was sampled for one row: an id, NOT_FINITE or NO_TOKEN; or the problem that came up."""

    id: int
    logprob: float
    others: tuple[tuple[int, float], ...]
    problem: Exception | None = None


def sample_rows(
    logits: Tensor, speaking: Mapping[int, RequestTicket], barred: Tensor
) -> tuple[Tensor, dict[int, SampledToken]]:
    """The ids (rows,) where the logits are, and the pick of every row that speaks."""
    ids, problems = choose_rows(logits, speaking, barred)
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    best = {row: logs[row].topk(one.asked.logprobs) for row, one in speaking.items() if one.asked.logprobs}
    exact = torch.float32 if logits.device.type == "mps" else torch.float64  # holds every id as well
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
    """The ids (rows,), and what went wrong in which row: the others go on."""
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
    """Everything that is in a slot. Only the line is shared with other threads, which has a lock."""

    def __init__(
        self, line: RequestQueue, slots: CacheSlots, nursery: ChunkedPrefill, barred: Tensor, ends: frozenset[int]
    ) -> None:
        self.line, self.slots, self.nursery, self.barred, self.ends = line, slots, nursery, barred, ends
        self.reading: deque[PrefillTask] = deque()
        self.running: dict[int, RequestTicket] = {}  # by row
        self.rows: dict[RequestTicket, int] = {}  # of those reading and those running
        self.made, self.copied, self.count = 0, 0, 0
        self.broken = False  # the model itself has failed, and its slots are not touched again

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
        """The first waiting requests take the free slots."""
        while self.slots.free and (ticket := self.line.pop()) is not None:
            row = self.rows[ticket] = self.slots.take()
            if ticket.most:
                self.reading.append(PrefillTask(ticket, row))
            else:
                self.notify(ticket, TokenEvent(None, reason="length"))

    def read(self) -> None:
        """One piece of the prompt whose turn it is; short ones come in together, as long as they make one piece."""
        before, first = self.nursery.tokens, True
        while self.reading and (first or self.nursery.tokens - before + self.reading[0].next <= self.nursery.chunk):
            self.piece(self.reading.popleft())
            first = False

    def piece(self, one: PrefillTask) -> None:
        known = one.ticket.cached
        try:
            logits = self.nursery.read(one)
        except Exception as problem:  # the other requests have no part in it
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
        """Every text says a token; those that go on are fed it."""
        if not self.running:
            return
        ids, said = sample_rows(self.slots.logits, self.running, self.barred)
        for row, ticket in list(self.running.items()):
            self.emit(ticket, said[row])
        if self.running:
            self.slots.feed(ids)

    def emit(self, ticket: RequestTicket, pick: SampledToken) -> None:
        """Tell the token of a row to its listener."""
        if pick.problem is not None or pick.id == NOT_FINITE:
            return self.fail(ticket, pick.problem or config.RunError(DAMAGED_LOGITS))
        if pick.id == NO_TOKEN:  # a rule has come to its end, and there is no token to say so
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
        """Let it hear; and let it go if that was the last, or enough, or if it cannot hear.

        With the last event the slot is free before it is heard: a client that has its answer is not counted as running.
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
        """Free what it had, at once."""
        self.free_slot(ticket)
        self.line.release(ticket)
        ticket.reason = reason
        ticket.finished.set()

    def free_slot(self, ticket: RequestTicket) -> None:
        """Give the row of a request back, if it has one still."""
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
