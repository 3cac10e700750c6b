"""The KV cache: keys and values of all previous tokens, so that a decode step computes only those of new tokens.

The caller owns it. All memory is allocated at the start and written in place by index. No value that changes from step
to step is a Python number, so one compiled graph (and one CUDA graph) serves every step.
"""

from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.tokens import TokenLayout, Tokens


class LayerKV:
    """Keys and values of one layer: (B, G, capacity, d) each."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    def append(self, k: Tensor, v: Tensor, slots: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """Write new keys and values; returns those to attend to: only the new ones if the cache is fresh, else all."""
        at: Any = slice(None), slice(k.shape[2])
        if not fresh:
            at = torch.arange(len(slots), device=slots.device)[:, None], slots
        for table, new in ((self.k, k), (self.v, v)):  # detached: gradients do not flow into the past
            table.transpose(1, 2)[at] = new.detach().to(table.dtype).transpose(1, 2)
        return (k, v) if fresh else (self.k, self.v)

    def tables(self) -> list[Tensor]:
        return [self.k, self.v]


class CrossKV:
    """Keys and values of cross-attention: computed once for a source."""

    k: Tensor | None = None  # may have fewer rows than q: beams of one text share its source
    v: Tensor | None = None


class KVCache:
    """KV cache of a model: one entry for each layer, and the layout of the cached tokens. `length` (B,) tokens written,
    padding included; `next` (B,) order of the next token. A ring cache overwrites old tokens."""

    def __init__(self, entries: list[Any], batch: int, capacity: int, cross: bool, like: Tensor) -> None:
        """An empty cache. `entries`, one for each layer: keys and values, or the state of a kernel (with `tables`)."""

        def table(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=like.device)

        self.entries, self.across = entries, [CrossKV() for _ in entries] if cross else []
        self.memory: Tokens | None = None
        self.layers: list[Tensor] | None = None  # the encoder's layers, for layerwise cross-attention
        self.order, self.real = table(batch, capacity), table(batch, capacity, dtype=torch.bool)
        self.length, self.next = table(batch), table(batch)
        self.capacity, self.fresh, self.used = capacity, True, 0  # used: counted only outside compiled code
        self.first, self.reach = 0, 0  # length of a prefix; most tokens that a query sees, in a ring cache

    def begin_step(self, tokens: TokenLayout) -> tuple[Tensor, TokenLayout]:
        """Reserve slots for new tokens; returns the slots, and the layout of all keys that they may attend to."""
        if tokens.document is not None or tokens.edges is not None:
            raise ConfigError("a cache holds one growing sequence a row: documents and edges cannot be packed into it")
        if tokens.batch != self.order.shape[0]:
            raise ConfigError(f"the cache has {self.order.shape[0]} rows and {tokens.batch} were given")
        known = tokens.is_real is not None and tokens.is_real.device.type == "cpu" and not torch.compiler.is_compiling()
        count = int(tokens.is_real.sum(-1).min()) if known and tokens.is_real is not None else tokens.count
        if self.fresh and count < self.first:
            raise ConfigError(f"the first {self.first} tokens attend to each other (prefix): pass them in one call")
        if not torch.compiler.is_compiling():
            if tokens.count > self.capacity - (min(self.used, self.reach - 1) if self.reach else self.used):
                raise ConfigError(f"the cache holds {self.capacity} tokens and more were given; make it larger")
            self.used += tokens.count
        slots = self.length[:, None] + torch.arange(tokens.count, device=self.length.device)
        slots = slots % self.capacity if self.reach else slots
        real = torch.ones_like(slots, dtype=torch.bool) if tokens.is_real is None else tokens.is_real
        self.order.scatter_(1, slots, tokens.order)
        self.real.scatter_(1, slots, real)
        self.length += tokens.count
        self.next += real.sum(-1)
        return slots, tokens if self.fresh else TokenLayout(order=self.order, is_real=self.real)

    def set_memory(self, memory: Tokens, layers: list[Tensor] | None) -> None:
        """Store the encoder's output. Its tables are copied, since beam search reorders them."""
        self.across = [CrossKV() for _ in self.across]
        self.memory, self.layers = memory.with_vectors(memory.x), layers
        self.memory.is_real = None if memory.is_real is None else memory.is_real.clone()

    def reorder(self, rows: Tensor) -> None:
        """Set row i to a copy of row rows[i], as beam search needs."""
        for table in self.tables():
            table.copy_(table[rows])

    def copy_row(self, row: int, to: int) -> None:
        """Copy one row over another, to branch a text or to reuse a prefix that is already computed."""
        for table in self.tables():
            table[to].copy_(table[row])

    def truncate(self, length: Tensor | int) -> None:
        """Discard every slot from `length` on: one number, or one for each row (B,)."""
        if self.used > self.capacity or not all(isinstance(entry, LayerKV) for entry in self.entries):
            raise ConfigError("rewind: a recurrent state cannot be rolled back, nor can a ring cache; use a new one")
        back = torch.as_tensor(length, device=self.length.device).expand_as(self.length)
        if bool(((back < 0) | (back > self.length)).any()):
            raise ConfigError(f"rewind: {length} is not between 0 and the cached length, {self.length.tolist()}")
        if bool(((back < self.first) & (back > 0)).any()):
            raise ConfigError(f"rewind: the first {self.first} tokens are a bidirectional prefix: use 0 or more")
        self.length.copy_(back)
        self.real &= torch.arange(self.capacity, device=self.real.device) < self.length[:, None]
        self.next.copy_(self.real.sum(-1))
        self.used = int(self.length.max())
        self.fresh = self.used == 0

    def tables(self) -> list[Tensor]:
        made = [*(entry.tables() for entry in self.entries), *([across.k, across.v] for across in self.across)]
        own, source = [self.order, self.real, self.length, self.next], self.memory and self.memory.is_real
        return [table for table in (*own, *(side for each in made for side in each), source) if table is not None]
