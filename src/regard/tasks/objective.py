"""What an objective is: named parts, each a sum over things that are counted before anything is computed.

A step's loss is the weighted sum over parts of sum/count, with the counts of the whole step: of all micro-batches and
of all ranks. So accumulating k micro-batches of b rows gives the gradients of one batch of k·b rows, ragged or not.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn


@dataclass(frozen=True)
class Part:
    """One thing that is asked: how many times, and how much it weighs."""

    count: int
    weight: float = 1.0


class Shared:
    """Whether what is asked now is a part of a batch whose other rows are asked on other ranks at the same time."""

    now = False


@contextmanager
def shared(ranks: int) -> Iterator[None]:
    """Inside, all of so many ranks ask: an objective on whole batches may bring their rows together."""
    before, Shared.now = Shared.now, ranks > 1
    try:
        yield
    finally:
        Shared.now = before


class Objective(Protocol):
    def parts(self, batch: Any) -> dict[str, Part]:
        """How often each part is asked of this batch; known from the labels alone."""

    def sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """The losses of each part, summed; in fp32."""


def total(batches: Sequence[Mapping[str, Part]]) -> dict[str, Part]:
    """The parts of several micro-batches as those of one."""
    names = list(batches[0])
    return {name: Part(sum(parts[name].count for parts in batches), batches[0][name].weight) for name in names}


def whole(sums: Mapping[str, Tensor], parts: Mapping[str, Part]) -> Tensor:
    """This batch's share of the step's loss."""
    shares = [sums[name] * (part.weight / max(1, part.count)) for name, part in parts.items()]
    loss = shares[0]
    for share in shares[1:]:
        loss = loss + share
    return loss
