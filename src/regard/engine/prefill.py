"""Chunked prefill: one cache row in which prompts are read, a chunk at a time, before they move into a slot.

    kept chunks ── copy ──┐
                          ▼
    prompt ── chunk ──► prefill row ── copy ──► its slot, and the kept chunks
                          ▲                       │
                          └──── copied back ◄─────┘   when this prompt has its next turn

All prompts are prefilled in the same row and in the same chunks, the last one shorter: the keys and values of a prompt
depend on nothing but the prompt. One step prefills one chunk, or as many short prompts as make one: a long prompt
delays no running request, and several prompts take turns.
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
    """Prefill progress of one prompt: `read` tokens are in the slot of its row. Its recurrent states are saved here
    while other prompts use the prefill row."""

    ticket: RequestTicket
    row: int
    read: int = 0
    states: list[Tensor] = field(default_factory=list)
    hooked: bool = False  # a hook may have changed its keys and values

    @property
    def next(self) -> int:
        """Tokens of the prompt that are left: more than a chunk may wait for the next step."""
        return len(self.ticket.ids) - self.read


class ChunkedPrefill:
    """Chunked prefill of all prompts, in turns, through one cache row."""

    def __init__(self, model: Transformer, slots: CacheSlots, chunk: int, kept: PrefixCache) -> None:
        self.slots, self.chunk, self.kept = slots, chunk, kept
        self.cache = model.cache(1, slots.capacity)
        self.blank = [state.clone() for state in row_states(self.cache, 0)]
        self.holds: PrefillTask | None = None
        self.tokens = 0  # prefilled, not copied

    def read(self, one: PrefillTask) -> Tensor | None:  # (1, V)
        """Prefill one more chunk; returns the logits after the last one."""
        self.reserve(one)
        one.hooked |= bool(self.slots.model.hooks)  # such chunks are neither cached nor taken from the cache
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
        """Load the prefix of this prompt into the prefill row, and save the states of the previous one."""
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
        """Copy the chunks that are in the prefix cache; at least one token is left, for its logits."""
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
        """Set the bookkeeping of the row to `read` tokens, one after the other."""
        cache = self.cache
        cache.order[0, :read] = torch.arange(read, device=cache.order.device)
        cache.real[0, :read], cache.real[0, read:] = True, False
        cache.length.fill_(read)
        cache.next.fill_(read)
        cache.used, cache.fresh = read, read == 0

    def forget(self, one: PrefillTask) -> None:
        """Clear the row: this prompt is complete or was given up, perhaps in the middle of a chunk."""
        if self.holds is one:
            clear_row(self.cache, 0, min(one.read + self.chunk, self.cache.capacity))
            self.holds = None
