"""Checks of a probe run: learning rate, gradients and bad batches.

The probe reaches the run's peak learning rate. Afterwards all its batches are evaluated again: the loss of a bad batch
is far above the others and as high as that of a uniform guess, since random data cannot be predicted any better.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard import config
from regard.data.batching import batch_to_device
from regard.doctor.case import LR_RAMP, DoctorCase, DoctorFinding, finding_note, finding_ok, finding_problem
from regard.doctor.check_weights import uniform_loss
from regard.doctor.probe_run import ProbeRun
from regard.lens.attention_maps import evaluation_mode
from regard.tasks.task import combine_losses
from regard.training.diagnostics import model_inputs, peak_lr_factor

RISEN = 1.3  # the loss at the beginning times this counts as risen
HASTY = 0.3  # largest relative update of a layer in a step
IDLE, IDLE_TUNED = 3e-4, 3e-5  # relative update below which a higher rate is tried; a trained model needs less
STILL = 1e-5  # relative update of blocks that hardly move
LOWER, SHORT = 5, 20  # powers of ten to try, and the steps of each trial
FASTER, LEAST = 5, 0.02  # required gain of a higher rate: times the current one, and of the first loss
FAINT = 1e-4  # smallest ratio of the layers' gradients


def check_learning_rate(case: DoctorCase) -> DoctorFinding:
    course, said = case.course, format_rates(case.settings.optimizer, 1.0)
    rate = (
        f"{said} (a factor of {peak_lr_factor(case.run):.2g} at its highest)" if peak_lr_factor(case.run) != 1 else said
    )
    haste = max(trunk_layers(course.usual("updates")).values(), default=0.0)
    if why := loss_trouble(course.losses):
        best = find_lower_rate(case)
        if best is None:
            return finding_problem(f"with {rate} {why}, and also with {10**LOWER:,} times less: the cause is "
                                   "another",
                         "correct the other findings first")  # fmt: skip
        power, late = best
        return finding_problem(f"with {rate} {why}; with {10**power:,} times less it reaches {late:.3f} in {SHORT} "
                               "steps",
                     format_rates(case.settings.optimizer, 10.0**-power))  # fmt: skip
    moved = f"a step moves blocks by {format_percent(haste)} of their weights"
    told = f"the loss goes from {course.losses[0]:.3f} to {final_loss(course.losses):.3f} in {len(course.losses)} steps"
    if haste > HASTY:
        return finding_note(f"{told}, but {moved}", format_rates(case.settings.optimizer, 0.1))
    if is_idle(case, haste):
        if (best := find_better_rate(case)) is not None:
            power, late = best
            return finding_problem(f"{told} with {rate}, and {moved}: it is too low; with {10**power:,} times more the "
                                   "loss "
                         f"reaches {late:.3f} in {SHORT} steps",
                         format_rates(case.settings.optimizer, 10.0**power))  # fmt: skip
        if haste < STILL:
            return finding_note(f"{told} with {rate}, but {moved}: it may be too low",
                        format_rates(case.settings.optimizer, 10.0))  # fmt: skip
    return finding_ok(f"{told} with {rate}; {moved}")


def loss_trouble(losses: Sequence[float]) -> str:
    """Why these losses show no learning; empty if they do."""
    if not math.isfinite(losses[-1]) or sum(not math.isfinite(loss) for loss in losses) > len(losses) // 5:
        first = next(place for place, loss in enumerate(losses) if not math.isfinite(loss))
        return f"the loss is not finite from step {first + 1} of the probe on"
    start, end = min(losses[0], statistics.median(losses[:3])), final_loss(losses)
    if end > RISEN * start + 0.1:  #: S159
        return f"the loss rises from {start:.3f} to {end:.3f} in {len(losses)} steps"
    return ""


def final_loss(losses: Sequence[float]) -> float:
    """The median of the last third, robust against single batches."""
    return statistics.median(losses[-max(3, len(losses) // 3) :])


def find_lower_rate(case: DoctorCase) -> tuple[int, float] | None:
    """A lower learning rate that learns, as a power of ten, with the loss at the end of a short trial.

    A short trial favours rates that are too high: a tenth of the best one is taken, if it learns as well (Smith 2017).
    """
    found = dict[int, float]()
    for power in range(1, LOWER + 1):
        case.progress(f"trying {10**power:,} times less")
        ramp = [factor * 10.0**-power for factor in case.factors[: SHORT - LR_RAMP]]
        losses = ProbeRun(case).run(ramp + [ramp[-1]] * (SHORT - len(ramp))).losses
        if final_loss(losses) < losses[0]:
            found[power] = final_loss(losses)
    if not found:
        return None
    best = min(found, key=lambda power: found[power])
    power = best + 1 if best + 1 in found else best
    return power, found[power]


def is_idle(case: DoctorCase, haste: float) -> bool:
    """Whether the trainable blocks move so little that a higher rate is worth a trial; not in the middle of a run,
    where the schedule may have decayed."""
    least = IDLE if case.fresh else IDLE_TUNED
    return case.run.step == 0 and bool(trunk_layers(case.course.usual("updates"))) and haste < least


def find_better_rate(case: DoctorCase) -> tuple[int, float] | None:
    """A higher learning rate that learns far more, as a power of ten, with the loss at the end of a short trial.

    As for lower rates: a tenth of the best one is taken, if it also learns far more.
    """
    start, now = case.course.losses[0], final_loss(case.course.losses)
    found = dict[int, float]()
    for power in range(1, LOWER + 1):
        case.progress(f"trying {10**power:,} times more")
        ramp = [factor * 10.0**power for factor in case.factors[: SHORT - LR_RAMP]]
        losses = ProbeRun(case).run(ramp + [ramp[-1]] * (SHORT - len(ramp))).losses
        if loss_trouble(losses):
            break
        if start - final_loss(losses) > max(FASTER * (start - now), LEAST * abs(start)):
            found[power] = final_loss(losses)
    if not found:
        return None
    best = min(found, key=lambda power: found[power])
    power = best - 1 if best - 1 in found else best
    return power, found[power]


def format_percent(share: float) -> str:
    """A percentage with two decimals; with one significant figure if that would be 0.00%."""
    return f"{share:.2%}" if share >= 5e-5 or not share else f"{100 * share:.1g}%"


def format_rates(c: config.Optimizer, scale: float) -> str:
    """The optimizer's learning rates, as typed on the command line."""
    names = ("lr", "adam_lr") if isinstance(c, config.Muon) else ("lr",)
    return " ".join(f"train.optimizer.{name}={getattr(c, name) * scale:.3g}" for name in names)


