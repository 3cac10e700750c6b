"""Calibration: measures the speed of this machine in a few seconds, and stores the result.

All microbenchmarks run briefly, then a few whole training steps. The result is a ladder for each kind of work: the
amount done in a second, by the size of one operation.

    product.float32   1e6 operations: 7.0e10 a second      1e9 operations: 9.5e10 a second

A ladder is interpolated linearly in the logarithms, and constant beyond its ends. The ladder `whole` relates whole
steps to the sum of their parts: the parts are timed with warm caches, and are slower in a whole step, with cold caches
and sleeping threads.

Without a calibration, `matmul_speed` times matrix products for half a second, which gives a lower bound for the time of
a step.
"""

import json
import math
import platform
import time
import warnings
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from regard import config
from regard.config.errors import unwritable_error
from regard.files import atomic, content_cache
from regard.measure.microbenchmarks import ProbeCall, probes, step_probes
from regard.measure.step_work import StepWork, measure_step_work, optimizer_work

SpeedLadder = tuple[tuple[float, float], ...]  # (size, amount per second), by increasing size
FORMAT = 1
CALIBRATE_HINT = "run regard estimate --calibrate"
NEEDED_PROBES = ("call", "kernel", "fresh", "touch", "update", "plain.float32", "product.float32", "look.float32")
COMPILED = 0.7  # the overhead of a whole step that remains when it is compiled (five models, here)
PARTS = {"product": "products", "batch": "products", "look": "attention", "look_back": "attention",
         "call": "calls", "kernel": "calls", "fresh": "new memory"}  # fmt: skip


@dataclass(frozen=True)
class CalibratedMachine:
    """The ladders of a machine, and its description: they hold only for the same processor, threads and torch."""

    about: dict[str, str | int]
    ladders: dict[str, SpeedLadder]

    def step(self, work: StepWork, moves: StepWork, precision: str, times: int = 1) -> tuple[float, dict[str, float]]:
        """Seconds of a step that does `work` `times` times and then updates the weights; in total and by part."""
        parts = dict.fromkeys((*dict.fromkeys(PARTS.values()), "elementwise", "optimizer"), 0.0)
        for name, seconds in self.spent(work).items():
            parts[PARTS.get(name.partition(".")[0], "elementwise")] += times * seconds
        spent = self.spent(moves)
        if self.about["device"] != "cpu":  # a fused update of all weights is one call
            spent.pop("call", None)
        parts["optimizer"] = sum(spent.values())
        rest = sum(parts.values()) - parts["calls"]
        # a CPU works sequentially; an accelerator computes while further calls are queued
        total = rest + parts["calls"] if self.about["device"] == "cpu" else max(rest, parts["calls"])
        longer = self.longer(total, precision, compiled=("kernel", 1) in work.charges)
        return total * longer, {name: seconds * longer for name, seconds in parts.items()}

    def longer(self, seconds: float, precision: str, compiled: bool) -> float:
        """The ratio of a whole step's time to the sum of its parts."""
        kind = "fp32" if precision == "fp32" else "mixed"
        if f"whole.{kind}" not in self.ladders:  # during the calibration itself
            return 1.0
        excess = 1 / self.rate(f"whole.{kind}", seconds) - 1
        return 1 + excess * (COMPILED if compiled else 1)

    def spent(self, work: StepWork) -> dict[str, float]:
        """Seconds by ladder."""
        found: dict[str, float] = {}
        for (name, size), count in work.charges.items():
            found[name] = found.get(name, 0.0) + count * size / self.rate(name, size)
        return found

    def rate(self, name: str, size: float) -> float:
        rungs = self.ladder(name)
        above = bisect([rung[0] for rung in rungs], size)
        if above in (0, len(rungs)):  # constant beyond its ends: an extrapolated fit would grow without limit
            return rungs[min(above, len(rungs) - 1)][1]
        (low, slow), (high, fast) = rungs[above - 1 : above + 1]
        # a power law between rungs: sizes span many magnitudes, and a linear fit would follow the largest alone
        part = math.log(size / low) / math.log(high / low)
        return math.exp((1 - part) * math.log(slow) + part * math.log(fast))

    def ladder(self, name: str) -> SpeedLadder:
        """A ladder by name, or the nearest one measured: in fp32, or that of plain memory traffic."""
        what, _, kind = name.partition(".")
        near = (name, f"{what}.float32", f"plain.{kind}", "plain.float32")
        return next(self.ladders[each] for each in near if each in self.ladders)

    def facts(self) -> dict[str, str | int]:
        """A readable summary: the machine, and its best speeds."""
        best = {name: max(rate for _, rate in rungs) for name, rungs in self.ladders.items()}
        told = {f"products, {name.partition('.')[2]}": f"{best[name] / 1e9:,.0f} GFLOP/s"
                for name in best if name.startswith("product.")}  # fmt: skip
        far = self.ladders["plain.float32"][-1][1]
        return {**self.about, **told, "memory": f"{far / 1e9:,.1f} GB/s", "one call": f"{1e6 / best['call']:,.1f} us"}


