"""The older stacks, where a transformer has blocks: recurrent layers one above the other, or convolutions.

    tokens ─► layer 0 ─► layer 1 ─► ... ─► Tokens        each layer a reader with its state; a cache holds the states

Same tokens before it, same heads behind it. Generation keeps one state a layer, whatever the length.
"""

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.cache import Cache
from regard.core.init import initialise
from regard.core.layers import Norm
from regard.core.masks import mask
from regard.core.model import TRUNKS, variants
from regard.core.positions import position
from regard.core.tokens import Tokens
from regard.core.watch import Watch
from regard.recurrent.mixers import whole
from regard.recurrent.readers import Cell, State, Window
from regard.recurrent.sources import Additive, Fixed
from regard.recurrent.states import Held


class Gated(nn.Module):
    """One convolution of a stack: x + a·sigmoid(b), with a and b from a window over norm(x) (Dauphin et al. 2017)."""

    def __init__(self, c: config.Recurrent, layer: int) -> None:
        super().__init__()
        self.norm = Norm(c.norm, c.dim)
        self.window = Window(c.dim, 2 * c.dim, c.size, c.dilation**layer, c.mask == "everything")

    def fresh(self, batch: int, like: Tensor) -> State:
        return self.window.fresh(batch, like)

    def forward(self, x: Tensor, real: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        found, state = self.window(self.norm(x), real, state)
        return x + F.glu(found, -1), state


class Recurrent(nn.Module):
    """A stack of readers, called as a trunk is."""

    def __init__(self, c: config.Recurrent, init: str = "xavier") -> None:
        super().__init__()
        self.c, self.incoming = c, c.width or c.dim
        self.position = position(c.position, c.dim, 1, c.dim)
        self.masks = [variants(mask(c.mask))]
        self.project = nn.Linear(self.incoming, c.dim) if self.incoming != c.dim else None
        self.fixed = Fixed(c) if c.cross == "fixed" else None
        self.blocks = nn.ModuleList(layer(c, i) for i in range(c.depth))
        self.final_norm = Norm(c.norm, c.dim) if c.cell == "cnn" else None
        initialise(self, init, c)

    def forward(
        self, tokens: Tokens, *, memory: Tokens | None = None, layers: list[Tensor] | None = None,
        cache: Cache | None = None, watch: Watch | None = None, keep: list[Tensor] | None = None,
    ) -> Tokens:  # fmt: skip
        whole(tokens.document)
        x, states = self.stem(tokens, memory), self.states(tokens, memory, cache)
        x = x if watch is None else watch.see("embed", x)
        for i, block in enumerate(self.blocks):
            inner = None if watch is None else watch.at(str(i))
            if isinstance(block, Additive):
                x, state = block(x, tokens.real, states[i], memory, None if cache is None else cache.across[i], inner)
            else:
                x, state = block(x, tokens.real, states[i])
            if cache is not None:
                cache.entries[i].write(state)
            x = F.dropout(x, self.c.dropout, self.training)
            x = x if inner is None else inner.see("state", x)
            if keep is not None:
                keep.append(x)
        if cache is not None:
            cache.fresh = False
        x = x if self.final_norm is None else self.final_norm(x)
        return tokens.carrying(x if watch is None else watch.see("final", x))

    def stem(self, tokens: Tokens, memory: Tokens | None) -> Tensor:
        if tokens.x.shape[-1] != self.incoming:
            raise ValueError(f"the stack takes vectors of width {self.incoming}, got {tokens.x.shape[-1]}")
        x = F.dropout(tokens.x, self.c.dropout, self.training)
        x = x if self.project is None else self.project(x)
        return x if self.fixed is None or memory is None else self.fixed.told(x, memory)

    def states(self, tokens: Tokens, memory: Tokens | None, cache: Cache | None) -> list[State | None]:
        """Where each layer goes on from: what a cache holds, or how a text begins."""
        if cache is not None:
            fresh = cache.fresh
            cache.begin(tokens)
            if not fresh or memory is None:
                return [entry.take() for entry in cache.entries]
        if self.fixed is not None and memory is not None:
            return self.fixed.states(memory)
        begun: list[State | None] = []
        for block in self.blocks:
            known = block.first(memory) if isinstance(block, Additive) and memory is not None else None
            begun.append(known if known or cache is None else block.fresh(tokens.batch, tokens.x))  # type: ignore[operator]
        return begun

    def entries(self, batch: int, capacity: int, like: Tensor) -> list[Any]:
        """An empty state for each layer."""
        if self.c.mask != "causal":
            raise ValueError("trunk.mask everything: a cache is for who reads from left to right; set it to causal")
        return [Held(block.fresh(batch, like)) for block in self.blocks]  # type: ignore[operator]

    def addresses(self) -> Iterator[str]:
        yield "embed"
        for i, block in enumerate(self.blocks):
            yield from (f"{i}.cross.pattern",) if isinstance(block, Additive) else ()
            yield f"{i}.state"
        yield "final"


def layer(c: config.Recurrent, i: int) -> nn.Module:
    if c.cell == "cnn":
        return Gated(c, i)
    return Additive(c) if c.cross == "additive" and i == 0 else Cell(c.cell, c.dim, c.dim, c.mask == "everything")


TRUNKS["recurrent"] = Recurrent
