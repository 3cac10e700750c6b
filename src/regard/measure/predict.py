"""Step prediction: the time and the memory of a training step on this machine.

work of a fake model (step_work.py)  ──►  charges  ──►  ladders of the calibration  ──►  seconds
"""

from dataclasses import dataclass, field

import torch

from regard import config
from regard.core.layers import product_dtype
from regard.measure import calibration
from regard.measure.calibration import CALIBRATE_HINT, CalibratedMachine, load_calibration, local_device
from regard.measure.fake_model import check_context, meta_model, precision_on_device
from regard.measure.flops import count_flops
from regard.measure.memory import OptimizerConfig, parameter_memory
from regard.measure.peak_memory import resident_bytes
from regard.measure.step_work import measure_step_work, optimizer_work

# fragmentation: extra bytes of temporary memory in fragments too small for reuse: SLACK of the first LARGE
# bytes and LESS of the rest (measured on eager models here, with dropout and without); compiled code has none
SLACK, LESS, LARGE = 0.4, 0.15, 120 * 10**6
FUSED = 0.6  # share of temporary memory that remains on a GPU when the step is compiled (two models, there)
LIBRARIES, COMPILER = 25 * 2**20, 80 * 2**20  # bytes of code loaded by the first step, and by a compiled one
# The time is a sum over measured speeds of single operations, with one factor from whole steps (`longer`). A sum
# also tells what the time is spent on, and holds for models unlike those that were measured.


@dataclass(frozen=True)
class StepPrediction:
    """The prediction of one optimizer step.

    `parts` are seconds by kind of work. `passing` are temporary bytes within the step, gradients included. Without a
    calibration `note` says so, and the time is a lower bound: the matrix products alone.
    """

    step_seconds: float
    step_flops: float
    weights: int
    optimizer: int
    passing: int
    parts: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def is_calibrated(self) -> bool:
        return not self.note

    @property
    def memory(self) -> int:
        """The peak of tensor bytes."""
        return self.weights + self.optimizer + self.passing


def predict_step(
    c: config.Model, *, batch: int = 1, context: int | None = None, optimizer: OptimizerConfig | None = None,
    accumulate: int = 1, device: str | CalibratedMachine = "cpu", compiled: bool = False, recompute: bool = False,
) -> StepPrediction:  # fmt: skip
    """Predict the cost of a training step on a device of this machine, or on a machine with a known calibration.

    With `recompute`, every block runs once more in backward. Without a calibration, half a second of matrix products
    gives a lower bound for the time.
    """
    context, optimizer, said = check_context(c, context), optimizer or config.AdamW(), list[str]()
    place = str(device.about["device"]) if isinstance(device, CalibratedMachine) else device
    elsewhere = isinstance(device, CalibratedMachine)
    # on a CPU without bf16 instructions "mixed" multiplies in fp32; for another machine that is unknown here
    c, kind = (c, torch.bfloat16) if elsewhere else (precision_on_device(c, place), product_dtype(place))
    asked, moves = (
        measure_step_work(c, batch, context, local_device(place), compiled, recompute),
        optimizer_work(c, optimizer, kind),
    )
    shape = meta_model(c)
    held = parameter_memory(shape, optimizer)
    peak = int(FUSED * asked.peak) if compiled and place == "cuda" else asked.peak
    # the peak is in backward, with the gradients of earlier micro-batches; or in the update, whose gradients are
    # held after the activations are freed
    passing = max(peak + (held.gradients if accumulate > 1 else 0), held.gradients + moves.peak)
    count = count_flops(shape, context, recompute=recompute).training_sequence * batch * accumulate
    known = device if isinstance(device, CalibratedMachine) else load_calibration(place, said.append)
    if known is not None:  # without it there is one speed alone, and elementwise work, which has no FLOPs, is missing
        seconds, parts = known.step(asked, moves, c.precision, accumulate)
    else:
        seconds = count / calibration.matmul_speed(c, batch * context, place)
        parts, said = {"products": seconds}, said or [f"this machine is not calibrated; {CALIBRATE_HINT}"]
    return StepPrediction(seconds, count, held.weights, held.optimizer, passing, parts, *said)


def process_bytes(bill: StepPrediction, compiled: bool) -> int:
    """The peak of this process: the bytes it holds now, its weights included, and those that a step adds."""
    more = COMPILER if compiled else fragmentation_bytes(bill.passing)
    return resident_bytes() + bill.optimizer + bill.passing + LIBRARIES + more


def fragmentation_bytes(passing: int) -> int:
    """Fragmentation: free bytes between temporary tensors, in fragments too small for reuse."""
    return int(SLACK * min(passing, LARGE) + LESS * max(0, passing - LARGE))
