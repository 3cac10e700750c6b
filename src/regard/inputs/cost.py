"""FLOPs of front ends: each declares its own in a method `cost`, and a line of description in `describe`.

Embedding lookups are no matrix products, and Fourier transforms are not counted. Projections of raw data ("patches",
"input") need no gradient of their input, and parts without weights ("prepared") cost nothing in backward. A custom
front end without `cost` is counted by its class: every linear layer once for every token.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.attention.cost import GridShape

# How the cost of a mixer or recurrent cell grows with the length: a formula, and its power of n.
MIXER_GROWTH: dict[str, tuple[str, float]] = {}
TrunkCost = Callable[[Any, int, GridShape], Counter[str]]  # FLOPs of a trunk by part: (trunk, tokens, their grid)


@dataclass(frozen=True)
class FrontEndCost:
    """FLOPs by part for one example, and the number of output tokens, with their grid if they fill an image.

    `rows` is the number of sequences that an example becomes: one for each channel of a channel-independent series.
    """

    parts: Counter[str]
    tokens: int
    grid: GridShape = None
    rows: int = 1


def front_end_cost(embed: nn.Module, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
    """FLOPs of a front end; text has `context` tokens, other inputs their own number."""
    if declared := getattr(embed, "cost", None):
        found: FrontEndCost = declared(context, trunk_cost)
        return found
    count = getattr(getattr(embed, "c", None), "count", None) or context
    return FrontEndCost(Counter({"input": linear_flops(embed, count)}), count)


def describe_front_end(embed: nn.Module) -> str:
    """A line on a front end's input and output."""
    declared = getattr(embed, "describe", None)
    return declared() if declared else type(embed).__name__


def linear_flops(part: nn.Module, tokens: int) -> int:
    """FLOPs if every weight matrix multiplies every token once; a convolution over patches is such a matrix."""
    layers = (layer for layer in part.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    return sum(2 * layer.weight.numel() * tokens for layer in layers)


def matrix_flops(part: nn.Module) -> int:
    """FLOPs for one token: every matrix multiplies it once."""
    return sum(2 * weight.numel() for weight in part.parameters() if weight.dim() > 1)
