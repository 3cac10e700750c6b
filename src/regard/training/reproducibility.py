"""Reproducibility of a run: its RNG states, deterministic sums, its device and the facts of its environment.

A run has its own RNG states: random draws of other code between its steps do not affect it, and its draws do not affect
other code.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.inference.load import resolve_device


def training_device(name: str) -> torch.device:
    """The device named in a config."""
    try:
        return resolve_device(name)
    except config.ConfigError as problem:
        raise config.ConfigError(f"train.{problem}") from None


def describe_environment(device: torch.device) -> dict[str, Any]:
    """What the exact bits of a run depend on, apart from its config."""
    return {
        "regard": config.VERSION, "torch": torch.__version__, "python": platform.python_version(),
        "platform": platform.platform(), "processor": processor_kind(device), "device": device.type,
        "threads": torch.get_num_threads(), "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def processor_kind(device: torch.device) -> str:
    """What determines a processor's exact results: its instruction set, or the GPU model; `measure` reports its
    name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


BIT_RELEVANT = ("regard", "torch", "processor", "device", "threads")  # the facts that can change the bits


def environment_differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Changes of environment that can change the bits, each as a short phrase."""
    return [f"{key} was {then.get(key)} and is {now[key]}" for key in BIT_RELEVANT if then.get(key) != now[key]]


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it GPU matrix products share workspace in varying order
Chance = dict[str, Tensor]


def get_rng_states(device: torch.device) -> Chance:
    """The RNG states of the CPU and of the device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_rng_states(states: Chance, device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])


@contextmanager
def use_rng_states(mine: Chance, device: torch.device) -> Iterator[None]:
    """Draw from these RNG states, which advance; the global ones are restored afterwards."""
    before = get_rng_states(device)
    set_rng_states(mine, device)
    try:
        yield
    finally:
        mine.update(get_rng_states(device))
        set_rng_states(before, device)


@contextmanager
def deterministic_sums(device: torch.device, wanted: bool = False) -> Iterator[None]:
    """Deterministic order of sums on a CPU: compiled code would let threads add gradients in any order.

    On a GPU many fast kernels have no fixed order: determinism is optional there (`train.deterministic`).
    """
    if device.type != "cpu" and not wanted:
        yield
        return
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # filling is unnecessary: the memory is never read
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = before[1]


def configure_determinism(c: config.Train, device: torch.device) -> None:
    """Configure GPU determinism, before anything is computed on a GPU."""
    if not c.deterministic or device.type != "cuda":
        return
    if c.compile is True:
        raise config.ConfigError("train.deterministic: compiled code on a GPU adds in an order of its own; set "
                                 "train.compile=false")  # fmt: skip
    if WORKSPACE not in os.environ and torch.cuda.is_initialized():
        raise config.ConfigError(f"train.deterministic: CUDA started without {WORKSPACE}; set {WORKSPACE}=:4096:8 "
                                 "before python starts")  # fmt: skip
    os.environ.setdefault(WORKSPACE, ":4096:8")
