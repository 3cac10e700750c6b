"""How much arithmetic a model costs: the matrix products, which are nearly all of it.

A product of (m, k) and (k, n) counts 2·m·k·n: a multiplication and an addition each. Looking counts what its kernel
multiplies (looking.py): dense ones the whole square of queries and keys, though one that skips the causal half does
half of that part. Backward counts as twice forward; kernels that make their scores again there do a little more.
Norms, softmax and activations are left out: a few percent of the count.
"""

from collections import Counter
from dataclasses import dataclass

from torch import nn

from regard import config
from regard.core.layers import Attention, Block, Cross
from regard.core.masks import EVERYTHING
from regard.core.model import Transformer, Trunk
from regard.heads import Both, Each, Towers
from regard.inputs.series import Horizon
from regard.measure.fronts import front, maps
from regard.measure.ghost import Config, Model, outline
from regard.measure.lengths import unit
from regard.measure.looking import Field, Grid, field, looking
from regard.measure.older import mixed, stack_flops
from regard.recurrent.stack import Recurrent

# what is run again where it is recomputed
BLOCKS = ("attention", "looking", "mixing", "cross-attention", "feed-forward", "encoder")
PARTS = ("prepared", "patches", "input", "embedding", "attention", "looking", "mixing", "recurrent", "cross-attention",
         "feed-forward", "encoder", "head")  # fmt: skip
GIVEN = {"prepared": 1, "patches": 2, "input": 2}  # products of data alone, and of data and weights


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
    """Forward, and backward twice that: each product has two gradients of its size; of data nobody asks for one.

    Recomputed blocks run forward once more, at most: torch leaves out a last product that no gradient asks for.
    """
    return (GIVEN.get(part) or 3 + (recompute and part in BLOCKS)) * forward


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
    """One example, a text or whatever a front end makes tokens of, through a whole model."""
    seen = front(shape.embed, context, through)
    found, read = seen.parts, 0
    if shape.encoder is not None:
        before = front(shape.encoder_embed or shape.embed, source or context, through)
        found["patches"] += before.parts.pop("patches", 0)
        inside = before.parts + trunk_flops(shape.encoder, before.tokens, grid=before.grid)
        found["encoder"], read = sum(inside.values()), before.tokens
    rest = trunk_flops(shape.trunk, seen.tokens, read, seen.grid) + Counter({"head": head(shape.head, seen.tokens)})
    return found + Counter({name: seen.rows * count for name, count in rest.items()})


def through(trunk: Trunk | Recurrent, tokens: int, grid: Grid) -> Counter[str]:
    """One sequence through a trunk inside of a front end."""
    return trunk_flops(trunk, tokens, grid=grid)


def head(part: nn.Module, tokens: int) -> int:
    """Logits are made for every token; one vector for the whole, once."""
    if isinstance(part, Both):
        return head(part.vocabulary, tokens) + head(part.pooled, tokens)
    if isinstance(part, Horizon) and part.line is not None and part.mixed:  # a line for each channel
        return maps(part.out, 1) + maps(part.line, part.channels)
    return maps(part, tokens if isinstance(part, nn.Linear | Each) else 1)


def trunk_flops(trunk: Trunk | Recurrent, queries: int, memory: int = 0, grid: Grid = None) -> Counter[str]:
    """One sequence through a trunk: maps cost by their weights, looking as its kernel does it."""
    if isinstance(trunk, Recurrent):
        return stack_flops(trunk, queries, memory)
    found = Counter({"embedding": 0 if trunk.project is None else maps(trunk.project, queries)})
    if isinstance(trunk.c.position, config.Spatial):  # which nodes are how far apart is found out by products, once
        found["prepared"] += 2 * trunk.c.position.radius * queries**3
    for i in range(trunk.c.depth):
        block = trunk.blocks[i % len(trunk.blocks)]
        assert isinstance(block, Block)
        if isinstance(block.attn, Attention):
            found["attention"] += mapped(block.attn, queries)
            found["looking"] += looking(block.attn, field(trunk.c, i, queries, grid), trunk.c.attention.kernel)
            found["looking"] += shaw(trunk.c.position, block.attn, queries)
        else:
            found["mixing"] += mixed(block.attn, queries)
        found["feed-forward"] += maps(block.mlp, queries)
        if block.cross is not None:
            kernel = (trunk.c.across or trunk.c.attention).kernel
            found["cross-attention"] += across(block.cross, queries, memory, kernel)
    return found


def mapped(attention: Attention, tokens: int) -> int:
    """The maps of q, k, v and out: what a kernel has of its own is counted with the looking."""
    return maps(attention, tokens) - (0 if attention.own is None else maps(attention.own, tokens))


def shaw(position: config.Position, attention: Attention, queries: int) -> int:
    """Shaw's table of q·a for each distance."""
    if not isinstance(position, config.Shaw):
        return 0
    return 2 * attention.heads * queries * attention.width * (2 * position.radius + 1)


def across(cross: Cross, queries: int, memory: int, kernel: str) -> int:
    """Keys and values are made of the memory, everything else of the asking tokens."""
    given = 0 if cross.kv is None else maps(cross.kv, memory) - maps(cross.kv, queries)
    return mapped(cross, queries) + given + looking(cross, Field(queries, memory, EVERYTHING), kernel)
