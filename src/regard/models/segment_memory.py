"""Segment memory (Transformer-XL: Dai et al. 2019): a text in segments, each sees the last tokens of those before.

    segment     ... │ a b c d │ e f g h │        e f g h are trained; what they see of a b c d is kept,
    seen by g     ──┴─────────┴─── ■             keys and values as they were then, without their gradient

It is given to a model as a cache is, as often as wanted: `model(segment, cache=memory)`. Its size never changes, older
tokens are dropped, whatever the mask. With a mask that reaches no further than the memory, nothing is lost: then
segments mean what one long pass means.
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
        """All that is remembered and then the new ones, which keep their gradient now and are remembered without it."""
        both = torch.cat([self.k.to(k.dtype), k], 2), torch.cat([self.v.to(v.dtype), v], 2)
        for table, whole in zip((self.k, self.v), both, strict=True):
            table.copy_(whole[:, :, -table.shape[2] :].detach())  #: S199
        return both


class SegmentMemory(KVCache):
    """The last tokens of every row. What is not keys and values, such as a sum or a hidden state, stays as it is."""

    def begin_step(self, tokens: TokenLayout) -> tuple[Tensor, TokenLayout]:
        """New tokens after the remembered ones."""
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
        return tokens.order, keys  # a slot for each is not needed: they come last

    def truncate(self, length: Tensor | int) -> None:
        raise ConfigError("rewind: a memory has forgotten what came before; forget() it whole and begin anew")

    def detach(self) -> None:
        """Cut what the next segment remembers off from this one's gradient; keys and values always are."""
        for entry in self.entries:
            if hasattr(entry, "detach"):
                entry.detach()

    def forget(self) -> None:
        """Begin anew, in every row."""
        for table in self.tables():
            table.zero_()
        self.fresh = True


def build_segment_memory(model: Any, batch: int, length: int) -> SegmentMemory:
    """Room for the last `length` tokens of each of `batch` rows of a text that goes on for ever."""
    if length < 1:
        raise ConfigError(f"length: a memory of {length} tokens holds none; give 1 or more")
    position = model.c.trunk.position.kind
    if position in ("learned", "onehot"):
        raise ConfigError(f"trunk.position {position!r} ends, and a text in segments does not; choose rotary or "
                          "another")  # fmt: skip
    like = next(model.parameters()).new_empty(0, dtype=model.autocast())
    entries = model.trunk.entries(batch, length, like)
    last = [SegmentKV(entry.k, entry.v) if isinstance(entry, LayerKV) else entry for entry in entries]
    return SegmentMemory(last, batch, length, model.encoder is not None, like)
