"""How the learning rate moves: a factor of it for each step.

`step` counts from 1. `progress` is the part of the run that is over, from 0 to 1, by steps or by the clock: schedules
that come down at the end follow it, so that they also fit a run that has three minutes.
"""

import math
from collections.abc import Callable

from regard import config

Schedule = Callable[[int, float], float]


def schedule(c: config.Noam | config.Slope | config.Trapezoid, dim: int) -> Schedule:
    """The factor as a function of step and progress; `dim` is the width that Noam's rule asks for."""
    if isinstance(c, config.Noam):
        return lambda step, progress: dim**-0.5 * min(step**-0.5, step * c.warmup**-1.5)  #: S095
    down = {"constant": constant, "linear": linear, "cosine": cosine, "wsd": linear}[c.kind]
    decay = c.decay if isinstance(c, config.Trapezoid) else 1.0

    def factor(step: int, progress: float) -> float:
        late = 0.0 if decay == 0 else max(0.0, 1 - (1 - progress) / decay)  # how far into the way down
        return min(1.0, step / c.warmup if c.warmup else 1.0) * (c.final + (1 - c.final) * down(late))

    return factor


def constant(late: float) -> float:
    return 1.0


def linear(late: float) -> float:
    return 1.0 - late


def cosine(late: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * late)