def check_gradients(case: DoctorCase) -> DoctorFinding:
    course = case.course
    norms, sizes = [step.norm for step in course.taken], trunk_layers(course.usual("gradients"))
    finite = [norm for norm in norms if math.isfinite(norm)]
    if not finite:
        return finding_problem(
            "no step of the probe has gradients that are finite", format_rates(case.settings.optimizer, 0.01)
        )
    middle, clip = statistics.median(finite), case.settings.max_grad_norm
    if clip is None and middle > 100:
        return finding_note(
            f"the median norm of the gradients is {middle:.3g}, and it is not clipped", "train.max_grad_norm=1.0"
        )
    least, most = min(sizes.values(), default=0.0), max(sizes.values(), default=0.0)
    if least and least < FAINT * most and not loss_trouble(course.losses):
        weak, post = min(sizes, key=lambda name: sizes[name]), case.model.c.trunk.norm_placement == "post"
        return finding_note(f"the gradients of {weak} are {least / most:.1g} of the largest layer's: they vanish on "
                            "the way", "model.trunk.norm_placement=pre" if post else suggest_clip(case))  # fmt: skip
    part = sum(norm > clip for norm in finite) / len(finite) if clip else 0.0
    return finding_ok(f"their median norm is {middle:.3g} over {len(norms)} steps, from {least:.2g} to {most:.2g} "
                      "by "
                f"layer; {part:.0%} are clipped")  # fmt: skip


def suggest_clip(case: DoctorCase) -> str:
    return f"model.depth={max(1, case.model.c.trunk.depth // 2)}"


def trunk_layers(sizes: dict[str, float]) -> dict[str, float]:
    """The entries of trunk layers alone."""
    return {name: size for name, size in sizes.items() if name.rpartition(".")[2].isdigit()}


FAR = 8.0  # robust standard deviations above the median
GUESSED = 0.95  # of the loss of a uniform guess
SHOWN = 60  # characters of a row that are shown


@dataclass(frozen=True)
class LossSpike:
    """A micro-batch that stands out: its step, its index, its loss, and its rows that stand out."""

    step: int
    number: int
    loss: float
    rows: list[int]


