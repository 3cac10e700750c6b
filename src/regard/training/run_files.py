"""The files and lines that a run writes: run.json, log.jsonl, the introduction, and the steps that the guard skipped.

log.jsonl has one line for each step, in full precision, times last; it is truncated to the checkpoint when a run
resumes. The rows of a skipped step are listed, the first is reported, and too many in a row end the run.
"""

import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import config, measure
from regard.config.errors import RunError, unwritable_error
from regard.core.layers import product_dtype
from regard.training.loop import TrainStep, should_compile
from regard.training.run import Run, unwrap_prefetch


def describe_run(run: Run) -> dict[str, Any]:
    """Facts about the run for the report, before training: its size, and its predicted cost."""
    assert run.recipe is not None
    c, model, device = run.recipe.train, run.recipe.model, run.device.type
    rows, parameters = c.rows, sum(weight.numel() for weight in run.model.parameters())
    known = {
        "precision": precision_used(run),
        "seed": c.seed,
        "parameters": parameters,
        "trained": trainable_parameters(run.model),
    }
    if not measure.can_fake(model):
        return {**known, "kernels": [], "predicted": {}}
    bill = measure.predict_step(
        model, batch=rows, context=c.context, optimizer=c.optimizer, accumulate=c.gradient_accumulation, device=device,
        compiled=should_compile(run), recompute=c.activation_checkpointing,
    )  # fmt: skip
    kernels = [f"{where} {plan}" for where, plan in measure.kernel_plans(model, c.context, batch=rows, device=device)]
    return {**known, "kernels": kernels, "predicted": predicted_cost(bill, device, should_compile(run))}


def precision_used(run: Run) -> str:
    """The precision, and what it means on a CPU without 16-bit products."""
    wished = run.settings.precision
    return "fp32 (mixed, on a CPU without bf16)" if wished == "mixed" and run.products == torch.float32 else wished


def trainable_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def predicted_cost(bill: measure.StepPrediction, device: str, compiled: bool) -> dict[str, Any]:
    """Predicted cost for run.json. Memory as it will be measured: on a GPU tensors only, else the whole process."""
    memory = bill.memory if device == "cuda" else measure.process_bytes(bill, compiled)
    return {"step_seconds": bill.step_seconds, "step_flops": bill.step_flops, "parts": bill.parts, "memory": memory,
            "calibrated": bill.is_calibrated, "note": bill.note}  # fmt: skip


def introduction_lines(run: Run, facts: dict[str, Any]) -> list[str]:
    """Introduction of a run: its size, data and device; and remarks on settings."""
    assert run.recipe is not None
    count = sum(weight.numel() for weight in run.model.parameters())
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    learn = trainable_parameters(run.model)
    part = "" if learn == count else f", of which {learn:,} are trained"
    said = [
        f"{count:,} parameters{part}, {describe_input_kind(run.recipe)}, {describe_epoch(run)}; {facts['device']}, "
        f"{threads}{describe_ranks(run)}"
    ]  # fmt: skip
    said += precision_note(run)
    steps, warmup = run.settings.steps, run.settings.schedule.warmup
    if steps is not None and warmup > steps:
        said.append(f"train.schedule.warmup: {warmup:,} steps are longer than the run of {steps:,}; its learning rate "
                    "is never reached, so make it shorter")  # fmt: skip
    return said


def precision_note(run: Run) -> list[str]:
    """What 16-bit precision means on a CPU without such products."""
    emulated = product_dtype(run.device.type) == torch.float32
    if run.settings.precision == "bf16" and emulated:
        return ["train.precision: bf16, which this CPU has no instructions for and emulates, many times slower; mixed "
                "or fp32 is faster here"]  # fmt: skip
    if run.settings.precision != "mixed" or run.device.type != "cpu":
        return []
    if run.products == torch.float32:
        why = "which has no bf16 instructions" if emulated else "as the run began, on a CPU without bf16 instructions"
        return [f"train.precision: mixed, which is fp32 on this CPU, {why}"]
    if emulated:
        return ["train.precision: mixed, in bf16 as the run began; this CPU emulates it, many times slower: resume "
                "it where it began, or begin a new run with --init-from"]  # fmt: skip
    return []


def describe_input_kind(recipe: config.Recipe) -> str:
    """The kind of input: token ids, or rows of other data."""
    if recipe.model.embed.vocab:
        return f"{recipe.model.embed.vocab:,} tokens in the vocabulary"
    return f"{recipe.train.context:,} tokens a row at most"


def describe_ranks(run: Run) -> str:
    return f", {run.ranks.size} processes ({run.ranks.strategy})" if run.ranks.size > 1 else ""


def describe_epoch(run: Run) -> str:
    """The size of the training data."""
    source = unwrap_prefetch(run.data)
    if isinstance(run.task.c, config.NextToken) and run.is_windowed:
        return f"{getattr(source, 'count', 0) * run.settings.context:,} to read an epoch"
    return f"{len(getattr(source, 'rows', [])):,} rows an epoch"


