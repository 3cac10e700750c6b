"""What it takes to move the weights once their gradients are there."""

from collections import Counter

import torch
from torch import nn

from regard import config
from regard.core.layers import Fused
from regard.measure.ghost import Config, outline
from regard.measure.memory import Optimizer
from regard.measure.record import Charge
from regard.measure.work import Work


def moving(c: Config, optimizer: Optimizer, products: torch.dtype = torch.bfloat16) -> Work:
    """What it takes to move the weights, gradients given; and the bytes that are held meanwhile.

    `products` is the type that Muon multiplies in, which a CPU may not have in 16 bits.
    """
    shape = outline(c)
    weights = list(shape.parameters())
    masters = 4 * sum(weight.numel() for weight in weights if weight.dtype != torch.float32)  # their gradients, in fp32
    if isinstance(optimizer, config.Adafactor):
        return factored(weights).plus(Work(late=masters))
    stacks = stacked(shape) if isinstance(optimizer, config.Muon) else Counter[tuple[int, int]]()
    count = sum(weight.numel() for weight in weights) - sum(n * a * b for (a, b), n in stacks.items())
    charges: Counter[Charge] = Counter({("update", count): 1, ("call", 1): 6 * len(weights)})
    for (a, b), n in stacks.items():
        assert isinstance(optimizer, config.Muon)
        charges += orthogonal(n, min(a, b), max(a, b), optimizer.rounds, products)
    return Work(charges, late=turned(stacks, products.itemsize) + masters)


def factored(weights: list[nn.Parameter]) -> Work:
    """Adafactor takes one weight after the other: its update is made, measured and applied, a few passes each."""
    charges: Counter[Charge] = Counter({("call", 1): 27 * len(weights)})
    for weight in weights:
        charges["plain.float32", 12 * weight.numel()] += 5
    return Work(charges, late=4 * max(weight.numel() for weight in weights))


def stacked(shape: nn.Module) -> Counter[tuple[int, int]]:
    """The matrices in blocks by their rows and columns, as Muon stacks them; a fused map is several."""
    found: Counter[tuple[int, int]] = Counter()
    for name, module in shape.named_modules():
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}":
            for rows in module.sizes.values() if isinstance(module, Fused) else (module.out_features,):
                found[rows, module.in_features] += 1
    return found


def turned(stacks: Counter[tuple[int, int]], wide: int) -> int:
    """Bytes that Muon holds at most: all directions in fp32, and what one stack after the other needs besides.

    While a stack is turned, in numbers of `wide` bytes, the steps of the one before are still there, in fp32.
    """
    before = most = 0
    for (a, b), n in stacks.items():
        size, square = n * a * b, n * min(a, b) ** 2
        most = max(most, before + (4 + wide) * size, before + 2 * wide * (size + square), 8 * size)
        before = 4 * size
    return most + 4 * sum(n * a * b for (a, b), n in stacks.items())


def orthogonal(
    n: int, a: int, b: int, rounds: int, products: torch.dtype = torch.bfloat16
) -> Counter[Charge]:  # fmt: skip
    """Newton-Schulz on n matrices of a x b: three products a round, and what stands around them."""
    found: Counter[Charge] = Counter()
    kind = str(products).removeprefix("torch.")
    for side in (b, a, b):
        found[f"batch.{kind}", 2 * n * a * a * side] += rounds
    found[f"plain.{kind}", 3 * products.itemsize * n * a * b] += 2 * rounds
    found["plain.float32", 12 * n * a * b] += 6
    found["call", 1] += 6 * rounds + 4 * n
    return found
