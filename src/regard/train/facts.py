"""run.json: what a run was, where, and what it cost; and files that are replaced whole."""

import json
from pathlib import Path
from typing import Any

from regard import measure
from regard.config.errors import unwritable
from regard.data import store
from regard.train.run import Run


def described(run: Run) -> dict[str, Any]:
    """What the report tells of the run before it began: its size, and what it should cost."""
    assert run.recipe is not None
    c = run.recipe.train
    bill = measure.predict(run.recipe.model, batch=c.batch, context=c.context, optimizer=c.optimizer,
                           device=run.device.type)  # fmt: skip
    predicted = {"step_seconds": bill.step_seconds * c.accumulate, "step_flops": bill.step_flops * c.accumulate,
                 "flops_per_second": bill.flops_per_second, "memory": bill.memory}  # fmt: skip
    kernels = [f"{where} {plan}" for where, plan in measure.plans(run.recipe.model, c.context, batch=c.batch,
                                                                  device=run.device.type)]  # fmt: skip
    parameters = sum(weight.numel() for weight in run.model.parameters())
    return {"precision": c.precision, "seed": c.seed, "kernels": kernels, "parameters": parameters,
            "predicted": predicted}  # fmt: skip


def write_json(path: Path, table: dict[str, Any]) -> None:
    write_text(path, json.dumps(table, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all, and on the disk: a run cannot be resumed without its config."""
    try:
        store.put(path, [text.encode()])
    except OSError as problem:
        raise unwritable(path, problem) from None


def read_facts(path: Path) -> dict[str, Any]:
    found = store.get(path)
    return found if isinstance(found, dict) else {}
