"""How looking grows: with the square of the tokens, and which share of a model's work that is.

A layer's maps cost 24·d² a token (4·d² weights in attention, 8·d² in the feed-forward, 2 operations each); looking
costs 4·n·d (scores and mixing, over n keys). So it is n/(6d + n) of the blocks: 2.7% at 2,048 tokens, 12,288 wide.
"""

from dataclasses import dataclass

from regard import config
from regard.config.names import called
from regard.measure.flops import Flops
from regard.measure.ghost import Config
from regard.measure.looking import COSTS, field, pairs

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
NUMBER = 4  # bytes of one weight of attention, in fp32


@dataclass(frozen=True)
class Growth:
    """A sequence's length, its pairs of query and key, and the bytes of their weights in one layer and in all."""

    tokens: int
    pairs: int
    layer: int
    model: int


def growth(heads: tuple[int, ...], lengths: tuple[int, ...] = LENGTHS) -> tuple[Growth, ...]:  #: S141 S142
    """What weights of attention take that are written down, h·n²·4 bytes; the fused kernel writes none."""
    if not heads:
        return ()
    return tuple(Growth(n, n * n, heads[0] * n * n * NUMBER, sum(heads) * n * n * NUMBER) for n in lengths)


@dataclass(frozen=True)
class Share:
    """Looking's part of the arithmetic in the blocks: by the formula, as counted, and whether the formula is for it."""

    formula: float
    counted: float
    applies: bool


def share(c: config.Transformer, flops: Flops, tokens: int) -> Share:  #: S122
    if isinstance(c.trunk, config.Recurrent) or c.trunk.mixer.kind != "attention":
        return Share(0.0, 0.0, False)
    whole = sum(flops.parts.get(name, 0.0) for name in ("attention", "looking", "cross-attention", "feed-forward"))
    formula = tokens / (6 * c.trunk.dim + tokens)
    return Share(formula, flops.parts.get("looking", 0.0) / whole, plain(c, tokens))


def plain(c: config.Transformer, tokens: int) -> bool:
    """Is every layer the one the formula means: four square maps, a feed-forward four times as wide, all n keys?"""
    if isinstance(c.trunk, config.Recurrent):
        return False
    trunk, attention = c.trunk, c.trunk.attention
    squares = all(
        (heads * width, groups, attention.value_width or width) == (trunk.dim, heads, width)
        for heads, groups, width in (attention.counts(layer, trunk.dim) for layer in range(trunk.depth))
    )
    fields = [field(trunk, layer, tokens) for layer in range(len(trunk.masks))]
    dense = called(attention.kernel)[0] not in COSTS
    dense = dense and all(pairs(seen, attention.kernel) == tokens * tokens for seen in fields)
    thinking = (trunk.mlp.hidden or 4 * trunk.dim) == 4 * trunk.dim and not trunk.mlp.gated
    alone = c.encoder is None and not isinstance(c.embed, config.Stages) and trunk.position.kind != "shaw"
    return squares and dense and thinking and alone and len(attention.maps) == 4


def spoken(c: Config) -> config.Transformer:
    """The model whose layers are spoken of: of towers, the widest."""
    return max(c.towers, key=lambda tower: tower.trunk.dim) if isinstance(c, config.Towers) else c
