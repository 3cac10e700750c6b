"""Diagnosis of a training run: a short probe in memory that reports each fault, with evidence and a remedy to type.

    for finding in doctor.examine(Run.from_recipe("recipe.toml")):
        print(finding.check, finding.verdict, finding.evidence, finding.remedy)

Each check is a function from a DoctorCase to a DoctorFinding, or to None where it does not apply; the table sets their
order.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from regard import config
from regard.doctor import (
    check_attention,
    check_data,
    check_labels,
    check_memory,
    check_training,
    check_weights,
    run_history,
)
from regard.doctor.case import DoctorCase, DoctorFinding, no_report
from regard.doctor.run_history import open_run_or_recipe
from regard.training.run import Run

__all__ = [
    "DoctorCase",
    "DoctorFinding",
    "check_attention",
    "check_data",
    "check_labels",
    "check_memory",
    "check_training",
    "check_weights",
    "no_report",
    "open_run_or_recipe",
    "run_history",
]

DOCTOR_CHECKS: dict[str, Callable[[DoctorCase], DoctorFinding | None]] = {
    "tokenizer": check_data.check_tokenizer,
    "inputs": check_data.check_input_scale,
    "leaks": check_data.check_leakage,
    "amount of data": check_data.check_data_size,
    "memory": check_memory.check_memory,
    "initialisation": check_weights.check_init,
    "labels": check_labels.check_labels,
    "causal mask": check_attention.check_causality,
    "padding": check_attention.check_padding,
    "documents": check_attention.check_documents,
    "positions": check_attention.check_positions,
    "learning rate": check_training.check_learning_rate,
    "gradients": check_training.check_gradients,
    "layers": check_weights.check_layers,
    "units": check_weights.check_dead_units,
    "batches": check_training.check_batches,
    "log": run_history.check_history,
}
LEAST, MOST = 10, 50  # limits of the steps of a probe


def examine_run(
    run: Run, steps: int = MOST, *, log: Sequence[dict[str, Any]] = (), progress: Callable[[str], object] = no_report
) -> list[DoctorFinding]:  # fmt: skip
    """All findings of the checks on a run, with a probe of so many steps; the run itself is not changed.

    `log` are the lines of its log.jsonl, if it has one. A finding that `ends` the examination is the last.
    """
    if not LEAST <= steps <= MOST:
        raise config.ConfigError(f"steps: {steps}; a probe takes from {LEAST} to {MOST}")
    case, found = DoctorCase(run, steps, log, progress), list[DoctorFinding]()
    case.need = check_memory.estimate_need(case)
    for name, check in DOCTOR_CHECKS.items():
        if (finding := check(case)) is not None:
            found.append(replace(finding, check=name))
            if finding.ends:
                break
    return found
