"""KV cache rows copied into another cache, for beams or for texts that branch; and the size of a cache in bytes."""

from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from regard.core.cache import KVCache, LayerKV
from regard.core.model import Transformer
from regard.core.tokens import Tokens


def expand_cache(model: Transformer, cache: KVCache, rows: Tensor, capacity: int, apart: bool = True) -> KVCache:
    """A cache, as large or larger, whose row i remembers what row rows[i] of this one does, the source included.

    Rows that are not `apart` are so many beams of each text, one after the other: what was made of a source is theirs
    together, since they never part from it.
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
    """Some rows of Tokens, of every table that they carry."""
    every = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    tables: dict[str, Any] = {name: table[rows] for name, table in every.items() if isinstance(table, Tensor)}
    return replace(tokens, **tables)


def cache_bytes(cache: KVCache) -> int:
    """Bytes."""
    return sum(table.nbytes for table in cache.tables())
