"""The doctor: a short probe of a run, in memory, that names what is wrong, with evidence and what to type.

    for finding in doctor.examine(Run.from_recipe("recipe.toml")):
        print(finding.check, finding.verdict, finding.evidence, finding.remedy)

Each check is a function from a Case to a Finding, or to nothing where it does not apply; the table is their order.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from regard import config
from regard.train.doctor import (
    corpus,
    inputs,
    labels,
    layers,
    memory,
    order,
    past,
    rates,
    seeing,
    spikes,
    start,
    words,
)
from regard.train.doctor.case import Case, quiet
from regard.train.doctor.findings import Finding
from regard.train.doctor.patient import opened
from regard.train.run import Run

__all__ = ["CHECKS", "Case", "Finding", "examine", "opened"]

CHECKS: dict[str, Callable[[Case], Finding | None]] = {
    "tokenizer": words.tokenizer,
    "inputs": inputs.inputs,
    "leaks": corpus.leaking,
    "amount of data": corpus.amount,
    "memory": memory.memory,
    "initialisation": start.initialisation,
    "labels": labels.labels,
    "causal mask": seeing.causal,
    "padding": seeing.padding,
    "documents": seeing.documents,
    "positions": order.positions,
    "learning rate": rates.learning_rate,
    "gradients": rates.gradients,
    "layers": layers.layers,
    "units": layers.units,
    "batches": spikes.batches,
    "log": past.past,
}
LEAST, MOST = 10, 50  # steps of a probe


def examine(
    run: Run, steps: int = MOST, *, log: Sequence[dict[str, Any]] = (), progress: Callable[[str], object] = quiet
) -> list[Finding]:  # fmt: skip
    """What is right and wrong with a run, found in so many steps; the run itself is left as it was.

    `log` are the lines of its log.jsonl, if it has one. What `ends` an examination comes last.
    """
    if not LEAST <= steps <= MOST:
        raise config.ConfigError(f"steps: {steps}; a probe takes from {LEAST} to {MOST}")
    case, found = Case(run, steps, log, progress), list[Finding]()
    case.need = memory.need(case)
    for name, check in CHECKS.items():
        if (finding := check(case)) is not None:
            found.append(replace(finding, check=name))
            if finding.ends:
                break
    return found
