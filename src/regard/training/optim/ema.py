"""EMA of the weights: an average over recent steps, less noisy than the weights and often better (Polyak 1992).

    mean = keep · mean + (1 - keep) · weight,    keep = min(decay, (1 + t) / (10 + t)) after t steps

The smaller `keep` of the first steps discounts the initial weights. Averages are in fp32, for trained weights only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.training.state_dict import load_state_tensors


class ModelEMA:
    """Exponential moving average of the weights: call `update` after each step; `applied` puts the averages in the
    model."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.means = {name: weight.detach().float().clone() for name, weight in self.weights.items()}
        self.steps = torch.zeros((), device=next(iter(self.means.values())).device)
        self.own: dict[str, Tensor] | None = None  # the model's weights while the averages are in it

    @torch.no_grad()
    def update(self, taken: Tensor | None = None) -> None:
        """Update the averages unless the step was skipped; on a GPU without reading `taken`, so that it can be
        captured."""
        taken = torch.ones_like(self.steps) if taken is None else taken.to(self.steps)
        keep = ((1 + self.steps) / (10 + self.steps)).clamp(max=self.decay)
        for name, mean in self.means.items():
            mean.lerp_(self.weights[name].float(), (1 - keep) * taken)
        self.steps.add_(taken)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context with the averaged weights in the model; afterwards its own are restored, bit for bit."""
        if self.own is not None:
            yield
            return
        self.own = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.swap(self.means)
        try:
            yield
        finally:
            self.swap(self.own)
            self.own = None

    @torch.no_grad()
    def swap(self, tensors: dict[str, Tensor]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(tensors[name])

    def state(self) -> dict[str, Tensor]:
        """The averages, and the model's own weights: while the averages are applied, the model lacks the latter."""
        own = self.own or {name: weight.detach() for name, weight in self.weights.items()}
        means = {f"{name}/mean": mean for name, mean in self.means.items()}
        return {"steps": self.steps, **means, **{f"{name}/own": weight for name, weight in own.items()}}

    def load(self, held: dict[str, Tensor]) -> None:
        """Restore the averages and the model's own weights."""
        load_state_tensors(self.state(), held, "averaged weights")
