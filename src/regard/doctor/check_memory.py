"""Check of memory: the predicted need of a step, on a fake model, against the free memory; and settings that fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard import measure
from regard.data.example_store import Examples
from regard.data.tensor_store import TensorRows
from regard.doctor.case import DoctorCase, DoctorFinding, finding_ok, finding_problem
from regard.doctor.check_data import rows_of_batches
from regard.measure.format_estimate import format_si
from regard.measure.peak_memory import resident_bytes
from regard.native.free_memory import free_memory_bytes
from regard.training.loop import should_compile

FULL = 0.95  # usable share of the free memory


@dataclass(frozen=True)
class MicroBatch:
    """The size of a micro-batch: rows, tokens in a row, and the number of micro-batches in a step."""

    rows: int
    width: int
    accumulate: int = 1
    recompute: bool = False


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of a step: bytes held before, bytes it adds, and free bytes; a smaller size, where it does not fit."""

    size: MicroBatch
    held: int
    adds: int
    free: float
    smaller: MicroBatch | None = None

    @property
    def fits(self) -> bool:
        return self.adds <= FULL * self.free  #: S163

    @property
    def peak(self) -> int:
        return self.held + self.adds


def estimate_need(case: DoctorCase) -> MemoryNeed:
    """Predict the memory of a step before anything is read or run."""
    size, device = largest_micro_batch(case), case.run.device
    free, now = available_bytes(device), resident_bytes(device)
    found = MemoryNeed(size, now, added_bytes(case, size) if measure.can_fake(case.model.c) else 0, free)
    return found if found.fits else replace(found, smaller=find_fitting(case, size, free))


def check_memory(case: DoctorCase) -> DoctorFinding:
    found = case.need
    size, smaller = found.size, found.smaller
    told = (f"steps on {size.rows:,} rows of {size.width:,} tokens should need at most {format_si(found.peak, 'B')} "
            "of "
            f"{format_si(found.held + found.free, 'B')}")  # fmt: skip
    if not found.adds:
        probed = (
            ""
            if case.course.peak is None
            else f"; in the probe it needed {format_si(found.held + case.course.peak, 'B')}"
        )
        return finding_ok(f"the memory of a step cannot be predicted{probed}")
    if found.fits:
        seen, how = case.course.peak, "in the probe, not compiled," if should_compile(case.run) else "in the probe"
        return finding_ok(told if seen is None else f"{told}; {how} they needed {format_si(found.held + seen, 'B')}")
    if smaller is None:
        return finding_problem(
            f"{told}; one short row is still too much", f"model.depth={max(1, case.model.c.trunk.depth // 2)}"
        )
    less = format_si(found.held + added_bytes(case, smaller), "B")
    return finding_problem(f"{told}; with the proposed settings {less}", settings_to_type(case, smaller))


def largest_micro_batch(case: DoctorCase) -> MicroBatch:
    """The largest micro-batch of the run: that with the longest row, or for short rows that with the most memory."""
    c, rows = case.settings, rows_of_batches(case.data)
    width = c.context
    if isinstance(rows, Examples) and not c.pack:
        width = min(width, int(rows.lengths().max()) + 2)
    if isinstance(rows, TensorRows) and c.batch_tokens is not None:
        return MicroBatch(
            max(1, c.batch_tokens // max(1, int(rows.lengths().min()))),
            width,
            c.gradient_accumulation,
            c.activation_checkpointing,
        )
    if c.batch_tokens is None:
        return MicroBatch(c.batch_size, width, c.gradient_accumulation, c.activation_checkpointing)
    seen = [max(table.shape for name, table in batch.items() if name in ("ids", "source")) for batch in case.read()]
    many, width = max([(max(1, c.batch_tokens // width), width), *seen], key=lambda shape: shape[0] * shape[1])
    return MicroBatch(many, width, c.gradient_accumulation, c.activation_checkpointing)


def added_bytes(case: DoctorCase, size: MicroBatch) -> int:
    """Bytes at the peak of a step beyond those held before, on the GPU or in this process."""
    bill = replace(predict_micro_batch(case, size), optimizer=0)  # weights and optimizer state are allocated already
    return (
        bill.passing
        if case.run.device.type == "cuda"
        else measure.process_bytes(bill, should_compile(case.run)) - resident_bytes()
    )


def predict_micro_batch(case: DoctorCase, size: MicroBatch) -> measure.StepPrediction:
    c, device = case.model.c, case.run.device.type
    return measure.predict_step(c, batch=size.rows, context=size.width, optimizer=case.settings.optimizer,
                           accumulate=size.accumulate, device=device, compiled=should_compile(case.run),
                           recompute=size.recompute)  # fmt: skip


def available_bytes(device: torch.device) -> float:
    """Bytes that this process can still allocate."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return free_memory_bytes()


# ---------------------------------------------------------------- settings that fit


def find_fitting(case: DoctorCase, size: MicroBatch, free: float) -> MicroBatch | None:
    """A size that fits: fewer rows in more micro-batches; then activation checkpointing, then shorter rows. Each is
    predicted."""
    for start in (size, replace(size, recompute=True), *shorter_micro_batches(size)):
        found = fewer_rows(case, start, free)
        if found is not None:
            return found
    return None


def shorter_micro_batches(size: MicroBatch) -> Iterator[MicroBatch]:
    width = size.width // 2
    while width >= 16:
        yield replace(size, width=width, recompute=True)
        width //= 2


def fewer_rows(case: DoctorCase, size: MicroBatch, free: float) -> MicroBatch | None:
    """Split a step into micro-batches of fewer rows that fit, with the same tokens; None where a single row does not
    fit."""
    rows = size.rows
    while rows:
        tried = replace(size, rows=rows, accumulate=size.accumulate * -(-size.rows // rows))
        if (adds := added_bytes(case, tried)) <= FULL * free:
            return tried
        fewer = min(rows - 1, int(rows * FULL * free / adds))
        rows = 1 << fewer.bit_length() >> 1 if fewer else int(rows > 1)  # a power of two, and finally one row
    return None


def settings_to_type(case: DoctorCase, size: MicroBatch) -> str:
    """The changed settings, as typed on the command line."""
    c, words, most = case.settings, list[str](), largest_micro_batch(case)
    rows = (
        f"train.batch_size={size.rows}"
        if c.batch_tokens is None
        else f"train.batch_tokens={c.batch_tokens * size.rows // most.rows}"
    )
    words += [rows] if size.rows < most.rows else []
    words += [f"train.gradient_accumulation={size.accumulate}"] if size.accumulate != c.gradient_accumulation else []
    words += [f"train.context={size.width}"] if size.width < most.width else []
    words += ["train.activation_checkpointing=true"] if size.recompute and not c.activation_checkpointing else []
    return " ".join(words)