def local_device(device: str) -> str:
    """The device, if this machine has it, since predictions hold for this machine alone."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device not in ("cpu", found and found.type):
        raise config.ConfigError(f"device: {device!r} is not available here, and predictions are of this machine; "
                                 f"choose {found.type if found else 'cpu'}")  # fmt: skip
    return device


def machine_facts(device: str) -> dict[str, str | int]:
    """The description of the machine that a calibration holds for."""
    return {"device": device, "processor": processor_name(device), "threads": torch.get_num_threads(),
            "torch": torch.__version__}  # fmt: skip


def processor_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
        named = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not on Linux
        named = platform.processor() or platform.machine()
    return f"{named}, {torch.backends.cpu.get_cpu_capability()}"


# ---------------------------------------------------------------- files


def calibration_path() -> Path:
    return content_cache.cache_dir(None) / "machine.json"


def save_calibration(machine: CalibratedMachine) -> None:
    """Store a calibration, beside those of other devices."""
    known = content_cache.read_json_or_none(calibration_path())
    mine = {"format": FORMAT, "about": machine.about, "ladders": machine.ladders}
    table = {**(known if isinstance(known, dict) else {}), str(machine.about["device"]): mine}
    try:
        atomic.write_file(calibration_path(), [(json.dumps(table, indent=1) + "\n").encode()])
    except OSError as problem:
        raise unwritable_error(calibration_path(), problem) from None


def load_calibration(device: str = "cpu", notice: Callable[[str], object] = warnings.warn) -> CalibratedMachine | None:
    """The stored calibration of this machine, if there is one; one of another machine is ignored with a notice.

    A damaged or outdated file counts as none: the caller reports that nothing was measured.
    """
    path, now = calibration_path(), machine_facts(device)
    try:
        found = parse_calibration(content_cache.read_json_or_none(path), device)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    then = now if found is None else found.about
    for what in (name for name in now if then.get(name) != now[name]):
        notice(f"{path}: measured with {what} {then.get(what)}, and here it is {now[what]}; {CALIBRATE_HINT}")
        return None
    return found


def parse_calibration(table: Any, device: str) -> CalibratedMachine | None:
    """The calibration of a device in a file, if any; raises if it is damaged."""
    mine = None if table is None else table.get(device)
    if mine is None:
        return None
    if mine["format"] != FORMAT:
        raise ValueError(f"format {mine['format']}")
    ladders = {str(name): tuple((float(size), float(rate)) for size, rate in rungs)
               for name, rungs in mine["ladders"].items()}  # fmt: skip
    for name, rungs in {**ladders, **{name: ladders[name] for name in NEEDED_PROBES}}.items():
        sizes = [size for size, _ in rungs]
        if not rungs or sizes != sorted(set(sizes)) or not all(0 < each < math.inf for rung in rungs for each in rung):
            raise ValueError(name)
    return CalibratedMachine(dict(mine["about"]), ladders)


TURNS = 2  # rounds over all probes; the best one counts, against disturbances
BUSY = 0.5  # a whole step slower than this relative to its parts means a busy machine
PROBING = 0.6  # share of the time for probes; whole steps take the rest


def calibrate(seconds: float = 3.0, device: str = "cpu") -> CalibratedMachine:
    """Measure this machine for about so many seconds, after as much preparation; the result is stored for
    `predict_step`."""
    parts = CalibratedMachine(machine_facts(local_device(device)), time_probes(seconds * PROBING, device))
    whole = time_steps(parts, seconds * (1 - PROBING), device)
    made = CalibratedMachine(parts.about, {**parts.ladders, **whole})
    save_calibration(made)
    slowest = min(rate for ladder in whole.values() for _, rate in ladder)
    if slowest < BUSY:
        warnings.warn(f"whole steps took {1 / slowest:.1f} times as long as their parts: this machine is busy with "
                      "something else, so calibrate it again when it is not", stacklevel=2)  # fmt: skip
    return made


def time_probes(seconds: float, device: str) -> dict[str, SpeedLadder]:
    """The speed of each probe as ladders; probes of one size are averaged."""
    every = list(probes(device))
    times = [math.inf] * len(every)
    for _ in range(TURNS):
        for i, (_, call) in enumerate(every):
            times[i] = min(times[i], lower_quartile_time(call, seconds / len(every) / TURNS, device))
    found: dict[str, dict[float, list[float]]] = {}
    for ((name, size), _), took in zip(every, times, strict=True):
        found.setdefault(name, {}).setdefault(size, []).append(took)
    return {name: tuple((size, size / fmean(took)) for size, took in sorted(sizes.items()))
            for name, sizes in found.items()}  # fmt: skip


def time_steps(parts: CalibratedMachine, seconds: float, device: str) -> dict[str, SpeedLadder]:
    """The time of whole steps, relative to the sum of their parts."""
    found: dict[str, dict[float, float]] = {}
    every = list(step_probes(device))
    for c, batch, context, call in every:
        should, _ = parts.step(
            measure_step_work(c, batch, context, device), optimizer_work(c, config.AdamW()), c.precision
        )
        took = lower_quartile_time(call, seconds / len(every), device)
        found.setdefault(f"whole.{c.precision}", {})[should] = should / took
    return {name: tuple(sorted(rates.items())) for name, rates in found.items()}


def lower_quartile_time(call: ProbeCall, seconds: float, device: str) -> float:
    """Seconds of one call, the lower quartile of repeated calls, since disturbances only make it longer."""
    many, times, end = 1 if device == "cpu" else 20, list[float](), time.perf_counter() + seconds
    call()
    while len(times) < 3 or time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(many):
            call()
        synchronize(device)
        times.append((time.perf_counter() - start) / many)
    return sorted(times)[len(times) // 4]


def synchronize(device: str) -> None:
    """Wait for all queued work of an accelerator."""
    if device != "cpu":
        torch.accelerator.synchronize(device)


ROUND = 10**10  # at most so many operations in one round: short even on one core
SECONDS = 0.5


@torch.no_grad()
def matmul_speed(c: config.Model, rows: int, device: str = "cpu", seconds: float = SECONDS) -> float:
    """Operations a second in the MLP's matrix products: forward, and the two of backward."""
    dtype = torch.float32 if c.precision == "fp32" else torch.bfloat16
    hidden = c.trunk.mlp.hidden or 4 * c.trunk.dim
    rows = min(rows, 16 + ROUND // (6 * c.trunk.dim * hidden))
    x = torch.randn(rows, c.trunk.dim, device=device, dtype=dtype)
    w = torch.randn(hidden, c.trunk.dim, device=device, dtype=dtype)
    times, begun = list[float](), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        y = x @ w.mT
        y @ w  # the gradient of x
        y.mT @ x  # the gradient of w
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 6.0 * rows * c.trunk.dim * hidden / min(times[1:])  # the first one warms up
