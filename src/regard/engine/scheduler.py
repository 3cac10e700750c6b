"""A step of the engine: whoever was cancelled leaves, whoever waits takes a free slot, prompts are read
a piece further, and every text says a token.

    waiting ── admit ──► reading ── read ──► running ── speak ──► tell ── the last? ──► release
                            ▲  │                 ▲                  │
                            └──┘ not all yet     └──────────────────┘ not the last

What goes wrong in one request, while its prompt is read, its token chosen or told, ends that one.
"""

from collections import deque
from dataclasses import replace

from torch import Tensor

from regard import config
from regard.generate.filters import BROKEN, NOTHING
from regard.generate.nursery import Nursery, Reading
from regard.generate.picks import Pick, picks
from regard.generate.queueing import Line, Ticket, Told, sentence
from regard.generate.session import DAMAGED
from regard.generate.slots import Slots


class Steps:
    """Everything that is in a slot. Only the line is shared with other threads, which has a lock."""

    def __init__(self, line: Line, slots: Slots, nursery: Nursery, barred: Tensor, ends: frozenset[int]) -> None:
        self.line, self.slots, self.nursery, self.barred, self.ends = line, slots, nursery, barred, ends
        self.reading: deque[Reading] = deque()
        self.running: dict[int, Ticket] = {}  # by row
        self.rows: dict[Ticket, int] = {}  # of those reading and those running
        self.made, self.copied, self.count = 0, 0, 0
        self.broken = False  # the model itself has failed, and its slots are not touched again

    def __call__(self) -> None:
        self.sweep()
        self.admit()
        self.read()
        self.speak()
        self.count += 1

    def sweep(self) -> None:
        """Whoever was cancelled leaves."""
        for ticket in (*self.line.everybody(), *self.rows):
            if ticket.cancelled:
                self.tell(ticket, Told(None, reason="cancelled"))

    def admit(self) -> None:
        """The first of those who wait take the free slots."""
        while self.slots.free and (ticket := self.line.first()) is not None:
            row = self.rows[ticket] = self.slots.take()
            if ticket.most:
                self.reading.append(Reading(ticket, row))
            else:
                self.tell(ticket, Told(None, reason="length"))

    def read(self) -> None:
        """One piece of the prompt whose turn it is; short ones come in together, as long as they make one piece."""
        before, first = self.nursery.tokens, True
        while self.reading and (first or self.nursery.tokens - before + self.reading[0].next <= self.nursery.chunk):
            self.piece(self.reading.popleft())
            first = False

    def piece(self, one: Reading) -> None:
        known = one.ticket.cached
        try:
            logits = self.nursery.read(one)
        except Exception as problem:  # nobody else has a part in it
            self.nursery.forget(one)
            return self.lose(one.ticket, problem)
        self.copied += one.ticket.cached - known
        if logits is None:
            self.reading.append(one)
        else:
            self.slots.join(one.row, self.nursery.cache, logits)
            self.nursery.forget(one)
            self.running[one.row] = one.ticket

    def speak(self) -> None:
        """Every text says a token; those that go on are fed it."""
        if not self.running:
            return
        ids, said = picks(self.slots.logits, self.running, self.barred)
        for row, ticket in list(self.running.items()):
            self.utter(ticket, said[row])
        if self.running:
            self.slots.feed(ids)

    def utter(self, ticket: Ticket, pick: Pick) -> None:
        """What a row said, to whoever asked."""
        if pick.problem is not None or pick.id == BROKEN:
            return self.lose(ticket, pick.problem or config.RunError(DAMAGED))
        if pick.id == NOTHING:  # a rule has come to its end, and there is no token to say so
            return self.tell(ticket, Told(None, reason="end"))
        try:
            ticket.chooser.tell([pick.id])
        except Exception as problem:
            return self.lose(ticket, problem)
        self.made += 1
        ticket.made += 1
        full = "length" if ticket.made == ticket.most else None
        self.tell(ticket, Told(pick.id, pick.logprob, pick.others, "end" if pick.id in self.ends else full))

    def lose(self, ticket: Ticket, problem: Exception) -> None:
        ticket.problem = problem
        self.tell(ticket, Told(None, reason="error", problem=sentence(problem)))

    def tell(self, ticket: Ticket, told: Told) -> None:
        """Let it hear; and let it go if that was the last, or enough, or if it cannot hear."""
        try:
            enough = ticket.hear(told if told.reason is None else replace(told, cached=ticket.cached))
        except Exception as problem:
            ticket.problem, told = problem, Told(None, reason="error")
        else:
            told = Told(None, reason="stop") if enough and told.reason is None else told
        if told.reason is not None:
            self.release(ticket, told.reason)

    def release(self, ticket: Ticket, reason: str) -> None:
        """Free what it had, at once."""
        row = self.rows.pop(ticket, None)
        if row is not None and not self.broken:
            self.running.pop(row, None)
            for one in [one for one in self.reading if one.ticket is ticket]:
                self.reading.remove(one)
                self.nursery.forget(one)
            self.slots.leave(row)
        self.line.left(ticket)
        ticket.reason = reason
        ticket.over.set()

    def abandon(self, told: Told) -> None:
        """Nobody goes on."""
        for ticket in (*self.line.everybody(), *self.rows):
            self.tell(ticket, told)