COUNTED_UNITS = {
    "forecasting": "values",
    "node_classification": "nodes",
    "contrastive": "pairs",
    "next_pixel": "values",
}  # by kind of task
# by kind of front end
INPUT_UNITS = {"text": "texts", "chunks": "texts", "patches": "images", "stages": "images", "conv": "images",
        "audio": "sounds", "series": "series", "video": "films", "graph": "graphs"}  # fmt: skip


def counted_unit(task: config.Task, model: config.Model) -> str:
    """The unit that a loss counts: whole examples if the head has one output for each, else the task's unit."""
    if task.kind in COUNTED_UNITS:
        return COUNTED_UNITS[task.kind]
    return INPUT_UNITS.get(model.embed.kind, "examples") if model.head.kind == "pooling" else "tokens"


class SkippedSteps:
    """Consecutive skipped steps; a taken step resets the count."""

    def __init__(self, run: Run, out: Path) -> None:
        count = int(run.guard.row)  # a resumed run may continue a series of skipped steps
        self.run, self.out, self.told = run, out, False
        self.row = list(range(run.step - count + 1, run.step + 1))

    def note_step(self, step: TrainStep, line: dict[str, Any]) -> str:
        """Record a step in its log line; returns a message, if any."""
        if "skipped" not in line:
            self.row = []
            return ""
        self.row.append(step.number)
        self.told, first = True, not self.told
        return (f"step {step.number:>11,}   {line['skipped']}, so it was skipped; log.jsonl names its rows. If it "
                "continues, lower train.optimizer.lr") if first else ""  # fmt: skip

    def describe_rows(self, step: TrainStep) -> dict[str, list[int]]:
        """The rows of a step: record numbers, or for a text the offsets."""
        names, count = getattr(unwrap_prefetch(self.run.data), "names", None), self.run.settings.gradient_accumulation
        first = (step.number - 1) * count
        return {str(number): names(number) if names else [] for number in range(first, first + count)}

    @property
    def too_many(self) -> bool:
        return len(self.row) >= self.run.settings.guard.max_skipped_steps

    def problem(self, line: dict[str, Any]) -> RunError:
        return RunError(f"{self.out}: steps {self.row[0]:,} to {self.row[-1]:,} were all skipped "
                        f"({line['skipped']}); the weights before them are saved, `regard doctor {self.out}` looks for "
                        "the reason, and a lower train.optimizer.lr often helps")  # fmt: skip


class JsonlLog:
    """JSONL log whose lines are on disk as soon as they are written; `offset` is the next position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = path.open("ab")
        except OSError as problem:
            raise unwritable_error(path, problem) from None

    def write(self, line: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            self.file.flush()
        except OSError as problem:
            raise unwritable_error(self.path, problem) from None

    def sync(self) -> None:
        """Flush to disk, so that a power failure loses nothing."""
        try:
            os.fsync(self.file.fileno())
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # pipes and terminals do not support it
                raise unwritable_error(self.path, problem) from None

    def truncate(self, offset: int) -> None:
        """Truncate the file."""
        try:
            self.file.truncate(offset)
            self.file.seek(offset)
        except OSError as problem:
            raise unwritable_error(self.path, problem) from None

    @property
    def offset(self) -> int:
        return self.file.tell()

    def __enter__(self) -> "JsonlLog":
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        try:
            self.file.close()
        except OSError as problem:
            if kind is None:  # otherwise another error is already being raised
                raise unwritable_error(self.path, problem) from None


class NullLog(JsonlLog):
    """A log that discards its lines, for all ranks but rank 0."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def truncate(self, offset: int) -> None:
        """Nothing to truncate."""


def truncate_log(path: Path, offset: int) -> str:
    """Truncate a log to a checkpoint, since later steps are repeated. Returns a message if lines before it are
    missing."""
    size = path.stat().st_size if path.exists() else 0
    try:
        if size > offset:
            os.truncate(path, offset)
        if size >= offset:
            return ""
        if size:
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # else an incomplete line would join the next one
    except OSError as problem:
        raise unwritable_error(path, problem) from None
    return f"{path}: shorter than at the checkpoint, so lines are missing; the run itself is complete"


def step_line(step: TrainStep, clip: float | None) -> dict[str, Any]:
    """The log.jsonl entry of a step; `clipped` and `skipped` mark the events worth searching for."""
    loss, norm = float(step.loss), float(step.norm)
    finite = norm - norm == 0 and loss - loss == 0
    line: dict[str, Any] = {"step": step.number, "loss": json_number(loss), "lr": step.lr, "norm": json_number(norm)}
    if clip is not None:
        line["clipped"] = finite and norm > clip  #: S098
    if not finite or not bool(step.taken):
        line["skipped"] = "loss or gradient norm spiked" if finite else "loss or gradients are not finite"
    return {**line, "tokens": step.tokens, "seconds": step.seconds}


def json_number(number: float) -> float | str:
    """A number for JSON, which has no NaN: non-finite ones become strings."""
    return number if number - number == 0 else str(number)
