"""What makes a run repeat its bits: where its random numbers stand, and sums in one order.

A run has its own: whatever others draw between its steps changes nothing in it, and it changes nothing for them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard import config

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it products on a GPU share memory as they come
Chance = dict[str, Tensor]


def chances(device: torch.device) -> Chance:
    """Where the random numbers stand, on the host and on the device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore(states: Chance, device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])


@contextmanager
def drawing(mine: Chance, device: torch.device) -> Iterator[None]:
    """Draw from one's own numbers, which move on; afterwards everybody else's are as they were."""
    before = chances(device)
    restore(mine, device)
    try:
        yield
    finally:
        mine.update(chances(device))
        restore(before, device)


@contextmanager
def repeatable(device: torch.device, asked: bool = False) -> Iterator[None]:
    """On a CPU, sums in one order: compiled code would let threads add to a table of gradients as they come.

    On a GPU many fast kernels have no such order: it is for those who ask (`train.deterministic`).
    """
    if device.type != "cpu" and not asked:
        yield
        return
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # nobody reads it
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = before[1]


def steadied(c: config.Train, device: torch.device) -> None:
    """Before anything is computed on a GPU: what it takes there to repeat bits."""
    if not c.deterministic or device.type != "cuda":
        return
    if c.compile is True:
        raise config.ConfigError("train.deterministic: compiled code on a GPU adds in an order of its own; set "
                                 "train.compile=false")  # fmt: skip
    if WORKSPACE not in os.environ and torch.cuda.is_initialized():
        raise config.ConfigError(f"train.deterministic: CUDA has begun without {WORKSPACE}; set {WORKSPACE}=:4096:8 "
                                 "before python starts")  # fmt: skip
    os.environ.setdefault(WORKSPACE, ":4096:8")
