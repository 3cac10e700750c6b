"""Where a run computes, and what of it must be known to repeat its bits."""

import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from regard import config
from regard.generate.opening import place


def device_of(name: str) -> torch.device:
    """The device that a config names."""
    try:
        return place(name)
    except config.ConfigError as problem:
        raise config.ConfigError(f"train.{problem}") from None


def surroundings(device: torch.device) -> dict[str, Any]:
    """What the bits of a run depend on beside its config."""
    return {
        "regard": config.VERSION, "torch": torch.__version__, "python": platform.python_version(),
        "platform": platform.platform(), "processor": processor(device), "device": device.type,
        "threads": torch.get_num_threads(), "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


BITS = ("regard", "torch", "processor", "device", "threads")  # what of it can change the bits


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What has changed since, of what can change the bits, each said in a few words."""
    return [f"{key} was {then.get(key)} and is {now[key]}" for key in BITS if then.get(key) != now[key]]


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: by the device's allocator, or by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):  # Linux; what getrusage tells there may be of whoever started this process
        lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    import resource  # not on every system

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
