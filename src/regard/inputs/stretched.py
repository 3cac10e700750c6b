"""Rotary angles for longer texts than were trained: the published ways to stretch their waves.

Each takes the angles of a pair of channels per step, and answers with others and with how much louder q and k become.
"""

import math

import torch
from torch import Tensor

from regard import config
from regard.core.positions import SCALINGS


def linear(c: config.Rotary, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """All waves longer by one factor (Chen et al. 2023)."""
    return pairs / c.factor, 1.0


def dynamic(c: config.Rotary, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """Another base, by how much longer than trained this input is."""
    if count <= c.length:
        return pairs, 1.0
    width = 2 * len(pairs)
    base = c.base * (c.factor * count / c.length - (c.factor - 1)) ** (width / (width - 2))
    exponents = torch.arange(0, width, 2, device=pairs.device, dtype=torch.float32) / width
    return 1.0 / base**exponents, 1.0


def llama3(c: config.Rotary, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """Long waves are stretched, short ones kept, the ones between mixed."""
    turns = c.length * pairs / (2 * math.pi)
    keep = ((turns - c.low) / (c.high - c.low)).clamp(0, 1)
    return pairs * (keep + (1 - keep) / c.factor), 1.0


def yarn(c: config.Rotary, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """The same by channels, and q and k a little louder (Peng et al. 2023)."""
    keep = 1 - ramp(channel(c, len(pairs), c.fast), channel(c, len(pairs), c.slow), len(pairs), pairs.device)
    return pairs * (keep + (1 - keep) / c.factor), 0.1 * math.log(c.factor) + 1 if c.factor > 1 else 1.0


def longrope(c: config.Rotary, pairs: Tensor, count: int) -> tuple[Tensor, float]:
    """A factor of its own for every wave (Ding et al. 2024)."""
    loud = math.sqrt(1 + math.log(c.factor) / math.log(c.length)) if c.factor > 1 else 1.0
    return pairs / torch.tensor(c.factors).to(pairs.device, non_blocking=True), loud


def channel(c: config.Rotary, count: int, turns: float) -> float:
    """The channel whose wave turns so many times within the trained length."""
    return count * math.log(c.length / (turns * 2 * math.pi)) / math.log(c.base)


def ramp(low: float, high: float, count: int, device: torch.device) -> Tensor:
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * count - 1)
    steps = torch.arange(count, device=device, dtype=torch.float32)
    return ((steps - low) / max(high - low, 0.001)).clamp(0, 1)


SCALINGS.update(linear=linear, dynamic=dynamic, llama3=llama3, yarn=yarn, longrope=longrope)
