"""How fast a machine is: a ladder for everything that a step asks of it.

A ladder says how much is done in a second, by the size of one piece of work:

    product.float32   1e6 operations: 7.0e10 a second      1e9 operations: 9.5e10 a second

Between its rungs a ladder is straight in the logarithms; beyond its ends it is level. The ladder `whole` is of
another kind. Its pieces are steps, by the seconds that their parts should take: the parts are timed warm, and in a
whole step they find caches cold and threads asleep.
"""

import json
import math
import platform
import warnings
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard import config
from regard.config.errors import unwritable
from regard.data import store
from regard.measure.work import Work

Ladder = tuple[tuple[float, float], ...]  # (size, amount in a second), sizes rising
FORMAT = 1
AGAIN = "run regard estimate --calibrate"
NEEDED = ("call", "kernel", "fresh", "touch", "update", "plain.float32", "product.float32", "look.float32")
COMPILED = 0.7  # of what a step takes longer than its parts, so much is left when it is compiled (five models, here)
PARTS = {"product": "products", "batch": "products", "look": "attention", "look_back": "attention",
         "call": "calls", "kernel": "calls", "fresh": "new memory"}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What was measured, and where: it holds for the same processor, threads and torch alone."""

    about: dict[str, str | int]
    ladders: dict[str, Ladder]

    def step(self, asked: Work, moves: Work, precision: str, times: int = 1) -> tuple[float, dict[str, float]]:
        """Seconds of a step that does `times` what is `asked` and then moves the weights; and what they go to."""
        parts = dict.fromkeys((*dict.fromkeys(PARTS.values()), "elementwise", "optimizer"), 0.0)
        for name, seconds in self.spent(asked).items():
            parts[PARTS.get(name.partition(".")[0], "elementwise")] += times * seconds
        spent = self.spent(moves)
        if self.about["device"] != "cpu":  # which is asked to move all weights at once
            spent.pop("call", None)
        parts["optimizer"] = sum(spent.values())
        rest = sum(parts.values()) - parts["calls"]
        # a processor does one thing after the other; an accelerator computes while it is asked for more
        total = rest + parts["calls"] if self.about["device"] == "cpu" else max(rest, parts["calls"])
        longer = self.longer(total, precision, compiled=("kernel", 1) in asked.charges)
        return total * longer, {name: seconds * longer for name, seconds in parts.items()}

    def longer(self, seconds: float, precision: str, compiled: bool) -> float:
        """How many times as long a whole step takes as its parts."""
        kind = "fp32" if precision == "fp32" else "mixed"
        if f"whole.{kind}" not in self.ladders:  # while it is being measured
            return 1.0
        excess = 1 / self.rate(f"whole.{kind}", seconds) - 1
        return 1 + excess * (COMPILED if compiled else 1)

    def spent(self, work: Work) -> dict[str, float]:
        """Seconds by ladder."""
        found: dict[str, float] = {}
        for (name, size), count in work.charges.items():
            found[name] = found.get(name, 0.0) + count * size / self.rate(name, size)
        return found

    def rate(self, name: str, size: float) -> float:
        rungs = self.ladder(name)
        above = bisect([rung[0] for rung in rungs], size)
        if above in (0, len(rungs)):
            return rungs[min(above, len(rungs) - 1)][1]
        (low, slow), (high, fast) = rungs[above - 1 : above + 1]
        part = math.log(size / low) / math.log(high / low)
        return math.exp((1 - part) * math.log(slow) + part * math.log(fast))

    def ladder(self, name: str) -> Ladder:
        """By its name, or the nearest that was measured: the same in fp32, or moving bytes."""
        what, _, kind = name.partition(".")
        near = (name, f"{what}.float32", f"plain.{kind}", "plain.float32")
        return next(self.ladders[each] for each in near if each in self.ladders)

    def facts(self) -> dict[str, str | int]:
        """For people: where it was measured, and the best of what was."""
        best = {name: max(rate for _, rate in rungs) for name, rungs in self.ladders.items()}
        told = {f"products, {name.partition('.')[2]}": f"{best[name] / 1e9:,.0f} GFLOP/s"
                for name in best if name.startswith("product.")}  # fmt: skip
        far = self.ladders["plain.float32"][-1][1]
        return {**self.about, **told, "memory": f"{far / 1e9:,.1f} GB/s", "one call": f"{1e6 / best['call']:,.1f} us"}


def here(device: str) -> str:
    """The device, if this machine has it: what it would do elsewhere nobody has measured."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device not in ("cpu", found and found.type):
        raise config.ConfigError(f"device: {device!r} is not available here, and predictions are of this machine; "
                                 f"choose {found.type if found else 'cpu'}")  # fmt: skip
    return device


def surroundings(device: str) -> dict[str, str | int]:
    """What a measurement holds for."""
    return {"device": device, "processor": processor(device), "threads": torch.get_num_threads(),
            "torch": torch.__version__}  # fmt: skip


def processor(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
        named = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not on Linux
        named = platform.processor() or platform.machine()
    return f"{named}, {torch.backends.cpu.get_cpu_capability()}"


# ---------------------------------------------------------------- keeping


def place() -> Path:
    return store.place(None) / "machine.json"


def keep(made: Machine) -> None:
    """Beside what was measured of other devices."""
    known = store.get(place())
    mine = {"format": FORMAT, "about": made.about, "ladders": made.ladders}
    table = {**(known if isinstance(known, dict) else {}), str(made.about["device"]): mine}
    try:
        store.put(place(), [(json.dumps(table, indent=1) + "\n").encode()])
    except OSError as problem:
        raise unwritable(place(), problem) from None


def machine(device: str = "cpu", notice: Callable[[str], object] = warnings.warn) -> Machine | None:
    """The calibration that was kept for this machine, if there is one; one of another machine is said and ignored.

    A file that is damaged, or that an older version wrote, is none: whoever asks will say that nothing was measured.
    """
    path, now = place(), surroundings(device)
    try:
        found = parsed(store.get(path), device)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    then = now if found is None else found.about
    for what in (name for name in now if then.get(name) != now[name]):
        notice(f"{path}: measured with {what} {then.get(what)}, and here it is {now[what]}; {AGAIN}")
        return None
    return found


def parsed(table: Any, device: str) -> Machine | None:
    """What a file says of a device, if anything; raises where it is damaged."""
    mine = None if table is None else table.get(device)
    if mine is None:
        return None
    if mine["format"] != FORMAT:
        raise ValueError(f"format {mine['format']}")
    ladders = {str(name): tuple((float(size), float(rate)) for size, rate in rungs)
               for name, rungs in mine["ladders"].items()}  # fmt: skip
    for name, rungs in {**ladders, **{name: ladders[name] for name in NEEDED}}.items():
        sizes = [size for size, _ in rungs]
        if not rungs or sizes != sorted(set(sizes)) or not all(0 < each < math.inf for rung in rungs for each in rung):
            raise ValueError(name)
    return Machine(dict(mine["about"]), ladders)
