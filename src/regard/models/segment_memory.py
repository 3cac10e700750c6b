"""A memory from segment to segment: a text of any length in pieces, each of which sees the last tokens of those before.

    segment     ... │ a b c d │ e f g h │        e f g h are trained; what they see of a b c d is remembered,
    seen by g     ──┴─────────┴─── ■             keys and values as they were then, without their gradient

It is given to a model as a cache is, and may be given for ever: `model(segment, cache=memory)`. Its size never changes,
older tokens are forgotten, whatever the mask (Transformer-XL: Dai et al. 2019). With a mask that reaches no further
than the memory, nothing is lost: then segments mean what one long pass means.
"""

from typing import Any

import torch
from torch import Tensor

from regard.core.cache import Cache, Entry
from regard.core.tokens import Places


class Remembered(Entry):
    """One layer's last keys and values, (B, G, length, d) each."""

    def append(self, k: Tensor, v: Tensor, slots: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """All that is remembered and then the new ones, which keep their gradient now and are remembered without it."""
        both = torch.cat([self.k.to(k.dtype), k], 2), torch.cat([self.v.to(v.dtype), v], 2)
        for table, whole in zip((self.k, self.v), both, strict=True):
            table.copy_(whole[:, :, -table.shape[2] :].detach())  #: S199
        return both


class Memory(Cache):
    """The last tokens of every row. What is not keys and values, such as a sum or a hidden state, stays as it is."""

    def begin(self, tokens: Places) -> tuple[Tensor, Places]:
        """New tokens after the remembered ones."""
        if tokens.document is not None or tokens.edges is not None:
            raise ValueError("a memory holds one growing text a row: documents and edges cannot be packed into it")
        if tokens.batch != self.order.shape[0]:
            raise ValueError(f"the memory has {self.order.shape[0]} rows and {tokens.batch} were given")
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.real is None else tokens.real
        keys = Places(order=torch.cat([self.order, tokens.order], 1), real=torch.cat([self.real, real], 1))
        self.order.copy_(keys.order[:, -self.capacity :])
        self.real.copy_(keys.real[:, -self.capacity :])  # type: ignore[index]
        self.length += tokens.count
        self.next += real.sum(-1)
        return tokens.order, keys  # a slot for each is not needed: they come last

    def rewind(self, length: Tensor | int) -> None:
        raise ValueError("rewind: a memory has forgotten what came before; forget() it whole and begin anew")

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


def memory(model: Any, batch: int, length: int) -> Memory:
    """Room for the last `length` tokens of each of `batch` rows of a text that goes on for ever."""
    if length < 1:
        raise ValueError(f"length: a memory of {length} tokens holds none; give 1 or more")
    position = model.c.trunk.position.kind
    if position in ("learned", "onehot"):
        raise ValueError(f"trunk.position {position!r} ends, and a text in segments does not; choose rotary or another")
    like = next(model.parameters()).new_empty(0, dtype=model.autocast())
    entries = model.trunk.entries(batch, length, like)
    last = [Remembered(entry.k, entry.v) if isinstance(entry, Entry) else entry for entry in entries]
    return Memory(last, batch, length, model.encoder is not None, like)
