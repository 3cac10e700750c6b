"""Scaling laws: how the loss falls with the size of a model, fitted to a few small ones.

    log L = -alpha log N + C                  a line in the logarithms (Kaplan et al. 2020)
    L = E + A N^-alpha                        the same above a floor E that no size goes below (Hoffmann et al. 2022)

Few sizes determine a line well and a floor badly. So both are told with what they leave over at each size, the line's
alpha with its standard error, and the floor with the whole range that would do nearly as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 4  # sizes, for a floor needs three and says nothing without one more
NEARLY = 2.0  # a floor is possible where what is left over is at most so many times the least
STEPS = 400  # floors that are tried between zero and the lowest loss


@dataclass(frozen=True)
class Law:
    """L = floor + scale·N^-alpha. `left` is what each loss is above the law, as a part of it; `error` is the standard
    error of alpha, and `floors` the range of floors that fit nearly as well (both only where there is such a thing)."""

    alpha: float
    scale: float
    floor: float
    left: tuple[float, ...]
    error: float | None = None
    floors: tuple[float, float] | None = None

    def __call__(self, size: float) -> float:
        return self.floor + self.scale * math.exp(-self.alpha * math.log(size))

    @property
    def miss(self) -> float:
        """The root of the mean square of what is left over."""
        return math.sqrt(sum(each * each for each in self.left) / len(self.left))


def line(sizes: Sequence[float], losses: Sequence[float], floor: float = 0.0) -> Law:  #: S144
    """The least squares in the logarithms, above a floor that is given."""
    checked(sizes, losses, floor)
    x, y = [math.log(size) for size in sizes], [math.log(loss - floor) for loss in losses]
    at, level = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - at) ** 2 for each in x)
    slope = sum((a - at) * (b - level) for a, b in zip(x, y, strict=True)) / spread
    offs = [b - level - slope * (a - at) for a, b in zip(x, y, strict=True)]
    error = math.sqrt(sum(off * off for off in offs) / (len(x) - 2) / spread)
    made = Law(-slope, math.exp(level - slope * at), floor, (), error)
    left = tuple(loss / made(size) - 1 for size, loss in zip(sizes, losses, strict=True))
    return Law(made.alpha, made.scale, floor, left, error)


def floored(sizes: Sequence[float], losses: Sequence[float]) -> Law:
    """The floor whose line leaves least over, and the floors that leave at most twice as much."""
    lowest = min(losses)
    tried = [line(sizes, losses, lowest * step / STEPS) for step in range(STEPS)]
    best = min(range(STEPS), key=lambda i: tried[i].miss)
    low, high = (lowest * max(0.0, min(step, STEPS - 1e-6)) / STEPS for step in (best - 1, best + 1))
    fine = line(sizes, losses, sought(sizes, losses, low, high))
    within = [law.floor for law in tried if law.miss <= NEARLY * fine.miss + 1e-12]
    floors = (min([*within, fine.floor]), max([*within, fine.floor]))
    return Law(fine.alpha, fine.scale, fine.floor, fine.left, None, floors)


def sought(sizes: Sequence[float], losses: Sequence[float], low: float, high: float) -> float:
    """Golden section: the floor between two that leaves least over."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        one, other = high - golden * (high - low), low + golden * (high - low)
        if line(sizes, losses, one).miss < line(sizes, losses, other).miss:
            high = other
        else:
            low = one
    return (low + high) / 2


def checked(sizes: Sequence[float], losses: Sequence[float], floor: float) -> None:
    if len(sizes) != len(losses) or len(set(sizes)) < LEAST:
        raise ValueError(f"{len(set(sizes))} sizes and {len(losses)} losses; a law needs {LEAST} sizes or more, each "
                         "with its loss")  # fmt: skip
    if min(sizes) <= 0 or not all(floor < loss < math.inf for loss in losses):
        raise ValueError(f"sizes must be above 0 and losses above the floor of {floor:g}")
