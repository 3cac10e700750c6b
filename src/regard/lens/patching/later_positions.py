"""Runs that begin at a later position: a causal model reads the tokens before a patch as it did without it.

tokens     0 … start-1  |  start … N-1
           keys and     |  run again, from the
           values kept  |  patched block on
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.cache import KVCache, LayerKV
from regard.core.hooks import looking
from regard.core.masks import Prefix
from regard.lens.attention_maps import evaluation_mode, record_trunk_inputs
from regard.lens.prompt import Prompt


class PrefixKV(LayerKV):
    """Keys and values (B, G, start, d) of one layer for the tokens before, which any number of rows begin with."""

    def append(self, k: Tensor, v: Tensor, slots: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        rows = len(k) // len(self.k)
        before = (table.to(k.dtype).repeat_interleave(rows, 0) for table in (self.k, self.v))
        return torch.cat([next(before), k], 2), torch.cat([next(before), v], 2)


@dataclass(frozen=True, eq=False)
class RecordedKeys:
    """Keys and values of every layer (B, G, N, d), of a run of N tokens."""

    layers: list[tuple[Tensor, Tensor]]

    def cache(self, model: Any, rows: int, start: int) -> KVCache:
        """A cache of the first `start` tokens, for `rows` runs of each row of the prompt."""
        batch, _, count, _ = self.layers[0][0].shape
        entries = [PrefixKV(k[:, :, :start], v[:, :, :start]) for k, v in self.layers]
        cache = KVCache(entries, batch * rows, count, False, next(model.parameters()))
        cache.order[:, :start] = torch.arange(start, device=cache.order.device)
        cache.real[:, :start] = True
        cache.length += start
        cache.next += start
        cache.used, cache.fresh = start, False
        return cache


def record_keys(model: Any, prompt: Prompt) -> RecordedKeys | None:
    """The keys and values of a prompt; None where the tokens after a position are not all that it changes, or where
    the model cannot go on from them."""
    if model.encoder is not None or prompt.given or prompt.first.is_floating_point() or prompt.first.dim() != 2:
        return None
    trunk, like = model.trunk, next(model.parameters()).new_empty(0)
    if any(isinstance(leaf, Prefix) for each in trunk.masks for leaf in each[False, False].leaves):
        return None
    try:
        entries = trunk.entries(1, prompt.first.shape[1], like)
    except ConfigError:  # a mask that looks ahead, or positions that a cache cannot have
        return None
    if not all(type(entry) is LayerKV for entry in entries):
        return None
    names = [(f"trunk.{i}.attn.k", f"trunk.{i}.attn.v") for i in range(trunk.c.depth)]
    wanted = [name for pair in names for name in pair]
    with evaluation_mode(model), record_trunk_inputs(model) as notes, looking(model, *wanted) as seen:
        prompt.run(model)
    tokens = notes["trunk"].tokens
    plain = tokens.is_plain and tokens.is_real is None and tokens.count == prompt.first.shape[1]
    return RecordedKeys([(seen[k], seen[v]) for k, v in names]) if plain else None
