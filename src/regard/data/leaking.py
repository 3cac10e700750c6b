"""Leaks: what a model is validated on should not be what it was trained on."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.data.arrays import Arrays
from regard.data.examples import Examples
from regard.data.shards import Shards

BLOCK = 1 << 16  # stretches looked at together
FACTOR = 0x9E3779B97F4A7C15  # odd, and its powers modulo 2⁶⁴ look random


def leaks(train: Examples | Arrays | Shards, validation: Examples | Arrays | Shards, size: int = 32) -> tuple[int, int]:
    """How many questions to validate on are among those to train on, and how many there are.

    Of texts: how many stretches of `size` tokens, laid end to end, stand anywhere in the text to train on.
    """
    if isinstance(train, Examples | Arrays) and isinstance(validation, type(train)):
        return int(torch.isin(validation.marks(), train.marks()).sum()), len(validation)
    if not isinstance(train, Shards) or not isinstance(validation, Shards):
        raise TypeError("leaks: two texts or two sets of examples can be compared, not one of each")
    asked = torch.cat([*hashes(validation, size, size), torch.empty(0, dtype=torch.long)])
    seen = torch.zeros(len(asked), dtype=torch.bool)
    for some in hashes(train, size, 1):
        seen |= torch.isin(asked, some)
    return int(seen.sum()), len(asked)


def hashes(shards: Shards, size: int, step: int) -> Iterator[Tensor]:
    """The hashes of stretches of tokens that begin `step` apart, a block at a time: Σ token · FACTOR^place mod 2⁶⁴."""
    powers = torch.tensor([signed(pow(FACTOR, place, 1 << 64)) for place in range(size)])
    for start in range(0, len(shards) - size + 1, BLOCK * step):
        ids = shards.ids(start, start + (BLOCK - 1) * step + size)
        yield ((ids.unfold(0, size, step) + 1) * powers).sum(-1)


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
