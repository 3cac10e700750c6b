"""Chunked prefill: one cache row in which prompts are read, a chunk at a time, before they move into a slot.

    kept chunks ── copy ──┐
                          ▼
    prompt ── chunk ──► prefill row ── copy ──► its slot, and the kept chunks
                          ▲                       │
                          └──── copied back ◄─────┘   when it is this prompt's turn again

All prompts are read in the same row and in the same chunks, the last one as short as it is: what is computed of a
prompt depends on nothing but the prompt. One chunk a step, or as many short prompts as make one: a long prompt holds
up no running text, and several take turns.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.core.model import Transformer
from regard.engine.prefix_cache import PrefixCache
from regard.engine.request_queue import RequestTicket
from regard.engine.slots import CacheSlots, clear_row, row_states, row_tensors


@dataclass(eq=False)
class PrefillTask:
    """A prompt of which `read` tokens are in the slot of its row; its states wait here while others have their turn."""

    ticket: RequestTicket
    row: int
    read: int = 0
    states: list[Tensor] = field(default_factory=list)
    hooked: bool = False  # a hook may have changed what was computed of it

    @property
    def next(self) -> int:
        """Tokens that are left: more than a piece may wait for the next step."""
        return len(self.ticket.ids) - self.read


class ChunkedPrefill:
    def __init__(self, model: Transformer, slots: CacheSlots, chunk: int, kept: PrefixCache) -> None:
        self.slots, self.chunk, self.kept = slots, chunk, kept
        self.cache = model.cache(1, slots.capacity)
        self.blank = [state.clone() for state in row_states(self.cache, 0)]
        self.holds: PrefillTask | None = None
        self.tokens = 0  # read, not copied

    def read(self, one: PrefillTask) -> Tensor | None:  # (1, V)
        """One piece more, and the logits after the last."""
        self.reserve(one)
        one.hooked |= bool(self.slots.model.hooks)  # such pieces are of no use to others, nor theirs to it
        if not one.hooked:
            self.skip(one)
        ids = one.ticket.ids
        start, end = one.read, min(one.read + self.chunk, len(ids))
        given = torch.tensor([ids[start:end]], device=self.cache.length.device)
        logits = self.slots.forward(given, self.cache)
        self.tokens += end - start
        if end - start == self.chunk and not one.hooked:
            self.kept.keep(ids[:end], row_tensors(self.cache, 0, start, end))
        self.transfer(one, start, end)
        return logits if end == len(ids) else None

    def reserve(self, one: PrefillTask) -> None:
        """Put into the prefill row what was read of this prompt."""
        if self.holds is one:
            return
        if self.holds is not None:
            self.holds.states = [state.clone() for state in row_states(self.cache, 0)]
            clear_row(self.cache, 0, self.holds.read)
        self.holds, there = one, row_tensors(self.slots.cache, one.row, 0, one.read)
        for mine, slot in zip(row_tensors(self.cache, 0, 0, one.read), there, strict=True):
            mine.copy_(slot)
        for mine, state in zip(row_states(self.cache, 0), one.states or self.blank, strict=True):
            mine.copy_(state)
        self.idle_row(one.read)

    def skip(self, one: PrefillTask) -> None:
        """Copy the pieces that were read before; at least one token is left, for what comes after it."""
        ids, start = one.ticket.ids, one.read
        while (end := one.read + self.chunk) < len(ids) and (found := self.kept.find(ids[:end])) is not None:
            for mine, part in zip(row_tensors(self.cache, 0, one.read, end), found, strict=True):
                mine.copy_(part)
            self.transfer(one, one.read, end)
        if one.read > start:
            one.ticket.cached += one.read - start
            self.idle_row(one.read)

    def transfer(self, one: PrefillTask, start: int, end: int) -> None:
        self.slots.copy(one.row, self.cache, start, end)
        one.read = end

    def idle_row(self, read: int) -> None:
        """The places of so many tokens, one after the other."""
        cache = self.cache
        cache.order[0, :read] = torch.arange(read, device=cache.order.device)
        cache.real[0, :read], cache.real[0, read:] = True, False
        cache.length.fill_(read)
        cache.next.fill_(read)
        cache.used, cache.fresh = read, read == 0

    def forget(self, one: PrefillTask) -> None:
        """This prompt is read, or given up, maybe in the middle of a piece."""
        if self.holds is one:
            clear_row(self.cache, 0, min(one.read + self.chunk, self.cache.capacity))
            self.holds = None
