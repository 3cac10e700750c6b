"""The learning rate, and the gradients that it multiplies: seen in a probe that reaches the run's highest rate."""

import math
import statistics
from collections.abc import Sequence

from regard import config
from regard.train.doctor.case import RAMP, Case
from regard.train.doctor.course import Course
from regard.train.doctor.findings import Finding, fine, look, wrong
from regard.train.health import peak

RISEN = 1.3  # times the loss at the beginning
HASTY = 0.3  # of its weights that a layer moves in a step
IDLE, IDLE_TUNED = 3e-4, 3e-5  # of its weights: below, a higher rate is tried; what has learned already needs less
STILL = 1e-5  # of its weights: blocks that hardly move at all
LOWER, SHORT = 5, 20  # powers of ten that are tried, and the steps of each trial
FASTER, LEAST = 5, 0.02  # times as far as now, and of the loss at the beginning: so far a higher rate must bring it
FAINT = 1e-4  # the first layer's gradient against the last one's


def learning_rate(case: Case) -> Finding:
    course, said = case.course, written(case.settings.optimizer, 1.0)
    rate = f"{said} (a factor of {peak(case.run):.2g} at its highest)" if peak(case.run) != 1 else said
    haste = max(blocks(course.usual("updates")).values(), default=0.0)
    if why := trouble(course.losses):
        best = lower(case)
        if best is None:
            return wrong(f"with {rate} {why}, and so it does with {10**LOWER:,} times less: the reason is another",
                         "mend what else is wrong first")  # fmt: skip
        power, late = best
        return wrong(f"with {rate} {why}; with {10**power:,} times less it comes to {late:.3f} in {SHORT} steps",
                     written(case.settings.optimizer, 10.0**-power))  # fmt: skip
    moved = f"a step moves blocks by {percent(haste)} of their weights"
    told = f"the loss goes from {course.losses[0]:.3f} to {ending(course.losses):.3f} in {len(course.losses)} steps"
    if haste > HASTY:
        return look(f"{told}, but {moved}", written(case.settings.optimizer, 0.1))
    if is_idle(case, haste):
        if (best := higher(case)) is not None:
            power, late = best
            return wrong(f"{told} with {rate}, and {moved}: it is too low; with {10**power:,} times more the loss "
                         f"comes to {late:.3f} in {SHORT} steps",
                         written(case.settings.optimizer, 10.0**power))  # fmt: skip
        if haste < STILL:
            return look(f"{told} with {rate}, but {moved}: it may be too low",
                        written(case.settings.optimizer, 10.0))  # fmt: skip
    return fine(f"{told} with {rate}; {moved}")


def trouble(losses: Sequence[float]) -> str:
    """Why these losses are not those of learning, or nothing."""
    if not math.isfinite(losses[-1]) or sum(not math.isfinite(loss) for loss in losses) > len(losses) // 5:
        first = next(place for place, loss in enumerate(losses) if not math.isfinite(loss))
        return f"the loss is no number from step {first + 1} of the probe on"
    start, end = min(losses[0], statistics.median(losses[:3])), ending(losses)
    if end > RISEN * start + 0.1:  #: S159
        return f"the loss rises from {start:.3f} to {end:.3f} in {len(losses)} steps"
    return ""


def ending(losses: Sequence[float]) -> float:
    """What the last third comes to, whatever a batch or two may do."""
    return statistics.median(losses[-max(3, len(losses) // 3) :])


def lower(case: Case) -> tuple[int, float] | None:
    """The power of ten by which a lower rate learns well, and the loss that it comes to in a few steps.

    A short trial flatters the hasty: not the best of them, but a tenth of it, if that learns too (Smith 2017).
    """
    found = dict[int, float]()
    for power in range(1, LOWER + 1):
        case.progress(f"trying {10**power:,} times less")
        ramp = [factor * 10.0**-power for factor in case.factors[: SHORT - RAMP]]
        losses = Course(case).go(ramp + [ramp[-1]] * (SHORT - len(ramp))).losses
        if ending(losses) < losses[0]:
            found[power] = ending(losses)
    if not found:
        return None
    best = min(found, key=lambda power: found[power])
    power = best + 1 if best + 1 in found else best
    return power, found[power]


def is_idle(case: Case, haste: float) -> bool:
    """Whether the blocks that learn move so little that a higher rate is worth a trial; in the middle of a run the
    schedule may have come down."""
    least = IDLE if case.fresh else IDLE_TUNED
    return case.run.step == 0 and bool(blocks(case.course.usual("updates"))) and haste < least


def higher(case: Case) -> tuple[int, float] | None:
    """The power of ten by which a higher rate learns far more, and the loss that it comes to in a few steps.

    As for lower ones: not the best of them, but a tenth of it, if that is far more too.
    """
    start, now = case.course.losses[0], ending(case.course.losses)
    found = dict[int, float]()
    for power in range(1, LOWER + 1):
        case.progress(f"trying {10**power:,} times more")
        ramp = [factor * 10.0**power for factor in case.factors[: SHORT - RAMP]]
        losses = Course(case).go(ramp + [ramp[-1]] * (SHORT - len(ramp))).losses
        if trouble(losses):
            break
        if start - ending(losses) > max(FASTER * (start - now), LEAST * abs(start)):
            found[power] = ending(losses)
    if not found:
        return None
    best = min(found, key=lambda power: found[power])
    power = best - 1 if best - 1 in found else best
    return power, found[power]


def percent(share: float) -> str:
    """In two places; a share that would be nought there in one figure."""
    return f"{share:.2%}" if share >= 5e-5 or not share else f"{100 * share:.1g}%"


def written(c: config.Optimizer, scale: float) -> str:
    """The optimizer's rates as they are typed."""
    names = ("lr", "adam_lr") if isinstance(c, config.Muon) else ("lr",)
    return " ".join(f"train.optimizer.{name}={getattr(c, name) * scale:.3g}" for name in names)


def gradients(case: Case) -> Finding:
    course = case.course
    norms, sizes = [step.norm for step in course.taken], blocks(course.usual("gradients"))
    finite = [norm for norm in norms if math.isfinite(norm)]
    if not finite:
        return wrong("no step of the probe has gradients that are numbers", written(case.settings.optimizer, 0.01))
    middle, clip = statistics.median(finite), case.settings.clip
    if clip is None and middle > 100:
        return look(f"the gradients' norm is {middle:.3g} in the middle, and nothing bounds it", "train.clip=1.0")
    least, most = min(sizes.values(), default=0.0), max(sizes.values(), default=0.0)
    if least and least < FAINT * most and not trouble(course.losses):
        weak = min(sizes, key=lambda name: sizes[name])
        return look(f"the gradients of {weak} are {least / most:.1g} of the largest layer's: they vanish on the way",
                    "model.trunk.place=pre" if case.model.c.trunk.place == "post" else halved(case))  # fmt: skip
    part = sum(norm > clip for norm in finite) / len(finite) if clip else 0.0
    return fine(f"their norm is {middle:.3g} in the middle of {len(norms)} steps, from {least:.2g} to {most:.2g} by "
                f"layer; {part:.0%} are clipped")  # fmt: skip


def halved(case: Case) -> str:
    return f"model.depth={max(1, case.model.c.trunk.depth // 2)}"


def blocks(sizes: dict[str, float]) -> dict[str, float]:
    """Of the layers of trunks alone."""
    return {name: size for name, size in sizes.items() if name.rpartition(".")[2].isdigit()}