def check_batches(case: DoctorCase) -> DoctorFinding:
    if not case.course.sound or loss_trouble(case.course.losses):
        broken = [step.number for step in case.course.taken if not math.isfinite(step.loss)]
        return finding_note("the probe did not learn, so a bad batch would not stand out" +
                    (f"; the loss of step {broken[0] + 1} was the first that is not finite" if broken else ""),
                    "correct the learning rate first")  # fmt: skip
    numbers = [number for step in case.course.taken for number in case.numbers(step.number)]
    losses = {number: batch_loss(case, case.batch(number)) for number in numbers}
    usual = [loss for loss in losses.values() if math.isfinite(loss)]
    middle, spread = median_and_spread(usual)
    bound = max(middle + FAR * spread, GUESSED * guessing_loss(case))  #: S161
    far = [number for number, loss in losses.items() if not loss <= bound]
    if not far:
        return finding_ok(f"{len(losses)} batches, losses from {min(usual):.3f} to {max(usual):.3f}, none stands out")
    worst = max(far, key=lambda number: math.inf if math.isnan(losses[number]) else losses[number])
    spike = LossSpike(
        worst // case.settings.gradient_accumulation + 1, worst, losses[worst], outlier_rows(case, worst, bound)
    )
    more = f", and {len(far) - 1} more stand out" if len(far) > 1 else ""
    return finding_problem(f"the batch of step {spike.step} has a loss of {spike.loss:.3g} where the others have "
                           f"{middle:.3f} ± "
                 f"{spread:.3f}{more}: {describe_rows(case, spike)}", suggest_batch_fix(case))  # fmt: skip


def batch_loss(case: DoctorCase, batch: Any) -> float:
    """The loss of a batch after the probe, without dropout."""
    model, objective = case.course.model, case.run.objective
    with evaluation_mode(model):
        return float(
            combine_losses(
                objective.loss_sums(model, batch_to_device(batch, case.run.device)), objective.count_parts(batch)
            )
        )


def median_and_spread(losses: list[float]) -> tuple[float, float]:
    """The median, and a robust spread, 1.48 times the median distance, which one bad batch does not change."""
    middle = statistics.median(losses)
    return middle, max(1.4826 * statistics.median(abs(loss - middle) for loss in losses), 0.02 * abs(middle), 1e-6)


def guessing_loss(case: DoctorCase) -> float:
    """The loss of a uniform guess, or of the untrained model where there are no classes."""
    known = uniform_loss(case)
    return case.course.losses[0] if known is None else known


def outlier_rows(case: DoctorCase, number: int, bound: float) -> list[int]:
    """The rows of a batch that stand out individually."""
    batch = case.batch(number)
    many = len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)
    alone = [batch_loss(case, single_row(batch, row)) for row in range(many)]
    return [row for row, loss in enumerate(alone) if not loss <= bound] or list(range(many))


def single_row(batch: Any, row: int) -> Any:
    if isinstance(batch, dict):
        return {name: table[row : row + 1] for name, table in batch.items()}
    return batch[row : row + 1]


def describe_rows(case: DoctorCase, spike: LossSpike) -> str:
    """The rows by their numbers in the data, and the beginning of the first."""
    names = case.data.names(spike.number) if hasattr(case.data, "names") else spike.rows
    whole = [str(names[row]) for row in spike.rows] if len(names) > max(spike.rows) else list(map(str, names))
    place = "windows that begin at tokens" if hasattr(case.data, "shards") else "rows"
    told = f"{place} {', '.join(whole[:5])}" + (f" and {len(whole) - 5} more" if len(whole) > 5 else "")
    return f"{told}{row_beginning(case, case.batch(spike.number), spike.rows[0])}"


def row_beginning(case: DoctorCase, batch: Any, row: int) -> str:
    if case.tokenizer is None or not case.textual:
        return ""
    ids = model_inputs(batch, case.model)
    text = case.tokenizer.decode(ids.get("source", ids["ids"])[row].tolist())
    return f", the first {' '.join(text.split())[:SHOWN]!r}"


def suggest_batch_fix(case: DoctorCase) -> str:
    spike = case.settings.guard.spike_sigmas
    if spike is None:
        return "train.guard.spike_sigmas=8"
    return f"correct or remove these rows; train.guard.spike_sigmas={spike:g} skips steps whose loss spikes"
