"""The loss over what was not trained on: sums and counts, everything asked once; and how good the answers are."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from regard.generate.session import still
from regard.tasks.next_token import NextToken
from regard.tasks.objective import Objective, Part, shared
from regard.tasks.task import Task, scored
from regard.train.parallel.models import let_go
from regard.train.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Score:
    """How surprised a model was, in nats: the sum over everything that was asked, and how often that was.

    An objective of several `parts` has a sum and a count for each, and its loss is their weighted whole. `scores` say
    how good the answers were, by name.
    """

    sum: float
    count: int
    parts: Mapping[str, tuple[float, Part]] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        if len(self.parts) > 1:
            return math.fsum(part.weight * sum / max(1, part.count) for sum, part in self.parts.values())
        return self.sum / max(1, self.count)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))  #: S084

    @property
    def bits(self) -> float:
        """Bits a token."""
        return self.loss / math.log(2)


def evaluate(
    model: nn.Module, batches: Iterable[Any], objective: Objective | None = None, scores: bool = False,
    ranks: Ranks = ALONE,
) -> Score:  # fmt: skip
    """The score over batches as the objective takes them, blocks of ids (B, N + 1) if it is the next token.

    With `scores` the answers are marked too. Every part of the model is left in the mode it was in; compiled parts run
    as written: a ragged last batch would compile them anew. Of many `ranks` each takes its rows of every batch.
    """
    device, task = next(model.parameters()).device, objective or NextToken()
    exact = torch.float64 if device.type != "mps" else torch.float32
    sums, counts, marked = dict[str, list[torch.Tensor]](), dict[str, Part](), list[Any]()
    with torch.compiler.set_stance("force_eager"), still(list(model.modules())), shared(ranks.size):
        for batch in batches:
            mine, counted = ranks.rows(batch)
            there = moved(mine, device)
            for name, part in task.parts(batch).items():
                counts[name] = Part(part.count + (counts[name].count if name in counts else 0), part.weight)
            for name, sum in task.sums(model, there).items():
                sums.setdefault(name, []).append(sum.to(exact) * counted)
            if scores and isinstance(task, Task):
                marks = task.answers(model, there), task.expected(mine)
                marked += [marks] if counted else []
    let_go(model)
    parts = {name: (float(ranks.sum(torch.stack(some).sum())), counts[name]) for name, some in sums.items()}
    first, part = next(iter(parts.values()), (0.0, Part(0)))
    marked = ranks.joined(marked)
    found = dict(scored(task, marked)) if marked and isinstance(task, Task) else {}
    return Score(first, part.count, parts if len(parts) > 1 else {}, found)


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on a device; the host need not wait for it."""
    if isinstance(batch, dict):
        return {name: moved(table, device) for name, table in batch.items()}
    if device.type == "cuda":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)
