"""How long a step will take here, and what it will hold: the work of a ghost, at the speed of a calibrated machine."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

from regard import config
from regard.core.layers import product_dtype
from regard.measure import floor
from regard.measure.flops import flops
from regard.measure.ghost import outline, precision_here
from regard.measure.lengths import checked
from regard.measure.machine import AGAIN, Machine, here, machine
from regard.measure.memory import Optimizer, parameter_memory
from regard.measure.updates import moving
from regard.measure.work import work

# of what comes and goes, so much more is held in pieces that nothing fits into: of the first LARGE bytes, and of the
# rest (found on eager models here, with dropout and without); compiled code has none
SLACK, LESS, LARGE = 0.4, 0.15, 120 * 10**6
FUSED = 0.6  # of what comes and goes, so much is left on a GPU when the step is compiled (two models, there)
LIBRARIES, COMPILER = 25 * 2**20, 80 * 2**20  # bytes of code that the first step brings in, and a compiled one


@dataclass(frozen=True)
class Prediction:
    """One optimizer step, before it is taken.

    `parts` are seconds, by what they go to. `passing` are bytes that come and go within the step, gradients among
    them. Where there is no calibration, `note` says so, and the time is a floor: the matrix products alone.
    """

    step_seconds: float
    step_flops: float
    weights: int
    optimizer: int
    passing: int
    parts: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def calibrated(self) -> bool:
        return not self.note

    @property
    def memory(self) -> int:
        """The most bytes that tensors hold at once."""
        return self.weights + self.optimizer + self.passing


def predict(
    c: config.Model, *, batch: int = 1, context: int | None = None, optimizer: Optimizer | None = None,
    accumulate: int = 1, device: str | Machine = "cpu", compiled: bool = False, recompute: bool = False,
) -> Prediction:  # fmt: skip
    """What a training step will cost on a device of this machine, or on a machine that is known, before it is taken.

    With `recompute`, every block runs once more in backward. Without a calibration, half a second of multiplying
    gives a floor for the time.
    """
    context, optimizer, said = checked(c, context), optimizer or config.AdamW(), list[str]()
    place = str(device.about["device"]) if isinstance(device, Machine) else device
    elsewhere = isinstance(device, Machine)
    c, kind = (c, torch.bfloat16) if elsewhere else (precision_here(c, place), product_dtype(place))
    asked, moves = work(c, batch, context, here(place), compiled, recompute), moving(c, optimizer, kind)
    shape = outline(c)
    held = parameter_memory(shape, optimizer)
    peak = int(FUSED * asked.peak) if compiled and place == "cuda" else asked.peak
    passing = max(peak + (held.gradients if accumulate > 1 else 0), held.gradients + moves.peak)
    count = flops(shape, context, recompute=recompute).training_sequence * batch * accumulate
    known = device if isinstance(device, Machine) else machine(place, said.append)
    if known is not None:
        seconds, parts = known.step(asked, moves, c.precision, accumulate)
    else:
        seconds = count / floor.multiplying(c, batch * context, place)
        parts, said = {"products": seconds}, said or [f"this machine is not calibrated; {AGAIN}"]
    return Prediction(seconds, count, held.weights, held.optimizer, passing, parts, *said)


def process(bill: Prediction, compiled: bool) -> int:
    """The most bytes that this process will hold: what it holds now, its weights among that, and what a step adds."""
    more = COMPILER if compiled else pieces(bill.passing)
    return resident() + bill.optimizer + bill.passing + LIBRARIES + more


def pieces(passing: int) -> int:
    """Bytes between those that come and go, too few in one place for anything else."""
    return int(SLACK * min(passing, LARGE) + LESS * max(0, passing - LARGE))


def resident() -> int:
    """Bytes of this process that are in memory now; where the system does not tell, the most that were."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource  # not on every system

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
