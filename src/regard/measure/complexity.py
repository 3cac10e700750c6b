"""Layer complexity: formulas for the cost of attention, recurrent and convolutional layers, and how it grows.

    attention      all pairs of tokens in parallel, and a path of length 1 between any two
    recurrent      each token needs the one before it
    convolution    parallel, but a layer reaches only k-1 positions; further with dilations that grow k-fold a layer

Operations are those of matrix products, 2 for each multiplication and addition, for layers d wide on n tokens
(Vaswani et al. 2017, table 1). Paths are in layers, or steps of a recurrent layer, from the first token to the last.

The projections and the MLP of a layer cost 24·d² a token (4·d² weights in attention, 8·d² in the MLP, 2 operations
each); attention between tokens costs 4·n·d (scores and weighted sum, over n keys). So it is n/(6d + n) of the blocks:
2.7% at 2,048 tokens, 12,288 wide.

Letters of `cost_order`, by the name of a kernel, a mixer or a recurrent cell:

    d the width   w a window   m the features of a kernel   k a chosen number of keys or positions   s states a channel
    e the pairs that the mask allows, n² for a full mask
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard import config
from regard.attention.cost import DENSE, KERNEL_COSTS, charged_pairs
from regard.config.errors import parse_call
from regard.inputs.cost import MIXER_GROWTH
from regard.measure.fake_model import ModelConfig
from regard.measure.flops import FlopCount, attention_field


@dataclass(frozen=True)
class LayerComplexity:
    """Complexity of a kind of layer: each quantity as an order of growth and as a number."""

    name: str
    operations: int
    operations_order: str
    sequential: int
    sequential_order: str
    path: int
    path_order: str


def layer_complexities(
    n: int, d: int, kernel: int = 3, window: int | None = None
) -> tuple[LayerComplexity, ...]:  #: S139
    """The complexity of all kinds of layers at this size; with a `window`, also of attention with that many positions
    to each side."""
    maps, convolved = 8 * n * d * d, 2 * kernel * n * d * d
    rows = [LayerComplexity("attention", maps + 4 * n * n * d, "n²·d", 1, "1", 1, "1")]
    if window:
        near = maps + 4 * n * min(n, 2 * window + 1) * d
        rows.append(
            LayerComplexity(f"attention, window {window}", near, "r·n·d", 1, "1", -(-(n - 1) // window) or 1, "n/r")
        )
    return (
        *rows,
        LayerComplexity("recurrent", 4 * n * d * d, "n·d²", n, "n", n, "n"),
        LayerComplexity(
            f"convolution, kernel {kernel}", convolved, "k·n·d²", 1, "1", contiguous_path(n, kernel), "n/(k-1)"
        ),
        LayerComplexity("convolution, dilated", convolved, "k·n·d²", 1, "1", dilated_path(n, kernel), "log_k n"),
    )


def contiguous_path(n: int, kernel: int) -> int:
    """Layers until the last token depends on the first: each adds k-1 positions."""
    return max(1, -(-(n - 1) // (kernel - 1)))


def dilated_path(n: int, kernel: int) -> int:
    """Layers until the last token depends on the first, with dilations 1, k, k², ...: L layers see k^L - 1 positions
    back."""
    layers = 1
    while kernel**layers < n:
        layers += 1
    return layers


LENGTHS = (128, 256, 512, 1024, 2048, 4096)
NUMBER = 4  # bytes of one attention weight, in fp32


@dataclass(frozen=True)
class AttentionGrowth:
    """A sequence length, its query-key pairs, and the bytes of attention weights in one layer and in all."""

    tokens: int
    pairs: int
    layer: int
    model: int


def attention_growth(
    heads: tuple[int, ...], lengths: tuple[int, ...] = LENGTHS
) -> tuple[AttentionGrowth, ...]:  #: S141 S142
    """The bytes of attention weights that are stored, h·n²·4; the fused kernel stores none."""
    if not heads:
        return ()
    return tuple(AttentionGrowth(n, n * n, heads[0] * n * n * NUMBER, sum(heads) * n * n * NUMBER) for n in lengths)


@dataclass(frozen=True)
class AttentionShare:
    """Attention's share of the FLOPs in the blocks: by the formula, as counted, and whether the formula applies."""

    formula: float
    counted: float
    applies: bool


