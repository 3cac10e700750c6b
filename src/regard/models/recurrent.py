"""Recurrent stack, a trunk of RNN layers or gated convolutions instead of transformer blocks.

    tokens ─► layer 0 ─► layer 1 ─► ... ─► Tokens        each layer has a state, which a cache holds

Front ends and heads are the same. Generation keeps one state per layer, for any length.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.cache import KVCache
from regard.core.hooks import HookContext
from regard.core.init import init_weights
from regard.core.layers import Norm
from regard.core.masks import mask
from regard.core.model import TRUNKS, mask_variants
from regard.core.positions import build_position
from regard.core.tokens import Tokens
from regard.inputs.cost import matrix_flops
from regard.models.mixers import reader_flops, refuse_packed_documents
from regard.models.rnn import CausalConv, RecurrentState, RNNLayer, StateEntry
from regard.models.seq2seq import BahdanauAttention, FixedContext


class GatedConv(nn.Module):
    """Gated convolution: x + a·sigmoid(b), with a and b from a convolution of norm(x) (Dauphin et al. 2017)."""

    def __init__(self, c: config.RecurrentStack, layer: int) -> None:
        super().__init__()
        self.norm = Norm(c.norm, c.dim)
        self.window = CausalConv(c.dim, 2 * c.dim, c.kernel_size, c.dilation**layer, c.mask == "full")

    def fresh(self, batch: int, like: Tensor) -> RecurrentState:
        return self.window.fresh(batch, like)

    def forward(
        self, x: Tensor, real: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        found, state = self.window(self.norm(x), real, state)
        return x + F.glu(found, -1), state


class RecurrentStack(nn.Module):
    """A stack of recurrent or convolution layers, with the interface of a trunk."""

    def __init__(self, c: config.RecurrentStack, init: str = "xavier") -> None:
        super().__init__()
        self.c, self.incoming = c, c.embed_dim or c.dim
        self.position = build_position(c.position, c.dim, 1, c.dim)
        self.masks = [mask_variants(mask(c.mask))]
        self.project = nn.Linear(self.incoming, c.dim) if self.incoming != c.dim else None
        self.fixed = FixedContext(c) if c.cross == "fixed" else None
        self.blocks = nn.ModuleList(build_recurrent_layer(c, i) for i in range(c.depth))
        self.final_norm = Norm(c.norm, c.dim) if c.cell == "cnn" else None
        init_weights(self, init, c)

    def forward(
        self, tokens: Tokens, *, memory: Tokens | None = None, layers: list[Tensor] | None = None,
        cache: KVCache | None = None, watch: HookContext | None = None, keep: list[Tensor] | None = None,
    ) -> Tokens:  # fmt: skip
        refuse_packed_documents(tokens.document)
        x, states = self.stem(tokens, memory), self.states(tokens, memory, cache)
        x = x if watch is None else watch.apply("embed", x)
        for i, block in enumerate(self.blocks):
            inner = None if watch is None else watch.at(str(i))
            if isinstance(block, BahdanauAttention):
                x, state = block(
                    x, tokens.is_real, states[i], memory, None if cache is None else cache.across[i], inner
                )
            else:
                x, state = block(x, tokens.is_real, states[i])
            if cache is not None:
                cache.entries[i].write(state)
            x = F.dropout(x, self.c.dropout, self.training)
            x = x if inner is None else inner.apply("state", x)
            if keep is not None:
                keep.append(x)
        if cache is not None:
            cache.fresh = False
        x = x if self.final_norm is None else self.final_norm(x)
        return tokens.with_vectors(x if watch is None else watch.apply("final", x))

    def stem(self, tokens: Tokens, memory: Tokens | None) -> Tensor:
        if tokens.x.shape[-1] != self.incoming:
            raise ConfigError(f"the stack takes vectors of width {self.incoming}, got {tokens.x.shape[-1]}")
        x = F.dropout(tokens.x, self.c.dropout, self.training)
        x = x if self.project is None else self.project(x)
        return x if self.fixed is None or memory is None else self.fixed.add_context(x, memory)

    def states(self, tokens: Tokens, memory: Tokens | None, cache: KVCache | None) -> list[RecurrentState | None]:
        """The initial state of each layer: from a cache, or at the start of a text."""
        if cache is not None:
            fresh = cache.fresh
            cache.begin_step(tokens)
            if not fresh or memory is None:
                return [entry.take() for entry in cache.entries]
        if self.fixed is not None and memory is not None:
            return self.fixed.states(memory)
        begun: list[RecurrentState | None] = []
        for block in self.blocks:
            known = block.begin_state(memory) if isinstance(block, BahdanauAttention) and memory is not None else None
            begun.append(known if known or cache is None else block.fresh(tokens.batch, tokens.x))  # type: ignore[operator]
        return begun

    def entries(self, batch: int, capacity: int, like: Tensor) -> list[Any]:
        """An empty state for each layer."""
        if self.c.mask != "causal":
            raise ConfigError("trunk.mask full: a cache needs a causal model; set it to causal")
        return [StateEntry(block.fresh(batch, like)) for block in self.blocks]  # type: ignore[operator]

    def flops(self, tokens: int, memory: int) -> Counter[str]:
        """FLOPs: every weight multiplies every token once; additive attention scores the whole source at every step."""
        found = Counter({"embedding": 0 if self.project is None else matrix_flops(self.project) * tokens})
        for block in self.blocks:
            if isinstance(block, BahdanauAttention):
                found += block.flops(tokens, memory)
            else:
                found["recurrent"] += reader_flops(block, tokens)
        found["cross-attention"] += 0 if self.fixed is None else matrix_flops(self.fixed)  # once for a source
        return found

    def addresses(self) -> Iterator[str]:
        yield "embed"
        for i, block in enumerate(self.blocks):
            yield from (f"{i}.cross.pattern",) if isinstance(block, BahdanauAttention) else ()
            yield f"{i}.state"
        yield "final"


def build_recurrent_layer(c: config.RecurrentStack, i: int) -> nn.Module:
    if c.cell == "cnn":
        return GatedConv(c, i)
    return (
        BahdanauAttention(c) if c.cross == "additive" and i == 0 else RNNLayer(c.cell, c.dim, c.dim, c.mask == "full")
    )


TRUNKS["recurrent"] = RecurrentStack
