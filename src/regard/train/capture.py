"""A whole training step as one CUDA graph: thousands of small kernels for the price of one launch.

Everything in it stays where it is: batches are copied into the captured ones, learning rates are tensors, the guard
against gradients that are no numbers acts on the device. Random numbers move on with each replay.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class Captured:
    """Replays a step on new batches; until it is captured the step runs as written, on the stream it will have."""

    AFTER = 3  # steps that run before: compilers have settled, and the optimizer has its state

    def __init__(self, step: Callable[[list[Tensor]], tuple[Tensor, Tensor]]) -> None:
        self.step, self.calls = step, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
        self.calls += 1
        if self.calls <= self.AFTER:
            return self.warm(batches)
        if self.graph is None:
            self.capture(batches)
        for mine, new in zip(self.batches, batches, strict=True):
            mine.copy_(new)
        assert self.graph is not None
        self.graph.replay()
        loss, norm = self.results
        return loss.clone(), norm.clone()

    def warm(self, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            results = self.step(batches)
        torch.cuda.current_stream().wait_stream(self.stream)
        return results

    def capture(self, batches: list[Tensor]) -> None:
        self.batches = [batch.clone() for batch in batches]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.results = self.step(self.batches)
        self.graph = graph
