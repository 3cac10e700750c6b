"""Whether two models say the same, in one type of numbers.

Rounding is no difference. Answers may be as far apart as ROUNDINGS units in the last place of the largest of them:
every operation rounds, and two programs add in other orders. In fp32 they may be 1e-4 apart in any case; in fp64 the
last place is that of fp32, in which some of their norms and angles are computed whatever is asked. Half types are
coarse (in bf16 it is a quarter of the largest answer): they show that a type works, fp32 that the model is the same.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.config import DataError
from regard.hub.check.questions import Question
from regard.hub.check.theirs import answers
from regard.hub.check.walk import Step, first, walk

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDINGS = 32  # of 100 small and deep models the worst had 8 in its answers and 24 in a layer
EPS = {name: torch.finfo(kind).eps for name, kind in (DTYPES | {"fp64": torch.float32}).items()}


@dataclass(frozen=True)
class Equal:
    """`distance` is the largest difference of two answers, `largest` the largest answer of theirs.

    `first` is the address where they part: none where they do not, "head" where all layers still agree.
    """

    dtype: str
    distance: float
    largest: float
    tolerance: float
    argmax: float  # the part of all rows whose largest answer is the same
    first: str | None
    steps: tuple[Step, ...]

    @property
    def same(self) -> bool:
        return math.isfinite(self.distance) and self.distance <= self.tolerance


@torch.no_grad()
def equal(ours: Any, theirs: Any, asked: Question, dtype: str = "fp32") -> Equal:
    """Ask both the same; both are in that type and in eval mode."""
    told = asked.asked_of(ours)
    told = told if isinstance(told, tuple) else (told,)
    said = paired(told, answers(theirs, asked))
    mine, other = ([asked.counted(x).double() for x in each] for each in (told, said))
    distance, largest = off(mine, other), max(float(y.abs().max()) for y in other)
    tolerance = within(dtype, largest)
    steps = walk(ours, theirs, asked)
    agree = torch.cat([(x.argmax(-1) == y.argmax(-1)).flatten() for x, y in zip(mine, other, strict=True)])
    found = Equal(dtype, distance, largest, tolerance, float(agree.double().mean()), None, tuple(steps))
    if found.same:
        return found
    return replace(found, first=first(ours, theirs, asked, steps, within(dtype, 1.0)) or "head")


def paired(ours: tuple[Tensor, ...], theirs: list[Tensor]) -> list[Tensor]:
    """Their answer to each of ours, by its shape: theirs may say more, such as what a pooler that it made up makes."""
    left, found = list(theirs), []
    for x in ours:
        near = [y for y in left if x.shape in (y.shape, (*y.shape, 1))]
        if not near:
            shapes = ", ".join(str(tuple(y.shape)) for y in theirs)
            raise DataError(f"check: ours answers with {tuple(x.shape)}, theirs with {shapes}; this is another model")
        left = [y for y in left if y is not near[0]]
        found.append(near[0].reshape(x.shape))
    return found


def off(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference; endless where something is no number."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((x - y).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).max()) for x, y in pairs)


def within(dtype: str, largest: float) -> float:
    """How far apart answers of that size may be."""
    return max(1e-4 if dtype == "fp32" else 0.0, ROUNDINGS * EPS[dtype] * max(largest, 1.0))
