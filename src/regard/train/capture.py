"""A whole training step as one CUDA graph: thousands of small kernels for the price of one launch.

Everything in it stays where it is: batches are copied into the captured ones, learning rates are tensors, the guard
against gradients that are no numbers acts on the device. Random numbers move on with each replay.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class Captured:
    """Replays a step on new batches."""

    AFTER = 4  # steps that run before: compilers have settled, and the optimizer has its state

    def __init__(self, step: Callable[[list[Tensor]], tuple[Tensor, Tensor]], batches: list[Tensor]) -> None:
        self.batches = [batch.clone() for batch in batches]
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = step(self.batches)

    def __call__(self, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
        for mine, new in zip(self.batches, batches, strict=True):
            mine.copy_(new)
        self.graph.replay()
        loss, norm = self.results
        return loss.clone(), norm.clone()
