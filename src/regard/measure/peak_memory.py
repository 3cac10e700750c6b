"""Peak memory of a call or a process: the most bytes held at once beyond those before.

On a GPU the allocator's count is used; on a CPU every new tensor counts until it is freed.
"""

import os
import platform
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")


class PeakBytes:
    """The result of `track_peak_bytes`; `bytes` is None where the system gives no peak."""

    bytes: int | None = None


@contextmanager
def track_peak_bytes(device: torch.device) -> Iterator[PeakBytes]:
    held, before = PeakBytes(), reset_peak(device)
    yield held
    held.bytes = None if before is None else max(0, process_peak_bytes(device) - before)


def reset_peak(device: torch.device) -> int | None:
    """Reset the peak; returns the bytes held now, or None where the system gives no peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return resident_bytes(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the high-water mark
    except OSError:
        return None
    return resident_bytes() if platform.system() == "Linux" else None


def resident_bytes(device: torch.device = CPU) -> int:
    """Bytes held now by the device's allocator or by this process; where the system does not tell, the peak so far."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return process_peak_bytes(device)


def process_peak_bytes(device: torch.device = CPU) -> int:
    """The peak of bytes so far, of the device's allocator or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):  # Linux; getrusage may give the parent's peak there
        lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    import resource  # not on every system

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_tensor_bytes(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The peak of tensor bytes in a call, beyond those before it.

    On a GPU the allocator counts. On a CPU the tensors of each operation are tracked, also in backward; temporary
    memory inside a kernel is not.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        with track_peak_bytes(device) as held:
            call()
            torch.cuda.synchronize(device)
        return held.bytes or 0
    with TensorTracker() as tracker:
        call()
    return int(tracker.most)


class TensorTracker(TorchDispatchMode):
    """Dispatch mode that tracks the storage of every new tensor; `now` bytes are held, `most` is the peak."""

    supports_higher_order_operators = True  # FlexAttention is one

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Allow FlexAttention, which is compiled, which torch otherwise refuses here; it counts as one operation."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and id(each.untyped_storage()) not in given:  # a view allocates nothing
                self.track(each.untyped_storage())
        return made

    def track(self, storage: torch.UntypedStorage) -> None:
        if storage in self.known:
            return
        self.known.add(storage)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.let_go, size)

    def let_go(self, size: int) -> None:
        self.now -= size
