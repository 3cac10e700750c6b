"""Attribution patching: activation patching to first order, from one backward pass (Nanda 2023, Syed et al. 2023).

    estimate = attribute_patches(model, clean, corrupted, metric=metric, parts=("residual", "heads"))
    exact = patch_activations(model, clean, corrupted, metric=metric, parts=("residual", "heads"))
    estimate.compare(exact)       how well they agree: Pearson and Spearman correlation by part

The estimate of a patch is (given activation - own activation) times the gradient of the metric there, in the run that
would be patched. It is exact where the metric is linear in the activation, and misses what saturates: a softmax that
is already sure, a norm over a large change. Use it to choose what is worth an exact patch (Kramar et al. 2024).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.lens.attention_maps import evaluation_mode
from regard.lens.patching.activation_patching import Direction, PatchingResult, metric_ends, read_pair, stack_grid
from regard.lens.patching.logit_metrics import BoundMetric, LogitFunction, LogitMetric, bind_metric, run_metric
from regard.lens.patching.patch_targets import PatchTarget, patch_targets
from regard.lens.patching.patched_runs import record_activations
from regard.lens.prompt import Prompt
from regard.lens.result import LensResult, Table


@dataclass(frozen=True, eq=False)
class AttributionPatchingResult(PatchingResult):
    """The metric with every patch, estimated; the same grids as patch_activations measures."""

    title = "Which activation would carry the difference between the two prompts, to first order?"

    def compare(self, exact: PatchingResult) -> "PatchingComparison":
        """Beside the exact values of the same patches: how well the estimate ranks and sizes them."""
        rows = []
        for grid in self.grids:
            estimated, measured = self.change(grid.part), exact.change(grid.part)
            if estimated.shape != measured.shape:
                raise ConfigError(f"compare: {grid.part} has {tuple(estimated.shape)} patches here and "
                                  f"{tuple(measured.shape)} there; estimate and measure the same prompts")  # fmt: skip
            both = ~(estimated.isnan() | measured.isnan())
            rows.append(PatchingAgreement.of(grid.part, estimated[both], measured[both]))
        return PatchingComparison(self.metric, tuple(rows))


@dataclass(frozen=True)
class PatchingAgreement:
    """Estimated against exact changes of one part."""

    part: str
    patches: int
    pearson: float
    spearman: float
    worst: float  # the largest distance between an estimate and its exact value

    @classmethod
    def of(cls, part: str, x: Tensor, y: Tensor) -> "PatchingAgreement":
        return cls(part, len(x), pearson(x, y), pearson(ranks(x), ranks(y)), float((x - y).abs().max()))


@dataclass(frozen=True, eq=False)
class PatchingComparison(LensResult):
    """How well estimates agree with exact patches, part by part."""

    metric: str
    rows: tuple[PatchingAgreement, ...]

    def table(self) -> Table:
        return Table(
            "How well does one backward pass predict exact patches?",
            ("part", "patches", "pearson", "spearman", "worst"),
            tuple((row.part, row.patches, row.pearson, row.spearman, row.worst) for row in self.rows),
            f"Changes of the {self.metric}; worst is the largest distance of an estimate from its exact value.",
        )


def attribute_patches(
    model: Any, clean: str | Tensor | Sequence[int] | Prompt, corrupted: str | Tensor | Sequence[int] | Prompt, *,
    metric: LogitMetric | LogitFunction, parts: Sequence[str] = ("residual",), direction: Direction = "denoise",
) -> AttributionPatchingResult:  # fmt: skip
    """Attribution patching: an estimate for every patch of `patch_activations`, from two runs and one backward."""
    model, given, base = read_pair(model, clean, corrupted, direction)
    bound, targets = bind_metric(model, base, metric), patch_targets(model, base, parts)
    addresses = [target.address for places in targets.values() for target in places]
    values = record_activations(model, given, *addresses)
    own, changes = first_order(model, base, bound, values)
    grids = tuple(
        stack_grid(part, places, [own + patch_sums(changes[target.address], target) for target in places])
        for part, places in targets.items()
    )
    ends = metric_ends(model, given, bound, own, direction)
    return AttributionPatchingResult(bound.name, direction, *ends, grids)


def first_order(
    model: Any, base: Prompt, metric: BoundMetric, values: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """The metric of a run, and (value - activation) x gradient at each address, summed over channels."""
    with evaluation_mode(model), frozen_weights(model), torch.enable_grad():
        with looking(model, *values, grad=True) as seen:
            value = run_metric(model, base, metric)
            value.sum().backward()
        changes = {}
        for address, given in values.items():
            moved = given - seen[address].detach()
            changes[address] = (moved.double() * seen.grad(address).double()).sum(-1)  # (B, N) or (B, H, N)
    return float(value.detach().double().mean()), changes


def patch_sums(change: Tensor, target: PatchTarget) -> Tensor:  # (patches,)
    """The mean over rows of the prompt, and for a head at all positions their sum."""
    mean = change.mean(0)
    return (mean.sum(-1) if target.shape[-1] != mean.shape[-1] else mean).flatten().cpu()


@contextmanager
def frozen_weights(model: Any) -> Iterator[None]:
    """No gradients for weights: activations alone have them, and the model is left as it was."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        for weight in trained:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)


# ---------------------------------------------------------------- correlation


def pearson(x: Tensor, y: Tensor) -> float:
    """The correlation of two lists of numbers; nan where one of them does not vary."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size > 0 else math.nan


def ranks(x: Tensor) -> Tensor:
    """Ranks from 1, equal numbers sharing the mean of theirs."""
    _, same, counts = x.unique(return_inverse=True, return_counts=True)
    middle: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return middle[same]
