"""Measuring a machine in a few seconds: every probe for a moment, then a few whole steps."""

import math
import time
import warnings
from statistics import fmean

import torch

from regard import config
from regard.measure.machine import Ladder, Machine, here, keep, surroundings
from regard.measure.probes import Call, probes, steps
from regard.measure.updates import moving
from regard.measure.work import work

TURNS = 2  # rounds over all probes, and the better counts: a slow moment spoils no rung
BUSY = 0.5  # of the speed of its parts: no idle machine runs a step so slowly
PROBING = 0.6  # of the time; whole steps take the rest


def calibrate(seconds: float = 3.0, device: str = "cpu") -> Machine:
    """Measure this machine for about so many seconds, and as many for getting ready; keep it for `predict`."""
    parts = Machine(surroundings(here(device)), rungs(seconds * PROBING, device))
    whole = wholes(parts, seconds * (1 - PROBING), device)
    made = Machine(parts.about, {**parts.ladders, **whole})
    keep(made)
    slowest = min(rate for ladder in whole.values() for _, rate in ladder)
    if slowest < BUSY:
        warnings.warn(f"whole steps took {1 / slowest:.1f} times as long as their parts: this machine is busy with "
                      "something else, so calibrate it again when it is not", stacklevel=2)  # fmt: skip
    return made


def rungs(seconds: float, device: str) -> dict[str, Ladder]:
    """How fast each probe is, by the ladder that it stands on; probes of one size share a rung."""
    every = list(probes(device))
    times = [math.inf] * len(every)
    for _ in range(TURNS):
        for i, (_, call) in enumerate(every):
            times[i] = min(times[i], timed(call, seconds / len(every) / TURNS, device))
    found: dict[str, dict[float, list[float]]] = {}
    for ((name, size), _), took in zip(every, times, strict=True):
        found.setdefault(name, {}).setdefault(size, []).append(took)
    return {name: tuple((size, size / fmean(took)) for size, took in sorted(sizes.items()))
            for name, sizes in found.items()}  # fmt: skip


def wholes(parts: Machine, seconds: float, device: str) -> dict[str, Ladder]:
    """What whole steps take, against what their parts should."""
    found: dict[str, dict[float, float]] = {}
    every = list(steps(device))
    for c, batch, context, call in every:
        should, _ = parts.step(work(c, batch, context, device), moving(c, config.AdamW()), c.precision)
        took = timed(call, seconds / len(every), device)
        found.setdefault(f"whole.{c.precision}", {})[should] = should / took
    return {name: tuple(sorted(rates.items())) for name, rates in found.items()}


def timed(call: Call, seconds: float, device: str) -> float:
    """Seconds of one call, made again and again: the lower quartile, since whatever disturbs only makes it longer."""
    many, times, end = 1 if device == "cpu" else 20, list[float](), time.perf_counter() + seconds
    call()
    while len(times) < 3 or time.perf_counter() < end:
        finish(device)
        start = time.perf_counter()
        for _ in range(many):
            call()
        finish(device)
        times.append((time.perf_counter() - start) / many)
    return sorted(times)[len(times) // 4]


def finish(device: str) -> None:
    """Wait for what was asked of an accelerator."""
    if device != "cpu":
        torch.accelerator.synchronize(device)
