"""FLOPs of front ends: each declares its own by a method `cost`, and says what it is in a line by `describe`.

An embedding lookup is no product, and a Fourier transform is none that is counted. Projections of raw data ("patches",
"input") need no gradient of their input, and what has no weights at all ("prepared") costs nothing in backward. A
custom front end that declares nothing goes by its class, and every linear layer in it counts once for every token.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.attention.cost import GridShape

# How the cost of a mixer or of a recurrent cell grows with the length: a formula, and its power of n.
MIXER_GROWTH: dict[str, tuple[str, float]] = {}
TrunkCost = Callable[[Any, int, GridShape], Counter[str]]  # what a trunk multiplies: (trunk, tokens, their grid)


@dataclass(frozen=True)
class FrontEndCost:
    """Operations by part for one example, and what comes out: so many tokens, on a grid if they fill an image.

    `rows` are sequences that one example becomes: a series whose channels are read one by one has as many.
    """

    parts: Counter[str]
    tokens: int
    grid: GridShape = None
    rows: int = 1


def front_end_cost(embed: nn.Module, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
    """What a front end multiplies; texts have `context` tokens, everything else as many as it says."""
    if declared := getattr(embed, "cost", None):
        found: FrontEndCost = declared(context, trunk_cost)
        return found
    count = getattr(getattr(embed, "c", None), "count", None) or context
    return FrontEndCost(Counter({"input": linear_flops(embed, count)}), count)


def describe_front_end(embed: nn.Module) -> str:
    """What a front end takes and makes, in a line."""
    declared = getattr(embed, "describe", None)
    return declared() if declared else type(embed).__name__


def linear_flops(part: nn.Module, tokens: int) -> int:
    """Every weight matrix of a part multiplies every token once; a convolution over patches is such a matrix."""
    layers = (layer for layer in part.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    return sum(2 * layer.weight.numel() * tokens for layer in layers)


def matrix_flops(part: nn.Module) -> int:
    """Operations for one token: every matrix multiplies it once."""
    return sum(2 * weight.numel() for weight in part.parameters() if weight.dim() > 1)
