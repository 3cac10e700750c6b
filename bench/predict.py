"""Predicted against measured: calibrate this machine, then train models it has not seen for some steps each.

    python bench/predict.py [CASE ...]         # about four minutes on two cores; writes results/predict.csv

Each case runs in a process of its own, through the same prediction and the same loop as `regard train`. The constants
in `regard.measure` were found on the cases marked so; the others only check them. Memory is that of the process.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from os import environ
from pathlib import Path
from typing import Any

import torch
from common import keep, show
from torch import Tensor

from regard import config as C
from regard import measure, zoo
from regard.inference.model import Model
from regard.measure.peak_memory import process_peak_bytes
from regard.tasks.next_token import NextToken
from regard.training.loop import train_steps
from regard.training.optim.optimizer import OptimizerGroup
from regard.training.optim.schedule import build_schedule
from regard.training.run import Run
from regard.training.run_files import predicted_cost

RECIPES = Path(__file__).parent.parent / "recipes"
LEAST, MOST, SECONDS = 6, 60, 8.0  # steps of a case that are timed, and for how long


@dataclass(frozen=True)
class Case:
    model: C.Transformer
    batch: int
    context: int
    optimizer: C.Optimizer = C.AdamW()
    compile: bool = False
    minutes: float | None = None
    found: bool = False  # the constants were found on it


def gpt(depth: int, dim: int, heads: int, vocab: int, length: int, precision: str) -> C.Transformer:
    trunk = C.Trunk(
        dim=dim,
        depth=depth,
        mask="causal",
        position=C.LearnedPosition(length=length),
        attention=C.Attention(heads=heads),
        mlp=C.MLP(activation="gelu_tanh"),
        dropout=C.NO_DROPOUT,
    )
    return C.Transformer(embed=C.TextEmbedding(vocab=vocab), init="gpt2", precision=precision, trunk=trunk)


def llama(depth: int, dim: int, heads: int, groups: int, vocab: int, precision: str) -> C.Transformer:
    trunk = C.Trunk(
        dim=dim,
        depth=depth,
        mask="causal",
        position=C.RotaryPosition(),
        attention=C.Attention(heads=heads, kv_heads=groups),
        mlp=C.MLP(activation="silu", gated=True, hidden=3 * dim),
        norm=C.Norm(kind="rms"),
        dropout=C.NO_DROPOUT,
    )
    return C.Transformer(
        embed=C.TextEmbedding(vocab=vocab), head=C.LMHead(tied=False), precision=precision, trunk=trunk
    )


def recipe(name: str, **said: object) -> Case:
    read = zoo.read_recipe(RECIPES / f"{name}.toml", [])
    model = replace(read.model, embed=replace(read.model.embed, vocab=65))
    return Case(
        model, read.train.batch_size, read.train.context, read.train.optimizer, minutes=read.train.minutes, **said
    )


CASES = {
    "shakespeare-nano": recipe("shakespeare-nano", compile=True, found=True),
    "shakespeare": recipe("shakespeare", compile=True, found=True),
    "shakespeare, eager": recipe("shakespeare", found=True),
    "gpt 6x256": Case(gpt(6, 256, 8, 1000, 128, "fp32"), 8, 128, found=True),
    "gpt 4x384": Case(gpt(4, 384, 6, 5000, 256, "mixed"), 4, 256, found=True),
    "gpt 4x384, compiled": Case(gpt(4, 384, 6, 5000, 256, "mixed"), 4, 256, compile=True, found=True),
    "gpt 12x192": Case(gpt(12, 192, 6, 2000, 192, "fp32"), 6, 192, found=True),
    "gpt 3x640": Case(gpt(3, 640, 10, 16000, 128, "fp32"), 5, 128, found=True),
    "gpt 3x640, mixed": Case(gpt(3, 640, 10, 16000, 128, "mixed"), 5, 128, found=True),
    "gpt 5x320, muon": Case(gpt(5, 320, 5, 3000, 160, "mixed"), 6, 160, C.Muon()),
    "llama 5x288": Case(llama(5, 288, 6, 2, 4000, "fp32"), 4, 192),
    "llama 5x288, mixed": Case(llama(5, 288, 6, 2, 4000, "mixed"), 4, 192),
    "llama 3x448, compiled": Case(llama(3, 448, 7, 7, 4000, "fp32"), 3, 256, compile=True),
}


class Noise:
    """Tokens that mean nothing: time does not read them."""

    def __init__(self, case: Case) -> None:
        self.ids = torch.randint(case.model.embed.vocab, (case.batch, case.context + 1))

    def batch(self, step: int) -> Tensor:
        return self.ids


def measured(case: Case) -> dict[str, float]:
    """One case in this process: what was predicted before the first step, and what came."""
    model = Model(case.model).train()
    settings = C.Train(
        steps=10**6, minutes=case.minutes, batch_size=case.batch, context=case.context, optimizer=case.optimizer,
        precision=case.model.precision, compile=case.compile,
    )  # fmt: skip
    run = Run(model, NextToken(), Noise(case), OptimizerGroup(model, case.optimizer),
              build_schedule(settings.schedule, case.model.trunk.dim), settings)  # fmt: skip
    begun = time.perf_counter()
    bill = measure.predict_step(case.model, batch=case.batch, context=case.context, optimizer=case.optimizer,
                           compiled=case.compile)  # fmt: skip
    promised = predicted_cost(bill, "cpu", case.compile)
    took, times, before = time.perf_counter() - begun, list[float](), 0.0
    for step in train_steps(run):
        times.append(step.seconds - before)
        before = step.seconds
        if len(times) >= MOST or (len(times) > LEAST and sum(times[3:]) > SECONDS):
            break
    return {"predicted": bill.step_seconds, "seconds": statistics.median(times[3:]), "memory": promised["memory"],
            "peak": process_peak_bytes(run.device), "tensors": bill.memory, "predicting": took}  # fmt: skip


def alone(*words: str) -> dict[str, Any]:
    """What this file says in a process of its own. This one stays small: a child's peak begins at its parent's size."""
    line = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(line.stdout.splitlines()[-1])


def row(name: str) -> dict[str, object]:
    case, found = CASES[name], alone("--one", name)
    return {
        "model": name, "precision": case.model.precision, "compile": case.compile, "found on it": case.found,
        "predicted_s": found["predicted"], "measured_s": found["seconds"],
        "error": found["predicted"] / found["seconds"] - 1,
        "predicted_MB": found["memory"] / 1e6, "measured_MB": found["peak"] / 1e6,
        "memory_error": found["memory"] / found["peak"] - 1, "tensors_MB": found["tensors"] / 1e6,
        "predicting_s": found["predicting"],
    }  # fmt: skip


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environ["REGARD_CACHE"] = folder
        begun = time.perf_counter()
        print(alone("--calibrate"), f"\ncalibrated in {time.perf_counter() - begun:.1f} s", flush=True)
        rows = []
        for name in names or CASES:
            rows.append(row(name))
            show(rows[-1:])
    show(rows)
    keep("predict", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--calibrate"]:
        print(json.dumps(measure.calibrate().facts()))
    elif sys.argv[1:2] == ["--one"]:
        warnings.simplefilter("ignore")
        print(json.dumps(measured(CASES[sys.argv[2]])))
    else:
        main(sys.argv[1:])
