"""How much arithmetic a model costs: the matrix products, which are nearly all of it.

A product of (m, k) and (k, n) counts 2·m·k·n: a multiplication and an addition each. Looking counts the whole square
of queries and keys, as dense kernels are charged; one that skips the causal half does half of that part. Windows that
run in chunks count the chunks, and windows of an image their cells, as they do on a CPU.
Norms, softmax and activations are left out: a few percent of the count.
"""

from collections import Counter
from dataclasses import dataclass

from torch import nn

from regard import config
from regard.core.layers import Attention, Block, Cross
from regard.core.masks import Cells, mask
from regard.core.model import Transformer, Trunk
from regard.efficient.local import LEAST, reach
from regard.heads import Both, Towers
from regard.inputs.image import Patches
from regard.inputs.stages import Merge, Stages
from regard.inputs.text import Embed
from regard.measure.ghost import Config, Model, outline
from regard.measure.lengths import unit
from regard.measure.older import mixed, stack_flops
from regard.recurrent.stack import Recurrent

Grid = tuple[int, int] | None  # rows and columns, for tokens that fill an image
# what is run again where it is recomputed
BLOCKS = ("attention", "looking", "mixing", "cross-attention", "feed-forward", "encoder")
PARTS = ("patches", "embedding", "attention", "looking", "mixing", "recurrent", "cross-attention", "feed-forward",
         "encoder", "head")  # fmt: skip


@dataclass(frozen=True)
class Flops:
    """Floating-point operations forward, by part, for one of what a sequence holds `tokens` of.

    An image or a pair of towers is one whole: there tokens is 1. With `recompute`, blocks run once more in training.
    """

    parts: dict[str, float]
    tokens: int = 1
    recompute: bool = False

    @property
    def forward(self) -> float:
        return sum(self.parts.values())

    @property
    def training(self) -> float:
        return sum(trained(part, count, self.recompute) for part, count in self.parts.items())

    @property
    def sequence(self) -> float:
        """Forward, for a whole sequence, image or pair."""
        return self.forward * self.tokens

    @property
    def training_sequence(self) -> float:
        return self.training * self.tokens


def trained(part: str, forward: float, recompute: bool = False) -> float:
    """Forward, and backward twice that: each product has two gradients of its size; of pixels nobody asks for one.

    Recomputed blocks run forward once more, at most: torch leaves out a last product that no gradient asks for.
    """
    return (2 if part == "patches" else 3 + (recompute and part in BLOCKS)) * forward


def rule(parameters: float, tokens: float, training: bool = True) -> float:  #: S140
    """The rule of thumb: 6·N·D to train N parameters on D tokens, 2·N·D to read them (Kaplan et al. 2020)."""
    return (6 if training else 2) * parameters * tokens


def flops(model: Model | Config, context: int, source: int | None = None, recompute: bool = False) -> Flops:
    """For sequences of `context` tokens; an encoder beside it reads `source` tokens, as many unless said."""
    shape = outline(model)
    count = context if unit(shape.c) == "token" else 1
    found = towers(shape, context) if isinstance(shape, Towers) else sequence(shape, context, source)
    return Flops({name: found[name] / count for name in PARTS if found[name]}, count, recompute)


def towers(shape: Towers, context: int) -> Counter[str]:
    """Each tower by itself; comparing their two vectors is a product as well."""
    found = Counter[str]()
    for tower in shape.towers:
        found.update(sequence(tower, context))
    width = max(getattr(tower.c.head, "out", None) or tower.c.trunk.dim for tower in shape.towers)
    return found + Counter({"head": 2 * width})


def sequence(shape: Transformer, context: int, source: int | None = None) -> Counter[str]:
    """One sequence, or one image, through a whole model."""
    found, tokens, grid = front(shape.embed, context)
    read = 0
    if shape.encoder is not None:
        before, read, their = front(shape.encoder_embed or shape.embed, source or context)
        found["patches"] += before.pop("patches", 0)
        found["encoder"] = sum((before + trunk_flops(shape.encoder, read, grid=their)).values())
    found += trunk_flops(shape.trunk, tokens, read, grid)
    return found + Counter({"head": head(shape.head, tokens)})


