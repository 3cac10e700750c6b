"""Adafactor: the squared gradients of a matrix factored into one row and one column (Shazeer and Stern 2018).

    V ~ rows x columns / mean(rows)      one number for each row and each column, not for each weight
    W - min(lr, 1/sqrt(t)) · rms(W) · U / max(1, rms(U)/clip),   U = G / sqrt(V)

PyTorch's version reads numbers back to the host several times for each weight, so a step with it cannot be captured,
and with the paper's floor of 1e-30, which it squares, a row without gradients (a token absent from the batch) becomes
NaN. This version computes the same on the device; `eps[0]` is the floor of the squared gradient, PyTorch's squared.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Adafactor(torch.optim.Optimizer):
    """Adafactor optimizer: groups have `lr` and decoupled `weight_decay`; `decay` is the exponent in 1 - t^decay."""

    def __init__(self, groups: list[dict[str, Any]], decay: float, eps: tuple[float, float], clip: float) -> None:
        super().__init__(groups, dict(decay=decay, eps=eps, clip=clip))
        self.found_inf: Tensor | None = None

    def fresh(self, weight: Tensor) -> dict[str, Tensor]:
        """Initial state of a weight; stacked matrices have a state for each."""
        step = {"step": torch.zeros((), device=weight.device)}
        if weight.dim() < 2:
            return {**step, "variance": torch.zeros_like(weight)}
        return {**step, "row_var": torch.zeros_like(weight[..., :1]), "col_var": torch.zeros_like(weight[..., :1, :])}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.state[weight] = self.state[weight] or self.fresh(weight)
                    self.update(weight, weight.grad, self.state[weight], group)

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        turn, taken, (floor, least) = state["step"] + 1, torch.ones_like(state["step"]), group["eps"]
        if self.found_inf is not None:  # a skipped step changes neither weights nor state
            taken = 1 - self.found_inf
            grad = grad.where(taken.bool(), 0.0)
        pace = rms(weight).clamp(min=least) * torch.minimum(group["lr"], turn**-0.5) * taken
        if group["weight_decay"]:
            weight.mul_(1 - group["lr"] * group["weight_decay"] * taken)
        u = factored_variance(grad, state, turn ** group["decay"] * taken, floor).clamp_(min=floor).rsqrt_().mul_(grad)
        weight.addcmul_(u, pace / (rms(u) / group["clip"]).clamp(min=1.0), value=-1)
        state["step"].add_(taken)


def factored_variance(grad: Tensor, state: dict[str, Tensor], new: Tensor, floor: float) -> Tensor:
    """The factored estimate of the squared gradient, updated with weight `new`."""
    if grad.dim() < 2:
        return state["variance"].lerp_(grad.square(), new).clone()
    row, column = (state[name].lerp_(mean_square(grad, dim), new) for name, dim in (("row_var", -1), ("col_var", -2)))
    return (row / row.mean(dim=-2, keepdim=True).clamp(min=floor)) @ column


def mean_square(x: Tensor, dim: int) -> Tensor:
    """Mean square along one axis, without a tensor of squares."""
    size: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return size.square() / x.shape[dim]


def rms(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x)
    return size / math.sqrt(x.numel())
