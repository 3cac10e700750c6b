"""A floor for the time of a step where nothing was calibrated: its products, at the speed of half a second of them."""

import time

import torch

from regard import config
from regard.measure.calibrate import finish

ROUND = 10**10  # operations in one round, at most: a moment even on one core
SECONDS = 0.5


@torch.no_grad()
def multiplying(c: config.Model, rows: int, device: str = "cpu", seconds: float = SECONDS) -> float:
    """Operations a second in the feed-forward's products: forward, and the two of backward."""
    dtype = torch.float32 if c.precision == "fp32" else torch.bfloat16
    hidden = c.trunk.mlp.hidden or 4 * c.trunk.dim
    rows = min(rows, 16 + ROUND // (6 * c.trunk.dim * hidden))
    x = torch.randn(rows, c.trunk.dim, device=device, dtype=dtype)
    w = torch.randn(hidden, c.trunk.dim, device=device, dtype=dtype)
    times, begun = list[float](), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        y = x @ w.mT
        y @ w  # the gradient of x
        y.mT @ x  # the gradient of w
        finish(device)
        times.append(time.perf_counter() - start)
    return 6.0 * rows * c.trunk.dim * hidden / min(times[1:])  # the first one warms up
