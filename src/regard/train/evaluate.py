"""The loss over a text that was not trained on: a sum and a count, every token predicted once."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.tasks.next_token import NextToken


@dataclass(frozen=True)
class Score:
    """How surprised a model was by a text, in nats."""

    sum: float
    count: int

    @property
    def loss(self) -> float:
        return self.sum / max(1, self.count)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))  #: S084

    @property
    def bits(self) -> float:
        """Bits a token."""
        return self.loss / math.log(2)


@torch.no_grad()
def evaluate(model: nn.Module, blocks: Iterable[Tensor]) -> Score:
    """The score over blocks of ids (B, N + 1); the model is left in the mode it was in.

    Compiled parts run as written: a ragged last block would compile them anew.
    """
    device, training, task = next(model.parameters()).device, model.training, NextToken()
    sums, count = [], 0
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            for ids in blocks:
                sums.append(task.sums(model, ids.to(device))["loss"].double())
                count += task.parts(ids)["loss"].count
    finally:
        model.train(training)
    return Score(float(torch.stack(sums).sum()) if sums else 0.0, count)
