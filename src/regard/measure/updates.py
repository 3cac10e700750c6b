"""What it takes to move the weights once their gradients are there."""

from collections import Counter

from torch import nn

from regard import config
from regard.core.layers import Fused
from regard.measure.ghost import Config, outline
from regard.measure.memory import Optimizer
from regard.measure.record import Charge
from regard.measure.work import Work


def moving(c: Config, optimizer: Optimizer) -> Work:
    """What it takes to move the weights, gradients given; and the bytes that Muon holds meanwhile."""
    shape = outline(c)
    stacks = stacked(shape) if isinstance(optimizer, config.Muon) else Counter[tuple[int, int]]()
    count = sum(weight.numel() for weight in shape.parameters()) - sum(n * a * b for (a, b), n in stacks.items())
    tensors = len(list(shape.parameters()))
    charges: Counter[Charge] = Counter({("update", count): 1, ("call", 1): 6 * tensors})
    for (a, b), n in stacks.items():
        assert isinstance(optimizer, config.Muon)
        charges += orthogonal(n, a, b, optimizer.rounds)
    ahead = 4 * sum(n * a * b for (a, b), n in stacks.items())
    return Work(charges, late=ahead + max((14 * n * a * b for (a, b), n in stacks.items()), default=0))


def stacked(shape: nn.Module) -> Counter[tuple[int, int]]:
    """The matrices in blocks by their sides, the shorter one first; a fused map is several."""
    found: Counter[tuple[int, int]] = Counter()
    for name, module in shape.named_modules():
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}":
            for rows in module.sizes.values() if isinstance(module, Fused) else (module.out_features,):
                found[min(rows, module.in_features), max(rows, module.in_features)] += 1
    return found


def orthogonal(n: int, a: int, b: int, rounds: int) -> Counter[Charge]:
    """Newton-Schulz on n matrices of a x b: three products a round, and what stands around them."""
    found: Counter[Charge] = Counter()
    for side in (b, a, b):
        found["batch.bfloat16", 2 * n * a * a * side] += rounds
    found["plain.bfloat16", 6 * n * a * b] += 2 * rounds
    found["plain.float32", 12 * n * a * b] += 6
    found["call", 1] += 6 * rounds + 4 * n
    return found
