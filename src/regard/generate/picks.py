"""One token for every row that speaks, and what the model thought of it, in one look at the device.

    logits (rows, V) ─┬─ greedy and nothing else: one argmax for all such rows ──┐
                      ├─ any other row: its own chooser ─────────────────────────┼──► ids ──► the next step
                      └─ log-softmax, before anything is filtered ── others ─────┘     └────► one tolist
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.generate.filters import likeliest
from regard.generate.queueing import Ticket


@dataclass(frozen=True)
class Pick:
    """What one row says: an id, or BROKEN or NOTHING; or the problem that its choosing had."""

    id: int
    logprob: float
    others: tuple[tuple[int, float], ...]
    problem: Exception | None = None


def picks(logits: Tensor, speaking: Mapping[int, Ticket], barred: Tensor) -> tuple[Tensor, dict[int, Pick]]:
    """The ids (rows,) where the logits are, and the pick of every row that speaks."""
    ids, problems = chosen(logits, speaking, barred)
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    best = {row: logs[row].topk(one.asked.logprobs) for row, one in speaking.items() if one.asked.logprobs}
    exact = torch.float32 if logits.device.type == "mps" else torch.float64  # holds every id as well
    said = [ids, logs.gather(1, ids.clamp(min=0)[:, None])[:, 0], *(side for pair in best.values() for side in pair)]
    numbers = torch.cat([side.to(exact) for side in said]).tolist()
    told, place = {}, 2 * len(ids)
    for row, one in speaking.items():
        count = one.asked.logprobs
        values, others = numbers[place : place + count], numbers[place + count : place + 2 * count]
        pairs = tuple((int(id), value) for id, value in zip(others, values, strict=True))
        told[row] = Pick(int(numbers[row]), numbers[len(ids) + row], pairs, problems.get(row))
        place += 2 * count
    return ids.clamp(min=0), told


def chosen(logits: Tensor, speaking: Mapping[int, Ticket], barred: Tensor) -> tuple[Tensor, dict[int, Exception]]:
    """The ids (rows,), and what went wrong in which row: nobody else hears of it."""
    ids, problems = likeliest(logits, barred), dict[int, Exception]()
    for row, one in speaking.items():
        if one.chooser.plain:
            continue
        try:
            ids[row] = one.chooser.choose(logits[row : row + 1])[0]
        except Exception as problem:
            problems[row] = problem
    return ids, problems
