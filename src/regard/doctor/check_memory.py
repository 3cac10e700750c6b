"""Will a step fit in memory? What a ghost of it needs, against what there is; and a setting that fits, if need be."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from regard import measure
from regard.data import Arrays, Examples
from regard.measure.predict import resident
from regard.measure.told import si
from regard.train.doctor.case import Case
from regard.train.doctor.corpus import held
from regard.train.doctor.findings import Finding, fine, wrong
from regard.train.loop import compiled

FULL = 0.95  # of what there is: the rest is for whatever comes along


@dataclass(frozen=True)
class Size:
    """A micro-batch: rows of so many tokens, and how many make a step."""

    rows: int
    width: int
    accumulate: int = 1
    recompute: bool = False


@dataclass(frozen=True)
class Need:
    """Bytes that are held already, that a step of this size adds to them, and that are free; a smaller size, where
    that is too much."""

    size: Size
    held: int
    adds: int
    free: float
    smaller: Size | None = None

    @property
    def fits(self) -> bool:
        return self.adds <= FULL * self.free  #: S163

    @property
    def peak(self) -> int:
        return self.held + self.adds


def need(case: Case) -> Need:
    """Before anything is read or run."""
    size, device = largest(case), case.run.device
    free, now = available(device), torch.cuda.memory_allocated(device) if device.type == "cuda" else resident()
    found = Need(size, now, added(case, size) if measure.tellable(case.model.c) else 0, free)
    return found if found.fits else replace(found, smaller=fitting(case, size, free))


def memory(case: Case) -> Finding:
    found = case.need
    size, smaller = found.size, found.smaller
    told = (f"steps on {size.rows:,} rows of {size.width:,} tokens should hold {si(found.peak, 'B')} at most, of "
            f"{si(found.held + found.free, 'B')}")  # fmt: skip
    if not found.adds:
        probed = "" if case.course.peak is None else f"; in the probe it held {si(found.held + case.course.peak, 'B')}"
        return fine(f"what a step holds cannot be told before it runs{probed}")
    if found.fits:
        seen, how = case.course.peak, "in the probe, not compiled," if compiled(case.run) else "in the probe"
        return fine(told if seen is None else f"{told}; {how} they held {si(found.held + seen, 'B')}")
    if smaller is None:
        return wrong(f"{told}; one short row is too much still", f"model.depth={max(1, case.model.c.trunk.depth // 2)}")
    less = si(found.held + added(case, smaller), "B")
    return wrong(f"{told}; with what is proposed {less}", written(case, smaller))


def largest(case: Case) -> Size:
    """The largest micro-batch that there will be: with the longest row of all; or of short rows, by what they add."""
    c, rows = case.settings, held(case.data)
    width = c.context
    if isinstance(rows, Examples) and not c.pack:
        width = min(width, int(rows.lengths().max()) + 2)
    if isinstance(rows, Arrays) and c.tokens is not None:
        return Size(max(1, c.tokens // max(1, int(rows.lengths().min()))), width, c.accumulate, c.recompute)
    if c.tokens is None:
        return Size(c.batch, width, c.accumulate, c.recompute)
    seen = [max(table.shape for name, table in batch.items() if name in ("ids", "source")) for batch in case.read()]
    many, width = max([(max(1, c.tokens // width), width), *seen], key=lambda shape: shape[0] * shape[1])
    return Size(many, width, c.accumulate, c.recompute)


def added(case: Case, size: Size) -> int:
    """Bytes at the peak of a step, beyond those held before: of a GPU's tensors, or of this process."""
    bill = replace(predicted(case, size), optimizer=0)  # weights and the optimizer's state are there already
    return bill.passing if case.run.device.type == "cuda" else measure.process(bill, compiled(case.run)) - resident()


def predicted(case: Case, size: Size) -> measure.Prediction:
    c, device = case.model.c, case.run.device.type
    return measure.predict(c, batch=size.rows, context=size.width, optimizer=case.settings.optimizer,
                           accumulate=size.accumulate, device=device, compiled=compiled(case.run),
                           recompute=size.recompute)  # fmt: skip


def available(device: torch.device) -> float:
    """Bytes that this process can have besides those it holds."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return min(free_here(), room_of_group())


def free_here() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf8").splitlines()
        return next(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float("inf")  # a system that does not tell


def room_of_group() -> float:
    """What a container leaves, where this process is in one."""
    folder = Path("/sys/fs/cgroup")
    try:
        most, now = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return float("inf") if most == "max" else float(int(most) - int(now))
    except (OSError, ValueError):
        return float("inf")


# ---------------------------------------------------------------- a setting that fits


def fitting(case: Case, size: Size, free: float) -> Size | None:
    """As many rows as fit, in as many micro-batches more; then recomputing, then shorter rows. Each is predicted."""
    for start in (size, replace(size, recompute=True), *shorter(size)):
        found = fewer(case, start, free)
        if found is not None:
            return found
    return None


def shorter(size: Size) -> Iterator[Size]:
    width = size.width // 2
    while width >= 16:
        yield replace(size, width=width, recompute=True)
        width //= 2


def fewer(case: Case, size: Size, free: float) -> Size | None:
    """The same tokens in a step, in micro-batches that fit; nothing where one row does not."""
    rows = size.rows
    while rows:
        tried = replace(size, rows=rows, accumulate=size.accumulate * -(-size.rows // rows))
        if (adds := added(case, tried)) <= FULL * free:
            return tried
        fewer = min(rows - 1, int(rows * FULL * free / adds))
        rows = 1 << fewer.bit_length() >> 1 if fewer else int(rows > 1)  # a power of two, and one row at last
    return None


def written(case: Case, size: Size) -> str:
    """The settings as they are typed."""
    c, words, most = case.settings, list[str](), largest(case)
    rows = f"train.batch={size.rows}" if c.tokens is None else f"train.tokens={c.tokens * size.rows // most.rows}"
    words += [rows] if size.rows < most.rows else []
    words += [f"train.accumulate={size.accumulate}"] if size.accumulate != c.accumulate else []
    words += [f"train.context={size.width}"] if size.width < most.width else []
    words += ["train.recompute=true"] if size.recompute and not c.recompute else []
    return " ".join(words)
