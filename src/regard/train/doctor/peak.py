"""The most bytes that were held at once while something ran, beyond those that were held before."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from regard.measure.predict import resident
from regard.train.device import peak_memory


class Held:
    """`bytes` is None where the system does not tell."""

    bytes: int | None = None


@contextmanager
def watched(device: torch.device) -> Iterator[Held]:
    held, before = Held(), begin(device)
    yield held
    held.bytes = None if before is None else max(0, peak_memory(device) - before)


def begin(device: torch.device) -> int | None:
    """Forget the peak until now; the bytes that are held."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the highest mark falls to what is held now
    except OSError:
        return None
    return resident() if platform.system() == "Linux" else None
