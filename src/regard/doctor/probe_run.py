"""The probe: a copy of the model takes some steps of training, and everything that moves is written down."""

import copy
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.core.model import Transformer
from regard.tasks.objective import total, whole
from regard.train.chance import drawing, repeatable
from regard.train.doctor.peak import watched
from regard.train.evaluate import moved
from regard.train.health import layer
from regard.train.optim import Optimizer
from regard.train.run import Run

if TYPE_CHECKING:
    from regard.train.doctor.case import Case

SETTLED = 3  # steps without a copy of the weights beside them: so that their memory is that of a plain step


@dataclass(frozen=True)
class Taken:
    """A step: `gradients` are norms by layer, `updates` the part of a layer's weights that was moved."""

    number: int
    loss: float
    norm: float
    gradients: dict[str, float]
    updates: dict[str, float]


class Course:
    """Steps from where the run stands. `reached` are the weights that got a gradient, `changed` those that moved."""

    def __init__(self, case: "Case") -> None:
        self.case, self.taken = case, list[Taken]()
        self.model: Transformer = copy.deepcopy(case.model).train()
        self.optimizer = optimizer(self.model, case.run)
        self.chance = {name: state.clone() for name, state in case.run.chance.items()}
        self.reached, self.changed = set[str](), set[str]()
        self.peak: int | None = None  # bytes that the first steps held, beyond those before

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.taken]

    @property
    def sound(self) -> bool:
        """Whether what it came to are numbers."""
        return all(bool(weight.isfinite().all()) for weight in self.model.parameters())

    def go(self, factors: list[float], progress: Callable[[str], object] | None = None) -> "Course":
        with watched(self.case.run.device) as held:
            for factor in factors[:SETTLED]:
                self.step(factor)
        self.peak = held.bytes
        for factor in factors[SETTLED:]:
            self.step(factor)
            if progress is not None and len(self.taken) % 10 == 0:
                progress(f"{len(self.taken)} of {len(factors)} steps, loss {self.taken[-1].loss:.3f}")
        return self

    def step(self, factor: float) -> None:
        case, run = self.case, self.case.run
        number = run.step + len(self.taken)
        batches = [case.batch(place) for place in case.numbers(number)]
        parts, share = total([run.objective.parts(batch) for batch in batches]), list[Tensor]()
        self.optimizer.rate(factor)
        with torch.compiler.set_stance("force_eager"), drawing(self.chance, run.device), repeatable(run.device):
            for batch in batches:
                loss = whole(run.objective.sums(self.model, moved(batch, run.device)), parts)
                loss.backward()
                share.append(loss.detach())
            gradients = self.watch()
            norm, updates = self.move()
        self.optimizer.zero_grad()
        self.taken.append(Taken(number, float(torch.stack(share).sum()), norm, gradients, updates))

    def watch(self) -> dict[str, float]:
        """The gradients' norms by layer, and which weights they reach."""
        found: dict[str, float] = {}
        for name, weight in self.model.named_parameters():
            size = 0.0 if weight.grad is None else float(weight.grad.norm())
            found[layer(name)] = found.get(layer(name), 0.0) + size * size
            if size:
                self.reached.add(name)
        return {name: math.sqrt(square) for name, square in found.items()}

    @torch.no_grad()
    def move(self) -> tuple[float, dict[str, float]]:
        """Take the step, and see what it moves."""
        own = self.optimizer.own
        if len(self.taken) < SETTLED:
            norm, _ = self.optimizer.step(self.case.settings.clip)
            return float(norm), {}
        before = {name: weight.clone() for name, weight in own.items()}
        norm, _ = self.optimizer.step(self.case.settings.clip)
        sizes: dict[str, list[float]] = {}
        for name, weight in own.items():
            change = float((weight - before[name]).norm())
            if change:
                self.changed.add(name)
            row = sizes.setdefault(layer(name), [0.0, 0.0])
            row[0], row[1] = row[0] + change**2, row[1] + float(before[name].norm()) ** 2
        return float(norm), {name: math.sqrt(moved / held) for name, (moved, held) in sizes.items() if held}

    def usual(self, what: str) -> dict[str, float]:
        """The median by layer, of "gradients" or "updates", over the second half."""
        half = [getattr(step, what) for step in self.taken[len(self.taken) // 2 :]]
        return {name: statistics.median(step[name] for step in half) for name in half[-1]} if half else {}


def optimizer(model: nn.Module, run: Run) -> Optimizer:
    """One like the run's, which forgets whom the run's forgets, and remembers what it remembers."""
    still = [weight for name, weight in model.named_parameters() if weight.requires_grad and name not in known(run)]
    for weight in still:
        weight.requires_grad_(False)
    made = Optimizer(model, run.settings.optimizer)
    for weight in still:
        weight.requires_grad_(True)
    held = run.optimizer.state()
    with torch.no_grad():
        for name, slot in made.state().items():
            if name in held:
                slot.copy_(held[name])
    return made


def known(run: Run) -> set[str]:
    return {name.removeprefix("module.") for name in run.optimizer.own}
