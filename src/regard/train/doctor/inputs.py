"""What the front end is given, where that is no text: numbers around zero, about one apart, are learned from best."""

import torch

from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong

FLAT, LOUD, ASIDE = 0.05, 20.0, 3.0  # a spread of so little or so much, a mean so many spreads from zero


def inputs(case: Case) -> Finding | None:
    if case.textual:
        return None
    ids = torch.cat([batch["ids"].flatten() for batch in case.read(2)])
    if not ids.is_floating_point():
        return fine(f"whole numbers from {int(ids.min())} to {int(ids.max())}")
    if not bool(ids.isfinite().all()):
        part = float((~ids.isfinite()).float().mean())
        return wrong(f"{part:.1%} of the numbers that are given to the front end are none (nan or infinite)",
                     "mend the data, or data.bad=skip", ends=True)  # fmt: skip
    middle, spread = float(ids.mean()), float(ids.std())
    told = f"numbers around {middle:.2g}, {spread:.2g} apart"
    if not spread:
        return wrong(f"all numbers that are given to the front end are {middle:g}: there is nothing to see",
                     f"task.{column(case)}: the column that holds the data")  # fmt: skip
    if FLAT <= spread <= LOUD and abs(middle) <= ASIDE * spread:
        return fine(told)
    return look(f"{told}: around zero and about one apart is learned from best", remedy(case))


def column(case: Case) -> str:
    return "text" if hasattr(case.run.task.c, "text") else "kind"


def remedy(case: Case) -> str:
    """How this front end is told the mean and the spread of its numbers, if it can be."""
    front = case.model.c.embed
    named = [name for name in ("mean", "std", "white", "normal") if hasattr(front, name)]
    return ", ".join(f"model.embed.{name}" for name in named) or "scale the data"
