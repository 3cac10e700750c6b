"""Poisonous batches: after the probe all its batches are asked again, and one stands out that is far worse than the
others and as bad as a guess. (What is random cannot be told better than by a guess, whatever has been learned.)
"""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from regard.lens.views import still
from regard.tasks.objective import whole
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong
from regard.train.doctor.rates import trouble
from regard.train.doctor.start import chance
from regard.train.evaluate import moved
from regard.train.health import given

FAR = 8.0  # robust standard deviations above the median
GUESSED = 0.95  # of the loss of a guess
SHOWN = 60  # characters of a row that are shown


@dataclass(frozen=True)
class Spike:
    """A micro-batch by its step in the run, its number, and its loss; the rows of it that stand out."""

    step: int
    number: int
    loss: float
    rows: list[int]


def batches(case: Case) -> Finding:
    if not case.course.sound or trouble(case.course.losses):
        broken = [step.number for step in case.course.taken if not math.isfinite(step.loss)]
        return look("the probe did not learn, so a bad batch would not stand out" +
                    (f"; the loss of step {broken[0] + 1} was the first that is no number" if broken else ""),
                    "mend the learning rate first")  # fmt: skip
    numbers = [number for step in case.course.taken for number in case.numbers(step.number)]
    losses = {number: asked(case, case.batch(number)) for number in numbers}
    usual = [loss for loss in losses.values() if math.isfinite(loss)]
    middle, spread = around(usual)
    bound = max(middle + FAR * spread, GUESSED * guess(case))  #: S161
    far = [number for number, loss in losses.items() if not loss <= bound]
    if not far:
        return fine(f"{len(losses)} batches, losses from {min(usual):.3f} to {max(usual):.3f}, none stands out")
    worst = max(far, key=lambda number: math.inf if math.isnan(losses[number]) else losses[number])
    spike = Spike(worst // case.settings.accumulate + 1, worst, losses[worst], rows(case, worst, bound))
    more = f", and {len(far) - 1} more like it" if len(far) > 1 else ""
    return wrong(f"the batch of step {spike.step} has a loss of {spike.loss:.3g} where the others have {middle:.3f} ± "
                 f"{spread:.3f}{more}: {named(case, spike)}", remedy(case))  # fmt: skip


def asked(case: Case, batch: Any) -> float:
    """The loss of a batch after the probe, without dropout."""
    model, objective = case.course.model, case.run.objective
    with still(model):
        return float(whole(objective.sums(model, moved(batch, case.run.device)), objective.parts(batch)))


def around(losses: list[float]) -> tuple[float, float]:
    """The median, and the spread around it that one bad batch does not change: 1.48 times the median distance."""
    middle = statistics.median(losses)
    return middle, max(1.4826 * statistics.median(abs(loss - middle) for loss in losses), 0.02 * abs(middle), 1e-6)


def guess(case: Case) -> float:
    """The loss of somebody who knows nothing: by the number of answers, or as it was before the first step."""
    known = chance(case)
    return case.course.losses[0] if known is None else known


def rows(case: Case, number: int, bound: float) -> list[int]:
    """The rows of a batch that stand out by themselves."""
    batch = case.batch(number)
    many = len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)
    alone = [asked(case, one(batch, row)) for row in range(many)]
    return [row for row, loss in enumerate(alone) if not loss <= bound] or list(range(many))


def one(batch: Any, row: int) -> Any:
    if isinstance(batch, dict):
        return {name: table[row : row + 1] for name, table in batch.items()}
    return batch[row : row + 1]


def named(case: Case, spike: Spike) -> str:
    """The rows by their numbers in the data, and how the first begins."""
    names = case.data.names(spike.number) if hasattr(case.data, "names") else spike.rows
    whole = [str(names[row]) for row in spike.rows] if len(names) > max(spike.rows) else list(map(str, names))
    place = "windows that begin at tokens" if hasattr(case.data, "shards") else "rows"
    told = f"{place} {', '.join(whole[:5])}" + (f" and {len(whole) - 5} more" if len(whole) > 5 else "")
    return f"{told}{beginning(case, case.batch(spike.number), spike.rows[0])}"


def beginning(case: Case, batch: Any, row: int) -> str:
    if case.tokenizer is None or not case.textual:
        return ""
    ids = given(batch, case.model)
    text = case.tokenizer.decode(ids.get("source", ids["ids"])[row].tolist())
    return f", the first {' '.join(text.split())[:SHOWN]!r}"


def remedy(case: Case) -> str:
    spike = case.settings.guard.spike
    if spike is None:
        return "train.guard.spike=8"
    return f"mend or remove these rows; train.guard.spike={spike:g} passes over steps whose loss leaps"
