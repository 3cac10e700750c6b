"""Segment memory (Transformer-XL: Dai et al. 2019): a text in segments, each attends to the last tokens of previous
ones.

    segment     ... │ a b c d │ e f g h │        e f g h are trained; a b c d are stored,
    seen by g     ──┴─────────┴─── ■             as keys and values without gradient

It is passed to a model like a cache, for every segment: `model(segment, cache=memory)`. Its size is fixed, older tokens
are dropped, whatever the mask. If the mask reaches no further than the memory, the result equals one long pass.
"""

from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.cache import KVCache, LayerKV
from regard.core.tokens import TokenLayout


class SegmentKV(LayerKV):
    """One layer's last keys and values, (B, G, length, d) each."""

    def append(self, k: Tensor, v: Tensor, slots: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """The stored keys and values followed by the new ones, which have gradients now and are stored without."""
        both = torch.cat([self.k.to(k.dtype), k], 2), torch.cat([self.v.to(v.dtype), v], 2)
        for table, whole in zip((self.k, self.v), both, strict=True):
            table.copy_(whole[:, :, -table.shape[2] :].detach())  #: S199
        return both


class SegmentMemory(KVCache):
    """Segment memory of a model: the last tokens of every row. Other states, such as a hidden state, are kept as they
    are."""

    def begin_step(self, tokens: TokenLayout) -> tuple[Tensor, TokenLayout]:
        """Place new tokens after the stored ones."""
        if tokens.document is not None or tokens.edges is not None:
            raise ConfigError("a memory holds one growing text a row: documents and edges cannot be packed into it")
        if tokens.batch != self.order.shape[0]:
            raise ConfigError(f"the memory has {self.order.shape[0]} rows and {tokens.batch} were given")
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.is_real is None else tokens.is_real
        keys = TokenLayout(order=torch.cat([self.order, tokens.order], 1), is_real=torch.cat([self.real, real], 1))
        self.order.copy_(keys.order[:, -self.capacity :])
        self.real.copy_(keys.is_real[:, -self.capacity :])  # type: ignore[index]
        self.length += tokens.count
        self.next += real.sum(-1)
        return tokens.order, keys  # no slots are needed: new tokens come last

    def truncate(self, length: Tensor | int) -> None:
        raise ConfigError("rewind: a segment memory does not keep earlier tokens; call forget() and start again")

    def detach(self) -> None:
        """Detach the stored states from this segment's graph; keys and values always are."""
        for entry in self.entries:
            if hasattr(entry, "detach"):
                entry.detach()

    def forget(self) -> None:
        """Reset every row."""
        for table in self.tables():
            table.zero_()
        self.fresh = True


def build_segment_memory(model: Any, batch: int, length: int) -> SegmentMemory:
    """An empty memory of the last `length` tokens in each of `batch` rows, for texts of any length."""
    if length < 1:
        raise ConfigError(f"length: a memory of {length} tokens holds none; give 1 or more")
    position = model.c.trunk.position.kind
    if position in ("learned", "onehot"):
        raise ConfigError(f"trunk.position {position!r} has a fixed length, and a text in segments has none; choose "
                          "rotary or another")  # fmt: skip
    like = next(model.parameters()).new_empty(0, dtype=model.autocast())
    entries = model.trunk.entries(batch, length, like)
    last = [SegmentKV(entry.k, entry.v) if isinstance(entry, LayerKV) else entry for entry in entries]
    return SegmentMemory(last, batch, length, model.encoder is not None, like)
