"""A whole training step as one CUDA graph: thousands of small kernels for the price of one launch.

Everything in it stays where it is: batches are copied into the captured ones, learning rates are tensors, the guard
against gradients that are no numbers acts on the device. Random numbers move on with each replay. What a step counts
is captured too, so only steps whose counts are all alike can be: those of windows over a text, and of rows that are
all of one shape.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Results = tuple[Tensor, Tensor, Tensor]


class Captured:
    """Replays a step on new batches; until it is captured the step runs as written, on the stream it will have."""

    AFTER = 3  # steps that run before: compilers have settled, and the optimizer has its state

    def __init__(self, step: Callable[[list[Any], Any], Results]) -> None:
        self.step, self.calls = step, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batches: list[Any], parts: Any) -> Results:
        self.calls += 1
        if self.calls <= self.AFTER:
            return self.warm(batches, parts)
        if self.graph is None:
            self.capture(batches, parts)
        for mine, new in zip(self.batches, batches, strict=True):
            for held, table in zip(tables(mine), tables(new), strict=True):
                held.copy_(table)
        assert self.graph is not None
        self.graph.replay()
        loss, norm, taken = self.results
        return loss.clone(), norm.clone(), taken.clone()

    def warm(self, batches: list[Any], parts: Any) -> Results:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            results = self.step(batches, parts)
        torch.cuda.current_stream().wait_stream(self.stream)
        return results

    def capture(self, batches: list[Any], parts: Any) -> None:
        self.batches = [cloned(batch) for batch in batches]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.results = self.step(self.batches, parts)
        self.graph = graph


def tables(batch: Any) -> list[Tensor]:
    """The tensors of a batch, always in the same order."""
    return [batch[name] for name in sorted(batch)] if isinstance(batch, dict) else [batch]


def cloned(batch: Any) -> Any:
    return {name: table.clone() for name, table in batch.items()} if isinstance(batch, dict) else batch.clone()
