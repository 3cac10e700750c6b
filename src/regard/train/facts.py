"""run.json: what a run was, where, and what it cost; and files that are replaced whole."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import measure
from regard.config.errors import unwritable
from regard.data import store
from regard.train.loop import compiled
from regard.train.run import Run


def described(run: Run) -> dict[str, Any]:
    """What the report tells of the run before it began: its size, and what it should cost."""
    assert run.recipe is not None
    c, model, device = run.recipe.train, run.recipe.model, run.device.type
    rows, parameters = c.rows, sum(weight.numel() for weight in run.model.parameters())
    known = {"precision": precision_used(run), "seed": c.seed, "parameters": parameters, "trained": trained(run.model)}
    if not measure.tellable(model):
        return {**known, "kernels": [], "predicted": {}}
    bill = measure.predict(model, batch=rows, context=c.context, optimizer=c.optimizer, accumulate=c.accumulate,
                           device=device, compiled=compiled(run), recompute=c.recompute)  # fmt: skip
    kernels = [f"{where} {plan}" for where, plan in measure.plans(model, c.context, batch=rows, device=device)]
    return {**known, "kernels": kernels, "predicted": predicted(bill, device, compiled(run))}


def precision_used(run: Run) -> str:
    """The policy, and what it comes to where a CPU has no 16-bit products."""
    wished = run.settings.precision
    return "fp32 (mixed, on a CPU without bf16)" if wished == "mixed" and run.products == torch.float32 else wished


def trained(model: nn.Module) -> int:
    """How many weights learn."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def predicted(bill: measure.Prediction, device: str, compiled: bool) -> dict[str, Any]:
    """For run.json. Memory is what will be measured: of a GPU what tensors hold, else the whole process."""
    memory = bill.memory if device == "cuda" else measure.process(bill, compiled)
    return {"step_seconds": bill.step_seconds, "step_flops": bill.step_flops, "parts": bill.parts, "memory": memory,
            "calibrated": bill.calibrated, "note": bill.note}  # fmt: skip


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
