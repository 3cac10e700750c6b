"""Probe run: trains a copy of the model for some steps and records all updates; and a copy with random weights.

Visibility of tokens and of their order is a property of the structure. In an untrained model, blocks may add almost
nothing, and a wrong mask would change almost nothing. In the random copy all paths have similar magnitude, in fp32:
invisible tokens change nothing at all, and visible ones change much.
"""

import copy
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.core.model import Transformer
from regard.data.batching import batch_to_device
from regard.measure.peak_memory import track_peak_bytes
from regard.tasks.task import combine_losses, total_counts
from regard.training.diagnostics import layer_of
from regard.training.optim.optimizer import OptimizerGroup
from regard.training.reproducibility import deterministic_sums, use_rng_states
from regard.training.run import Run

if TYPE_CHECKING:
    from regard.doctor.case import DoctorCase

POSITION_NOISE = 1e-3  # of the standard deviation of outputs: smaller changes are rounding


@torch.no_grad()
def randomize_model(model: Transformer, trained: nn.Module) -> Transformer:
    """A copy with random weights. Positions keep their trained values, rescaled: a table of zeros stays zero here."""
    made = copy.deepcopy(model).float().eval()
    made.c, made.hooks = replace(made.c, precision="fp32"), ()
    chance, places = torch.Generator().manual_seed(0), dict(trained.named_parameters())
    for name, weight in made.named_parameters():
        drawn = torch.randn(weight.shape, generator=chance).to(weight.device)
        if ".positions." in f".{name}":
            weight.copy_(unit_spread(places[name], weight))
        elif name.endswith(("tokens.weight", "segments.weight")):
            front: Any = made.get_submodule(name.partition(".")[0])
            weight.copy_(drawn / front.c.scale)  # without the division they would dominate the positions
        elif weight.dim() > 1:
            weight.copy_(drawn * weight.shape[-1] ** -0.5)
        else:
            weight.copy_(0.1 * drawn + (1.0 if name.endswith("norm.weight") else 0.0))
    return made


def unit_spread(trained: Tensor, before: Tensor) -> Tensor:
    """A table scaled to a standard deviation of one; the untrained one, where training left non-finite numbers."""
    table = trained.float() if bool(trained.isfinite().all()) else before
    spread = float(table.std(correction=0))
    return table / spread if spread else table


@torch.no_grad()
def forward_outputs(model: nn.Module, given: dict[str, Tensor]) -> Any:
    """The model's outputs: one tensor, or several."""
    rest = dict(given)
    return model(rest.pop("ids"), **rest)


def other_ids(ids: Tensor, vocab: int, avoid: set[int]) -> Tensor:
    """Random ids of the same shape, each different from the original."""
    pool = torch.tensor([id for id in range(vocab) if id not in avoid], device=ids.device)
    chance = torch.Generator().manual_seed(1)
    drawn = pool[torch.randint(len(pool), ids.shape, generator=chance).to(ids.device)]
    return torch.where(drawn == ids, pool[(torch.searchsorted(pool, drawn) + 1) % len(pool)], drawn)


SETTLED = 3  # first steps without a copy of the weights, so that their memory is that of a normal step


@dataclass(frozen=True)
class ProbeStep:
    """One step of the probe: `gradients` are norms by layer, `updates` relative updates by layer."""

    number: int
    loss: float
    norm: float
    gradients: dict[str, float]
    updates: dict[str, float]


class ProbeRun:
    """Training steps from the current state of the run. `reached` are weights with a gradient, `changed` those that
    moved."""

    def __init__(self, case: "DoctorCase") -> None:
        self.case, self.taken = case, list[ProbeStep]()
        self.model: Transformer = copy.deepcopy(case.model).train()
        self.optimizer = copy_optimizer(self.model, case.run)
        self.chance = {name: state.clone() for name, state in case.run.rng_state.items()}
        self.reached, self.changed = set[str](), set[str]()
        self.peak: int | None = None  # peak bytes of the first steps, beyond those before

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.taken]

    @property
    def sound(self) -> bool:
        """Whether all weights are finite after the probe."""
        return all(bool(weight.isfinite().all()) for weight in self.model.parameters())

    def run(self, factors: list[float], progress: Callable[[str], object] | None = None) -> "ProbeRun":
        with track_peak_bytes(self.case.run.device) as held:
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
        parts, share = total_counts([run.objective.count_parts(batch) for batch in batches]), list[Tensor]()
        self.optimizer.set_lr_factor(factor)
        with (
            torch.compiler.set_stance("force_eager"),
            use_rng_states(self.chance, run.device),
            deterministic_sums(run.device),
        ):
            for batch in batches:
                loss = combine_losses(run.objective.loss_sums(self.model, batch_to_device(batch, run.device)), parts)
                loss.backward()
                share.append(loss.detach())
            gradients = self.watch()
            norm, updates = self.move()
        self.optimizer.zero_grad()
        self.taken.append(ProbeStep(number, float(torch.stack(share).sum()), norm, gradients, updates))

    def watch(self) -> dict[str, float]:
        """The gradient norms by layer; records which weights have a gradient."""
        found: dict[str, float] = {}
        for name, weight in self.model.named_parameters():
            size = 0.0 if weight.grad is None else float(weight.grad.norm())
            found[layer_of(name)] = found.get(layer_of(name), 0.0) + size * size
            if size:
                self.reached.add(name)
        return {name: math.sqrt(square) for name, square in found.items()}

    @torch.no_grad()
    def move(self) -> tuple[float, dict[str, float]]:
        """Take the optimizer step; returns the gradient norm and the relative updates by layer."""
        own = self.optimizer.own
        if len(self.taken) < SETTLED:
            norm, _ = self.optimizer.step(self.case.settings.max_grad_norm)
            return float(norm), {}
        before = {name: weight.clone() for name, weight in own.items()}
        norm, _ = self.optimizer.step(self.case.settings.max_grad_norm)
        sizes: dict[str, list[float]] = {}
        for name, weight in own.items():
            change = float((weight - before[name]).norm())
            if change:
                self.changed.add(name)
            row = sizes.setdefault(layer_of(name), [0.0, 0.0])
            row[0], row[1] = row[0] + change**2, row[1] + float(before[name].norm()) ** 2
        return float(norm), {name: math.sqrt(moved / held) for name, (moved, held) in sizes.items() if held}

    def usual(self, what: str) -> dict[str, float]:
        """The median by layer, of "gradients" or "updates", over the second half."""
        half = [getattr(step, what) for step in self.taken[len(self.taken) // 2 :]]
        return {name: statistics.median(step[name] for step in half) for name in half[-1]} if half else {}


def copy_optimizer(model: nn.Module, run: Run) -> OptimizerGroup:
    """An optimizer like the run's, for the same weights and with the same state."""
    still = [
        weight
        for name, weight in model.named_parameters()
        if weight.requires_grad and name not in remembered_names(run)
    ]
    for weight in still:
        weight.requires_grad_(False)
    made = OptimizerGroup(model, run.settings.optimizer)
    for weight in still:
        weight.requires_grad_(True)
    held = run.optimizer.state()
    with torch.no_grad():
        for name, slot in made.state().items():
            if name in held:
                slot.copy_(held[name])
    return made


def remembered_names(run: Run) -> set[str]:
    return {name.removeprefix("module.") for name in run.optimizer.own}