def front(embed: nn.Module, context: int) -> tuple[Counter[str], int, Grid]:
    """What a front end multiplies, and the tokens it makes: looking up a table is no product."""
    if isinstance(embed, Patches):
        side = embed.c.side
        return Counter({"patches": maps(embed, side * side)}), embed.c.count, None if embed.c.cls else (side, side)
    if not isinstance(embed, Stages):  # of what is no text every map multiplies every token
        return Counter({} if isinstance(embed, Embed) else {"embedding": maps(embed, context)}), context, None
    found, tokens, grid = front(embed.patches, context)
    for trunk, merge in zip(embed.trunks, embed.merges, strict=True):
        assert grid is not None and isinstance(merge, Merge)
        found += trunk_flops(trunk, tokens, grid=grid)
        tokens, grid = tokens // 4, (grid[0] // 2, grid[1] // 2)
        found["embedding"] += maps(merge, tokens)
    return found, tokens, grid


def head(part: nn.Module, tokens: int) -> int:
    """Logits are made for every token; one vector for the whole, once."""
    if isinstance(part, Both):
        return head(part.vocabulary, tokens) + head(part.pooled, tokens)
    return maps(part, tokens if isinstance(part, nn.Linear) else 1)


def trunk_flops(trunk: Trunk | Recurrent, queries: int, memory: int = 0, grid: Grid = None) -> Counter[str]:
    """One sequence through a trunk: maps cost by their weights, looking by the square of the tokens."""
    if isinstance(trunk, Recurrent):
        return stack_flops(trunk, queries, memory)
    found = Counter({"embedding": 0 if trunk.project is None else maps(trunk.project, queries)})
    for i in range(trunk.c.depth):
        block = trunk.blocks[i % len(trunk.blocks)]
        assert isinstance(block, Block)
        if isinstance(block.attn, Attention):
            found["attention"] += maps(block.attn, queries)
            found["looking"] += looking(block.attn, pairs(trunk.c, i, queries, grid))
            found["looking"] += shaw(trunk.c.position, block.attn, queries)
        else:
            found["mixing"] += mixed(block.attn, queries)
        found["feed-forward"] += maps(block.mlp, queries)
        if block.cross is not None:
            found["cross-attention"] += across(block.cross, queries, memory)
    return found


def maps(part: nn.Module, tokens: int) -> int:
    """Every weight matrix of a part multiplies every token once; a convolution over patches is such a matrix."""
    layers = (layer for layer in part.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    return sum(2 * layer.weight.numel() * tokens for layer in layers)


def pairs(c: config.Trunk, layer: int, tokens: int, grid: Grid = None) -> int:
    """The pairs of query and key that a head is charged for: all, or those of the chunks or cells it runs in."""
    seen, kernel = mask(c.masks[layer % len(c.masks)]), c.attention.kernel
    if isinstance(seen, Cells) and grid is not None and kernel in ("auto", "cells"):
        return cells(seen, grid)
    found = reach(seen) if kernel in ("auto", "local") else None
    if found is None or c.position.kind in ("alibi", "buckets", "shaw", "relative"):
        return tokens * tokens
    size = max(found[0], LEAST)
    chunks = -(-tokens // size)
    few = kernel == "auto" and tokens < 4 * size
    return tokens * tokens if few else chunks * size * size * (2 if found[1] else 3)


def cells(seen: Cells, grid: tuple[int, int]) -> int:
    """Windows of size x size places, those included that hang over the edge: each place looks at its window."""
    before = -seen.shift % seen.size
    windows = [-(-(side + before) // seen.size) for side in grid]
    return int(windows[0] * windows[1] * seen.size**4)


def looking(attention: Attention, seen: int) -> int:
    """Scores QK' and the mixing of values."""
    return 2 * attention.heads * seen * (attention.width + attention.value_width)


def shaw(position: config.Position, attention: Attention, queries: int) -> int:
    """Shaw's table of q·a for each distance."""
    if not isinstance(position, config.Shaw):
        return 0
    return 2 * attention.heads * queries * attention.width * (2 * position.radius + 1)


def across(cross: Cross, queries: int, memory: int) -> int:
    """Keys and values are made of the memory, everything else of the asking tokens."""
    given = 0 if cross.kv is None else maps(cross.kv, memory) - maps(cross.kv, queries)
    return maps(cross, queries) + given + looking(cross, queries * memory)
