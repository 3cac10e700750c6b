"""What a training step asks of a machine: a ghost takes the step, and everything it does is written down.

Work is charges, counted. It adds up over layers, so short models say it all: one layer more asks for so much more,
whatever the depth. The ghost also tells how many bytes come and go, as exactly as the step itself would.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.efficient.recompute import recompute as forget
from regard.measure.activations import Path, alone, at, everywhere, paths, put, shortest
from regard.measure.ghost import Config, ghost
from regard.measure.record import Charge, Record


@dataclass(frozen=True)
class Work:
    """Charges with how often each is made, and the most bytes held at once: early, until half of backward, and late."""

    charges: Counter[Charge] = field(default_factory=Counter)
    early: int = 0
    late: int = 0

    @property
    def peak(self) -> int:
        """Between its ends backward frees and makes as much with each layer, so the peak is at one of them."""
        return max(self.early, self.late)

    def plus(self, other: "Work", times: int = 1) -> "Work":
        charges = Counter(self.charges)
        for charge, count in other.charges.items():
            charges[charge] += times * count
        return Work(charges, self.early + times * other.early, self.late + times * other.late)


def work(
    c: Config, batch: int, context: int, device: str = "cpu", compiled: bool = False, recompute: bool = False
) -> Work:
    """Forward and backward of one batch; an encoder reads as many tokens as the decoder."""
    if recompute:
        return step(c, batch, context, device, compiled, True)
    short, rest = everywhere(c, shortest), everywhere(c, lambda trunk: alone(trunk, 0, 1))
    found = step(short, batch, context, device, compiled)
    for path in paths(c):
        trunk = at(c, path)
        for layer in range(at(short, path).depth, trunk.depth):
            found = found.plus(added(rest, path, alone(trunk, layer, 1), batch, context, device, compiled))
    return found


def added(rest: Config, path: Path, one: Any, batch: int, context: int, device: str, compiled: bool) -> Work:
    """What a layer like that of `one` adds."""
    first, second = (put(rest, path, alone(one, 0, depth)) for depth in (1, 2))
    return step(second, batch, context, device, compiled).plus(step(first, batch, context, device, compiled), -1)


@lru_cache(64)
def step(c: Config, batch: int, context: int, device: str, compiled: bool, recompute: bool = False) -> Work:
    """Everything that one forward and backward do, written down."""
    made = ghost(c, device)
    forget(made.model.train(), recompute)
    with made.mode, Record(compiled) as record:
        asked = loss(made.run(batch, context))
        turn = len(record.curve)
        asked.backward()
    record.close()
    half = (turn + len(record.curve)) // 2
    return Work(record.charges, max(record.curve[:half]), max(record.curve[half:]))


def loss(out: Any) -> Tensor:
    """Logits for every token are compared with the right ones, in fp32; of anything else the sum is as good."""
    first, *others = out if isinstance(out, tuple) else (out,)
    if first.dim() == 3:
        right = torch.zeros_like(first[..., 0], dtype=torch.long).flatten()
        found = F.cross_entropy(first.flatten(0, 1).float(), right, reduction="sum")
    else:
        found = first.float().sum()
    return sum((each.float().sum() for each in others), found)

