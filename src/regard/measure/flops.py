"""How much arithmetic a token costs: the matrix products, which are nearly all of it.

A product of (m, k) and (k, n) counts 2·m·k·n: a multiplication and an addition each. Looking counts the whole square
of queries and keys, as dense kernels are charged; one that skips the causal half does half of that part. Windows that
run in chunks count the chunks.
Norms, softmax and activations are left out: a few percent of the count.
"""

from dataclasses import dataclass

from torch import nn

from regard import config
from regard.core.layers import Attention, Block, Cross
from regard.core.masks import mask
from regard.core.model import Transformer, Trunk
from regard.efficient.local import LEAST, reach
from regard.measure.ghost import outline


@dataclass(frozen=True)
class Flops:
    """Floating-point operations for one token of a sequence, forward, by part."""

    parts: dict[str, float]

    @property
    def forward(self) -> float:
        return sum(self.parts.values())

    @property
    def training(self) -> float:
        """Forward, and backward twice that: each product has two gradients of its size."""
        return 3 * self.forward


def rule(parameters: int, tokens: int, training: bool = True) -> int:  #: S140
    """The rule of thumb: 6·N·D to train N parameters on D tokens, 2·N·D to read them (Kaplan et al. 2020)."""
    return (6 if training else 2) * parameters * tokens


def flops(model: Transformer | config.Transformer, context: int, source: int | None = None) -> Flops:
    """For sequences of `context` tokens; an encoder beside it reads `source` tokens, as many unless said."""
    shape = outline(model)
    read = 0 if shape.encoder is None else source or context
    parts = trunk_flops(shape.trunk, context, read)
    if shape.encoder is not None:
        parts["encoder"] = sum(trunk_flops(shape.encoder, read, 0).values())
    vectors = 1 if shape.c.head.kind == "pooled" else context  # a pooled head is asked once
    parts["head"] = maps(shape.head, vectors)
    return Flops({name: count / context for name, count in parts.items() if count})


def trunk_flops(trunk: Trunk, queries: int, memory: int) -> dict[str, float]:
    """One sequence through a trunk: maps cost by their weights, looking by the square of the tokens."""
    parts = {"embedding": 0.0 if trunk.project is None else maps(trunk.project, queries)}
    parts |= dict.fromkeys(("attention", "looking", "cross-attention", "feed-forward"), 0.0)
    for i in range(trunk.c.depth):
        block = trunk.blocks[i % len(trunk.blocks)]
        assert isinstance(block, Block)
        parts["attention"] += maps(block.attn, queries)
        keys = seen(trunk.c, i, queries)
        parts["looking"] += looking(block.attn, queries, keys) + shaw(trunk.c.position, block.attn, queries)
        parts["feed-forward"] += maps(block.mlp, queries)
        if block.cross is not None:
            parts["cross-attention"] += across(block.cross, queries, memory)
    return parts


def maps(part: nn.Module, tokens: int) -> float:
    """Every weight matrix of a part multiplies every token once."""
    return sum(2.0 * layer.weight.numel() * tokens for layer in part.modules() if isinstance(layer, nn.Linear))


def seen(c: config.Trunk, layer: int, tokens: int) -> int:
    """The keys that each query is charged for: all of them, or its chunks' where a window runs in chunks."""
    found = reach(mask(c.masks[layer % len(c.masks)])) if c.attention.kernel in ("auto", "local") else None
    if found is None or c.position.kind in ("alibi", "buckets", "shaw", "relative"):
        return tokens
    size = max(found[0], LEAST)
    return tokens if tokens < 4 * size else size * (2 if found[1] else 3)


def looking(attention: Attention, queries: int, keys: int) -> float:
    """Scores QK' and the mixing of values."""
    return 2.0 * attention.heads * queries * keys * (attention.width + attention.value_width)


def shaw(position: config.Position, attention: Attention, queries: int) -> float:
    """Shaw's table of q·a for each distance."""
    if not isinstance(position, config.Shaw):
        return 0.0
    return 2.0 * attention.heads * queries * attention.width * (2 * position.radius + 1)


def across(cross: Cross, queries: int, memory: int) -> float:
    """Keys and values are made of the memory, everything else of the asking tokens."""
    given = 0.0 if cross.kv is None else maps(cross.kv, memory) - maps(cross.kv, queries)
    return maps(cross, queries) + given + looking(cross, queries, memory)
