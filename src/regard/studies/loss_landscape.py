"""Loss landscape: a slice through the loss around trained weights, and a demo with and without residuals (S195).

    L(a, b) = loss(w + a·u + b·v)

Directions are random, with each filter (a row of a matrix) scaled to the norm of the corresponding filter of the
weights: otherwise a network with large weights would seem flat (Li et al. 2018). Biases and gains are not moved.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.studies.comparison import StudyRun
from regard.studies.demo import DemoFigure, DemoInterrupted, DemoSettings, DemoTable, register_demo
from regard.studies.study import StudyPlan, StudyTable
from regard.studies.variant_probes import load_trial
from regard.training.run import Run
from regard.training.validation import validate


@dataclass(frozen=True)
class LossSlice:
    """Losses over steps along both directions: losses[i][j] is at a = places[i], b = places[j]; 0 is the centre."""

    places: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]

    @property
    def middle(self) -> float:
        half = len(self.places) // 2
        return self.losses[half][half]

    @property
    def rise(self) -> float:
        """The mean loss at the border minus the loss at the centre."""
        last = len(self.places) - 1
        rim = [self.losses[i][j] for i in range(last + 1) for j in range(last + 1) if {i, j} & {0, last}]
        return sum(rim) / len(rim) - self.middle

    @property
    def bent(self) -> float:
        """The fraction of inner points with negative curvature along a row or column: 0 for a convex bowl."""
        count, inner = 0, range(1, len(self.places) - 1)
        for i in inner:
            for j in inner:
                here = 2 * self.losses[i][j]
                across = self.losses[i - 1][j] + self.losses[i + 1][j]
                along = self.losses[i][j - 1] + self.losses[i][j + 1]
                count += across < here or along < here
        return count / len(inner) ** 2


def slice_loss(  #: S195
    model: nn.Module, loss: Callable[[], float], span: float = 1.0, steps: int = 11, seed: int = 0
) -> LossSlice:
    """The slice through a model's loss, from -span to span along both directions; its weights are restored afterwards.

    `loss` is called with the moved model. With span 1 a filter is moved by its own norm.
    """
    if steps < 3 or steps % 2 == 0:
        raise ValueError(f"steps: {steps}; an odd number from 3 on has a middle")
    places = torch.linspace(-span, span, steps, dtype=torch.float64).tolist()
    chance = torch.Generator().manual_seed(seed)
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    one, other = ([random_direction(weight, chance) for weight in weights] for _ in range(2))
    with restore_weights_after(weights) as start:
        losses = []
        for a in places:
            row = []
            for b in places:
                for weight, w, u, v in zip(weights, start, one, other, strict=True):
                    weight.copy_(w + a * u + b * v)
                row.append(loss())
            losses.append(tuple(row))
    return LossSlice(tuple(places), tuple(losses))


def random_direction(weight: Tensor, chance: torch.Generator) -> Tensor:
    """A random tensor whose filters have the norms of the weight's."""
    drawn = torch.randn(weight.shape, generator=chance).to(weight)
    lengths = (each.detach().flatten(1).norm(dim=1) for each in (weight, drawn))
    own, theirs = (length.view(-1, *[1] * (weight.dim() - 1)) for length in lengths)
    made: Tensor = drawn * (own / theirs.clamp(min=1e-12))
    return made


@contextmanager
def restore_weights_after(weights: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Copies of some weights, restored afterwards, bit for bit."""
    start = [weight.detach().clone() for weight in weights]
    try:
        with torch.no_grad():
            yield start
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, start, strict=True):
                weight.copy_(old)


RECIPE, KEY = "shakespeare-nano", "model.trunk.residual"
DEEP = ("model.dim=64", "model.depth=8", "train.steps=600", "train.precision=fp32")
QUICK = ("model.dim=32", "model.depth=3", "train.steps=8", "train.schedule.warmup=2")
TOKENS, STEPS, FEW = 4096, 15, 5


@register_demo(
    "landscape",
    "What do residual connections do to the loss?",
    "The same deep, narrow model with and without them, trained alike; and the loss around where each ended, along "
    "two random directions that move every filter by up to its own length (Li et al. 2018).",
)
def demo_loss_landscape(demo: DemoSettings) -> list[DemoTable]:
    settings = (*(QUICK if demo.quick else DEEP), *demo.settings)
    part = StudyTable(recipe=RECIPE, settings=settings, grid=(f"{KEY}=true,false",))
    compared = StudyRun(StudyPlan(seeds=demo.seeds or 1, parts=(part,)), demo.out, command=demo.command,
                          tell=demo.tell, measured=False)  # fmt: skip
    if (stopped := compared.run()) is not None:
        raise DemoInterrupted(stopped)
    [table] = compared.tables
    cut = {
        variant.name: slice_of_run(load_trial(table.folder / f"{variant.folder}-seed0"), FEW if demo.quick else STEPS)
        for variant in table.variants
    }
    return [landscape_table(cut)]


def slice_of_run(run: Run, steps: int) -> LossSlice:
    assert run.validation is not None
    batches = list(run.validation.batches(TOKENS))
    return slice_loss(run.model, lambda: validate(run.model, batches, run.task).loss, steps=steps)


def landscape_table(cut: dict[str, LossSlice]) -> DemoTable:
    columns = {
        "loss": [f"{each.middle:.4f}" for each in cut.values()],
        "rises to the rim by": [f"{each.rise:.3f}" for each in cut.values()],
        "bends down": [f"{100 * each.bent:.0f}%" for each in cut.values()],
    }
    numbers = [{"name": name, "middle": each.middle, "rise": each.rise, "bent": each.bent, "places": each.places,
                "losses": each.losses} for name, each in cut.items()]  # fmt: skip
    drawings = [DemoFigure(f"The loss around {name}", "along one direction", "along another", places=each.places,
                        field=each.losses) for name, each in cut.items()]  # fmt: skip
    return DemoTable("The loss around where training ended", list(cut), columns, numbers, [
        "bends down: the part of the places where the surface is not the bottom of a bowl along a row or a column",
    ], drawings)  # fmt: skip
