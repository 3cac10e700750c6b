"""How a model begins: its loss against that of a guess, and how widely its heads look, against one drawn anew."""

import math
import statistics
from typing import Any

import torch
from torch import nn

from regard.core.model import Transformer
from regard.heads import Vocabulary
from regard.lens.views import still
from regard.tasks.objective import whole
from regard.train.chance import chances, restore
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong
from regard.train.evaluate import moved
from regard.train.health import watchable, widths

NARROW = 0.3  # of the widest look there could be
TRAINED = 0.05  # heads that have learned something may look at little


def initialisation(case: Case) -> Finding:
    loss, wide = beginning(case, case.model)
    if not math.isfinite(loss):
        return wrong("the first loss is no number: the weights are none, or far too large", redraw(case, 1.0))
    return drawn_well(case, loss, wide) if case.fresh else learned_well(loss, wide)


def drawn_well(case: Case, loss: float, wide: float | None) -> Finding:
    new = drawn(case.model)
    usual, open = beginning(case, new)
    guess, times = chance(case), larger(case.model, new)
    bound = 2 * (usual if guess is None else guess) + 1
    against = f"one drawn anew has {usual:.2f}" if guess is None else f"a guess would be {guess:.2f}"
    told = f"the loss begins at {loss:.2f}, where {against}" + looks(wide)
    large = f"; the weights are {times:.3g} times as large as model.init={case.model.c.init} draws them" * (times > 2)
    if wide is not None and open is not None and wide < min(NARROW, 0.5 * open):  #: S160
        return wrong(f"{told}, and {open:.0%} in one drawn anew: attention has collapsed{large}", redraw(case, times))
    if loss > bound:
        return wrong(f"{told}: the weights begin too large{large}", redraw(case, times))
    return fine(told)


def learned_well(loss: float, wide: float | None) -> Finding:
    told = f"the loss begins at {loss:.3f}" + looks(wide)
    if wide is not None and wide < TRAINED:
        return look(f"{told}: nearly all at one token alone", "model.dropout=0.1")
    return fine(told)


def looks(wide: float | None) -> str:
    return "" if wide is None else f"; heads look {wide:.0%} as widely as they could"


def redraw(case: Case, times: float) -> str:
    """The init whose spread is the customary small one; or the model's own, where its weights are not as it says."""
    init = case.model.c.init if times > 2 else "gpt2"
    return f"model.init={init}" + ", and weights as it draws them" * (init == case.model.c.init)


def beginning(case: Case, model: Transformer) -> tuple[float, float | None]:
    """The loss of the first batch, without dropout; and the median head's width."""
    objective, there = case.run.objective, moved(case.first, case.run.device)
    with still(model):
        loss = float(whole(objective.sums(model, there), objective.parts(case.first)))
    heads = [] if not watchable(model) else [width for some in widths(model, there).values() for width in some]
    seen: list[Any] = [width for width in heads if isinstance(width, float)]
    return loss, statistics.median(seen) if seen else None


def drawn(model: Transformer) -> Transformer:
    """One of the same config, drawn anew."""
    device = next(model.parameters()).device
    before = chances(device)
    torch.manual_seed(0)
    made = type(model)(model.c).to(device)
    restore(before, device)
    return made


def chance(case: Case) -> float | None:
    """The loss of somebody who finds every answer as likely; None where answers are no choice."""
    heads = [part for part in case.model.modules() if isinstance(part, Vocabulary)]
    count = heads[0].out_features if heads else getattr(case.run.objective, "out", 0)
    return math.log(count) if count > 1 else None


def larger(model: Transformer, new: Transformer) -> float:
    """How many times as large the weights are as those that were drawn anew, in the middle."""
    sizes = [(rms(mine), rms(other)) for mine, other in zip(model.parameters(), new.parameters(), strict=True)
             if mine.dim() > 1]  # fmt: skip
    return statistics.median([mine / other for mine, other in sizes if other] or [1.0])


def rms(weight: nn.Parameter) -> float:
    return float(weight.detach().float().square().mean().sqrt())
