"""Where a run computes, and what of it must be known to repeat its bits."""

import platform
from datetime import UTC, datetime
from typing import Any

import torch

from regard import config


def device_of(name: str) -> torch.device:
    """The device that a config names; "auto" is the fastest there is."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(kind for kind, here in there.items() if here) if name == "auto" else name
    if not there[chosen]:
        raise config.ConfigError(f"train.device: {name!r} is not on this machine; set it to auto or cpu")
    return torch.device(chosen)


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


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What has changed since, of what can change the bits, each said in a few words."""
    keys = ("torch", "processor", "device", "threads")
    return [f"{key} was {then.get(key)} and is {now[key]}" for key in keys if then.get(key) != now[key]]


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: by the device's allocator, or by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not on every system

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
