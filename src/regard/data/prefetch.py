"""Prefetching: worker processes build batches ahead of time; the batches are the same as without.

A batch is a function of its step, so any process may build it. The workers are those of PyTorch's DataLoader.
"""

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from regard.config.errors import DataError, RunError


class BatchMaker(Protocol):
    def batch(self, step: int) -> Any: ...


class Prefetcher:
    """Batches of `data` built by `workers` processes, each `depth` ahead; 0 workers build them in this process.

    A step other than the next one, as after a resume, restarts the workers there. `close` ends the processes. Other
    attributes of the batches, such as their rows, are those of `data`.
    """

    def __init__(self, data: BatchMaker, workers: int, depth: int = 2) -> None:
        self.data, self.workers, self.depth = data, workers, depth
        self.next, self.coming = -1, iter(())

    def batch(self, step: int) -> Any:
        if not self.workers:
            return self.data.batch(step)
        if step != self.next:
            self.coming = self.begin(step)
        try:
            found: Any = next(self.coming)
        except (RuntimeError, ConnectionError, EOFError) as problem:  # the last two: a worker died while sending
            self.close()
            if isinstance(problem, RuntimeError) and "exited unexpectedly" not in str(problem):
                raise
            raise RunError(
                f"a process that made batches was killed before step {step:,}; resume the run, and if the "
                f"memory was full ask for fewer than {self.workers} workers (train.workers)"
            ) from None
        self.next = step + 1
        if isinstance(found, WorkerError):
            raise DataError(found.why)
        return found

    def begin(self, step: int) -> Iterator[Any]:
        with without_loader_signals(), without_garbage_collection():
            return iter(
                DataLoader(
                    StepDataset(self.data),
                    batch_size=None,
                    sampler=StepSampler(step),
                    collate_fn=identity,
                    num_workers=self.workers,
                    prefetch_factor=self.depth,
                    multiprocessing_context="fork" if sys.platform == "linux" else None,  # else mapped files are copied
                    worker_init_fn=keep_inherited_objects,
                    generator=torch.Generator(),  # a loader draws a seed, which must not come from the run's generator
                )
            )

    def close(self) -> None:
        """End the processes; the next batch starts new ones."""
        self.next, self.coming = -1, iter(())


@contextmanager
def without_loader_signals() -> Iterator[None]:
    """Remove the loader's signal handler, which raises for a killed worker in the middle of any computation; and its
    warning about more workers than cores, which the user requested."""
    before = signal.getsignal(signal.SIGCHLD)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGCHLD, before)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection; a forked worker inherits this until `keep_inherited_objects`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep_inherited_objects(worker: int) -> None:
    """Exempt forked objects from garbage collection in a worker: freeing a CUDA graph inherited from the parent aborts
    the process."""
    gc.freeze()
    gc.enable()


class StepDataset(Dataset[Any]):
    """Dataset whose index is a step. Data errors are returned as messages, without the worker's traceback."""

    def __init__(self, data: BatchMaker) -> None:
        self.data = data

    def __getitem__(self, step: int) -> Any:
        try:
            return self.data.batch(step)
        except DataError as problem:
            return WorkerError(str(problem))


@dataclass(frozen=True)
class WorkerError:
    why: str


class StepSampler(Sampler[int]):
    """Sampler of consecutive steps, without end."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Iterator[int]:
        return count(self.first)


def identity(batch: Any) -> Any:
    return batch
