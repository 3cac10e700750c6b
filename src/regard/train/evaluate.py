"""The loss over a text that was not trained on: a sum and a count, every token predicted once."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.generate.session import still
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


def evaluate(model: nn.Module, blocks: Iterable[Tensor]) -> Score:
    """The score over blocks of ids (B, N + 1); every part of the model is left in the mode it was in.

    Compiled parts run as written: a ragged last block would compile them anew.
    """
    device, task, sums, count = next(model.parameters()).device, NextToken(), [], 0
    with torch.compiler.set_stance("force_eager"), still(list(model.modules())):
        for ids in blocks:
            sums.append(task.sums(model, ids.to(device))["loss"].to(torch.float64 if device.type != "mps" else None))
            count += task.parts(ids)["loss"].count
    return Score(float(torch.stack(sums).sum()) if sums else 0.0, count)
