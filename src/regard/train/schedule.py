"""How the learning rate moves: a factor of it for each step.

`step` counts from 1. `progress` is the part of the run that was over before it, from 0 to 1, by steps or by the clock:
schedules that come down at the end follow it, so that they also fit a run that has three minutes.
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

    def factor(step: int, progress: float) -> float:
        if step <= c.warmup:
            return step / c.warmup
        begin = 1 - c.decay if isinstance(c, config.Trapezoid) else progress * c.warmup / max(1, step - 1)
        late = max(0.0, (progress - begin) / (1 - begin)) if begin < 1 else 0.0  # how far on the way down
        return c.final + (1 - c.final) * down(late)

    return factor


def constant(late: float) -> float:
    return 1.0


def linear(late: float) -> float:
    return 1.0 - late


def cosine(late: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * late)
