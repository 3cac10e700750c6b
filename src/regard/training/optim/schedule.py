"""Learning-rate schedules: Noam's, and warm-up followed by a constant, linear, cosine or late linear (WSD) decay.

A schedule gives a factor of the learning rate for each step. `step` counts from 1. `progress` is the fraction of the
run before it, from 0 to 1, by steps or by the clock: decay at the end follows it, so that it also works for a run that
is limited to three minutes.
"""

import math
from collections.abc import Callable

from regard import config

LRSchedule = Callable[[int, float], float]


def build_schedule(c: config.NoamSchedule | config.WarmupSchedule | config.WSDSchedule, dim: int) -> LRSchedule:
    """The factor as a function of step and progress; `dim` is the model width in Noam's formula."""
    if isinstance(c, config.NoamSchedule):
        return lambda step, progress: dim**-0.5 * min(step**-0.5, step * c.warmup**-1.5)  #: S095
    down = {"constant": constant_decay, "linear": linear_decay, "cosine": cosine_decay, "wsd": linear_decay}[c.kind]

    def factor(step: int, progress: float) -> float:
        if step <= c.warmup:
            return step / c.warmup
        begin = 1 - c.decay_fraction if isinstance(c, config.WSDSchedule) else progress * c.warmup / max(1, step - 1)
        late = max(0.0, (progress - begin) / (1 - begin)) if begin < 1 else 0.0  # fraction of the decay phase
        return c.min_lr_ratio + (1 - c.min_lr_ratio) * down(late)

    return factor


def constant_decay(late: float) -> float:
    return 1.0


def linear_decay(late: float) -> float:
    return 1.0 - late


def cosine_decay(late: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * late)
