"""Cache slots: texts of different lengths side by side in one KV cache, one row each.

    row 0   T h e   c a t   s a t ▮          running: its next token goes to ▮
    row 1   O n c e   u p ░                  in prefill: what the step writes at ░ is overwritten
    row 2   ░                                free: overwritten as well
            └────────── capacity ──────────┘

A step always computes all rows, free ones included, with one token each. So its shapes never change, and the results of
a row do not depend on the other rows.

They could still depend on the index of the row. A matrix product works on several rows at a time, and the few left at
the end may be rounded differently: with MKL some of 5, 6 or 7 rows differ, none of 4 or 8. And torch's fused attention
gives each thread a buffer of its own; MKL's order of summation depends on its address, so the rows of the second thread
differ from those of the first. Our own kernel (`regard.native`) has one order. So a trial step at the start finds a
number of rows for which all give the same bits.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from regard.core.cache import KVCache, LayerKV
from regard.core.model import Transformer
from regard.generation.cuda_graphs import DecodeGraph, can_capture, capture_decode
from regard.generation.session import inference_mode
from regard.native.library import load_library

Forward = Callable[[Tensor, KVCache], Tensor]  # ids (B, N) -> logits (B, V) after the last
TILES = (4, 8, 16)  # rows that matrix products take at a time


class CacheSlots:
    """The slots of an engine: the rows of one cache. `filled` counts the tokens of each; `running` rows decode a token
    a step."""

    def __init__(self, model: Transformer, forward: Forward, count: int, capacity: int) -> None:
        self.model, self.forward, self.count, self.capacity = model, forward, count, capacity
        self.cache, self.captured = uniform_cache(model, forward, count, capacity)
        self.rows, device = len(self.cache.length), self.cache.length.device
        self.filled, self.free, self.running = [0] * count, list(range(count)), set[int]()
        self.live = torch.zeros(self.rows, dtype=torch.bool, device=device)  # True for those that are running
        self.rest = torch.zeros(self.rows, dtype=torch.long, device=device)  # the slot that the other rows write to
        self.logits = torch.empty(0)  # (rows, V) after the newest token of each; `join` sets those of a new row

    def take(self) -> int:
        """Take the first free row: the same requests in the same order get the same rows."""
        self.free.sort()
        return self.free.pop(0)

    def copy(self, row: int, nursery: KVCache, start: int, end: int) -> None:
        """Copy a chunk of a prompt from the prefill row."""
        for mine, read in zip(
            row_tensors(self.cache, row, start, end), row_tensors(nursery, 0, start, end), strict=True
        ):
            mine.copy_(read)
        self.filled[row] = end
        self.rest[row] = end

    def join(self, row: int, nursery: KVCache, logits: Tensor) -> None:
        """Start decoding in a row whose prompt is complete. `logits` (1, V) are those after its last token."""
        cache = self.cache
        for mine, read in ((cache.order, nursery.order), (cache.real, nursery.real), (cache.length, nursery.length)):
            mine[row].copy_(read[0])
        if not len(self.logits):
            self.logits = logits.new_zeros(self.rows, logits.shape[-1])
        self.logits[row].copy_(logits[0])
        self.live[row] = True
        self.running.add(row)

    def feed(self, ids: Tensor) -> None:  # (rows,)
        """Feed one token to every live row; the others compute one as well, which is overwritten."""
        cache = self.cache
        cache.length.copy_(torch.where(self.live, cache.length, self.rest))
        cache.next.copy_(cache.length)  # no row has padding
        cache.used, cache.fresh = max(self.filled), False
        given = torch.where(self.live, ids, 0)[:, None]
        step = None if self.model.hooks else self.captured
        self.logits = self.forward(given, cache) if step is None else step.replay(given)
        for row in self.running:
            self.filled[row] += 1

    def leave(self, row: int) -> None:
        """Free a row and zero it: attention weights of zero would not hide a NaN from the next request."""
        clear_row(self.cache, row, min(self.filled[row] + 1, self.capacity))
        self.live[row], self.rest[row], self.filled[row] = False, 0, 0
        self.running.discard(row)
        self.free.append(row)


def row_tensors(cache: KVCache, row: int, start: int, end: int) -> list[Tensor]:
    """Views of a row's tensors for the tokens from `start` to `end`; a recurrent state is whole."""
    return [
        table[row, :, start:end] if isinstance(entry, LayerKV) else table[row]
        for entry in cache.entries
        for table in entry.tables()
    ]


def row_states(cache: KVCache, row: int) -> list[Tensor]:
    """Views of a row's recurrent states, which are not among keys and values."""
    return [table[row] for entry in cache.entries if not isinstance(entry, LayerKV) for table in entry.tables()]


def clear_row(cache: KVCache, row: int, end: int) -> None:
    """Zero the keys and values of a row up to `end`, and mark all its tokens as absent."""
    for table in (table for entry in cache.entries if isinstance(entry, LayerKV) for table in entry.tables()):
        table[row, :, :end].zero_()
    cache.real[row].zero_()
    cache.order[row].zero_()


# ---------------------------------------------------------------- how many rows


def uniform_cache(
    model: Transformer, forward: Forward, count: int, capacity: int
) -> tuple[KVCache, DecodeGraph | None]:
    """An empty cache of `count` rows or a few more, in which every row gives the same bits, with its captured decode
    step if it can be captured."""
    load_library()  # attention with the same order of summation in every thread; loaded now, it stays
    for rows in dict.fromkeys([count, *(-(-count // tile) * tile for tile in TILES)]):
        cache = model.cache(rows, capacity)
        with inference_mode(list(model.modules())):
            cache.fresh = False
            step = capture_decode(model, cache) if can_capture(model, cache) else None
            same = rows_agree(forward, cache, model.c.embed.vocab, step)
        if same:
            for row in range(rows):
                clear_row(cache, row, capacity)
            return cache, step
    warnings.warn(f"slots: with {count} rows this model's logits differ between rows in the last bits, and with more "
                  "as well; a completion may depend on its slot. One thread (OMP_NUM_THREADS=1) may help, or "
                  "MKL_CBWR=AUTO where MKL computes", stacklevel=4)  # fmt: skip
    return model.cache(count, capacity), None


def rows_agree(forward: Forward, cache: KVCache, vocab: int, step: DecodeGraph | None = None) -> bool:
    """Whether all rows give the same logits for the same token, after the same random keys and values of several
    lengths."""
    dice, every = torch.Generator().manual_seed(0), torch.arange(cache.capacity, device=cache.order.device)
    for table in (table for entry in cache.entries if isinstance(entry, LayerKV) for table in entry.tables()):
        table.copy_(torch.randn(table.shape[1:], generator=dice))
    cache.order.copy_(every)
    for length in {cache.capacity - 1, cache.capacity // 2, cache.capacity // 3}:
        cache.real.copy_(every < length)
        cache.length.fill_(length)
        cache.next.fill_(length)
        cache.used = length
        ids = torch.full_like(cache.length, length % vocab)[:, None]
        logits = forward(ids, cache) if step is None else step.replay(ids)
        logits = logits.nan_to_num()  # a NaN at the same place in all rows counts as equal
        if not torch.equal(logits, logits[:1].expand_as(logits)):
            return False
    return True
