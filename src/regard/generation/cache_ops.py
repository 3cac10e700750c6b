"""KV cache operations: copying rows into another cache, for beams or branches of a session; and its size in bytes."""

from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from regard.core.cache import KVCache, LayerKV
from regard.core.model import Transformer
from regard.core.tokens import Tokens


def expand_cache(model: Transformer, cache: KVCache, rows: Tensor, capacity: int, apart: bool = True) -> KVCache:
    """A cache of this capacity or larger whose row i is a copy of row rows[i], the memory of the encoder included.

    Where rows are not `apart`, they are consecutive beams of each text: the keys and values of the source stay one row
    for each text, since beams of a text share its source.
    """
    wide = model.cache(len(rows), capacity)
    for entry, narrow in zip(wide.entries, cache.entries, strict=True):
        for table, held in zip(entry.tables(), narrow.tables(), strict=True):
            (table[:, :, : cache.capacity] if isinstance(entry, LayerKV) else table).copy_(held[rows])
    wide.order[:, : cache.capacity], wide.real[:, : cache.capacity] = cache.order[rows], cache.real[rows]
    wide.length, wide.next, wide.used, wide.fresh = cache.length[rows], cache.next[rows], cache.used, cache.fresh
    wide.first, wide.reach = cache.first, cache.reach
    if cache.memory is not None:
        wide.set_memory(select_rows(cache.memory, rows), cache.layers and [layer[rows] for layer in cache.layers])
        for across, source in zip(wide.across, cache.across, strict=True):
            if source.k is not None and source.v is not None:
                across.k, across.v = (source.k[rows], source.v[rows]) if apart else (source.k, source.v)
    return wide


def select_rows(tokens: Tokens, rows: Tensor) -> Tokens:
    """Select rows of Tokens, in every tensor field."""
    every = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    tables: dict[str, Any] = {name: table[rows] for name, table in every.items() if isinstance(table, Tensor)}
    return replace(tokens, **tables)


def cache_bytes(cache: KVCache) -> int:
    """Bytes of all tensors of a cache."""
    return sum(table.nbytes for table in cache.tables())
