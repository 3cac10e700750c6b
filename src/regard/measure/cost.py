"""The whole bill: what a step of training costs in arithmetic and memory, and at least how long it takes here."""

import time
from dataclasses import dataclass

import torch

from regard import config
from regard.measure.flops import Flops, flops
from regard.measure.memory import Memory, Optimizer, memory
from regard.measure.parameters import parameters

ROUND = 10**10  # operations in one round of the calibration, at most: a moment even on one core


@dataclass(frozen=True)
class Estimate:
    """One optimizer step on `batch` sequences of `context` tokens."""

    batch: int
    context: int
    parts: dict[str, int]
    flops: Flops
    memory: Memory

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def step_flops(self) -> float:
        return self.flops.training * self.batch * self.context


@dataclass(frozen=True)
class Prediction:
    """A floor for one step: its matrix products at the speed this machine multiplies matrices of the model's sizes.

    Everything else (norms, softmax, the optimizer, reading data) comes on top, so a measured step takes longer:
    by a quarter when all is well fused, by several times for a small model in eager mode.
    """

    step_seconds: float
    step_flops: float
    flops_per_second: float
    memory: int


def estimate(
    c: config.Transformer, *, batch: int = 1, context: int | None = None, optimizer: Optimizer | None = None
) -> Estimate:
    """Parameters, arithmetic and memory, without making the model; `context` is its longest, or 512, unless said."""
    context = context or longest(c)
    bill = memory(c, batch, context, optimizer)
    return Estimate(batch=batch, context=context, parts=parameters(c), flops=flops(c, context), memory=bill)


def longest(c: config.Transformer) -> int:
    """The length that the positions know, or 512 where they know none."""
    position = c.trunk.position
    known = position.length if isinstance(position, config.Learned | config.OneHot) else 512
    return known if isinstance(known, int) else 512


def predict(
    c: config.Transformer, *, batch: int = 1, context: int | None = None, optimizer: Optimizer | None = None,
    device: str = "cpu", seconds: float = 0.5,
) -> Prediction:  # fmt: skip
    """At least how long a training step takes here, after half a second of multiplying."""
    bill = estimate(c, batch=batch, context=context, optimizer=optimizer)
    rate = multiplying(c, batch * bill.context, device, seconds)
    return Prediction(bill.step_flops / rate, bill.step_flops, rate, bill.memory.total)


@torch.no_grad()
def multiplying(c: config.Transformer, rows: int, device: str = "cpu", seconds: float = 0.5) -> float:
    """Operations a second in the feed-forward's products: forward, and the two of backward."""
    dtype = torch.float32 if c.precision == "fp32" else torch.bfloat16
    hidden = c.trunk.mlp.hidden or 4 * c.trunk.dim
    rows = min(rows, 16 + ROUND // (6 * c.trunk.dim * hidden))
    x = torch.randn(rows, c.trunk.dim, device=device, dtype=dtype)
    w = torch.randn(hidden, c.trunk.dim, device=device, dtype=dtype)
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        y = x @ w.mT
        y @ w  # the gradient of x
        y.mT @ x  # the gradient of w
        finish(device)
        times.append(time.perf_counter() - start)
    return 6.0 * rows * c.trunk.dim * hidden / min(times[1:])  # the first one warms up


def finish(device: str) -> None:
    """Wait for what was asked of an accelerator."""
    if device != "cpu":
        torch.accelerator.synchronize(device)