def attention_share(c: config.Transformer, flops: FlopCount, tokens: int) -> AttentionShare:  #: S122
    if isinstance(c.trunk, config.RecurrentStack) or c.trunk.mixer.kind != "attention":
        return AttentionShare(0.0, 0.0, False)
    whole = sum(flops.parts.get(name, 0.0) for name in ("attention", "looking", "cross-attention", "feed-forward"))
    formula = tokens / (6 * c.trunk.dim + tokens)
    return AttentionShare(formula, flops.parts.get("looking", 0.0) / whole, formula_applies(c, tokens))


def formula_applies(c: config.Transformer, tokens: int) -> bool:
    """Whether every layer is that of the formula: four square projections, an MLP four times as wide, all n keys."""
    if isinstance(c.trunk, config.RecurrentStack):
        return False
    trunk, attention = c.trunk, c.trunk.attention
    squares = all(
        (heads * width, groups, attention.value_head_dim or width) == (trunk.dim, heads, width)
        for heads, groups, width in (attention.counts(layer, trunk.dim) for layer in range(trunk.depth))
    )
    fields = [attention_field(trunk, layer, tokens) for layer in range(len(trunk.masks))]
    dense = KERNEL_COSTS.get(parse_call(attention.kernel)[0], DENSE).flops is None
    dense = dense and all(charged_pairs(seen, attention.kernel) == tokens * tokens for seen in fields)
    usual = (trunk.mlp.hidden or 4 * trunk.dim) == 4 * trunk.dim and not trunk.mlp.gated
    thinking = usual and trunk.mlp.kind != "none"
    alone = c.encoder is None and not isinstance(c.embed, config.StageEmbedding) and trunk.position.kind != "shaw"
    return squares and dense and thinking and alone and len(attention.projections) == 4


def main_model(c: ModelConfig) -> config.Transformer:
    """The model that is reported: of several towers, the widest."""
    return max(c.towers, key=lambda tower: tower.trunk.dim) if isinstance(c, config.DualEncoder) else c


def cost_order(name: str) -> tuple[str, float] | None:
    """The formula and the exponent of n for a kernel, a mixer or a recurrent cell; None where it declares none."""
    return KERNEL_COSTS[name].growth if name in KERNEL_COSTS else MIXER_GROWTH.get(name)


Costs = tuple[float, ...]  # costs at one length: the first one decides whether a longer one is tried


def measure_growth(
    cost: Callable[[int], Costs | None], first: int, longest: int, enough: float, least: int = 2
) -> tuple[list[int], list[Costs]]:
    """The costs at doubling lengths, up to `longest`, or until a cost reaches `enough` after `least` lengths; a length
    without a cost ends it too."""
    lengths, costs = list[int](), list[Costs]()
    length = first
    while length <= longest and (len(costs) < least or costs[-1][0] < enough):
        if (found := cost(length)) is None:
            break
        lengths.append(length)
        costs.append(found)
        length *= 2
    return lengths, costs


def fit_exponent(lengths: Sequence[int], costs: Sequence[float], last: int = 3) -> float:
    """The growth exponent: the least-squares slope in the logarithms of the `last` lengths.

    NaN for a single length; for two, the logarithm of their costs' ratio to that of their lengths.
    """
    if len(lengths[-last:]) < 2:
        return math.nan
    x, y = [math.log(n) for n in lengths[-last:]], [math.log(max(each, 1e-9)) for each in costs[-last:]]
    at, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - at) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - at) ** 2 for a in x)
