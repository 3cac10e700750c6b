"""Muon: orthogonalised momentum as the update, for the matrices inside blocks (Jordan et al. 2024).

The update of a matrix is the nearest one whose singular values are all about 1, found by a few iterations of
Newton-Schulz. Matrices of equal shape are batched, and each part of a fused linear is a matrix of its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.layers import product_dtype

A, B, C = 3.4445, -4.7750, 2.0315  # coefficients of the quintic that moves singular values towards 1 fastest


class Muon(torch.optim.Optimizer):
    """Muon optimizer; `matrices` has each parameter with the rows of its parts."""

    def __init__(
        self, matrices: list[tuple[nn.Parameter, list[int]]], lr: float, momentum: float = 0.95, rounds: int = 5,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        self.rows = {id(weight): rows for weight, rows in matrices}
        settings = dict(base=lr, momentum=momentum, rounds=rounds, weight_decay=weight_decay)
        weights = [weight for weight, _ in matrices]
        super().__init__(weights, {**settings, "lr": torch.tensor(lr, device=weights[0].device)})
        self.found_inf: Tensor | None = None
        self.products = product_dtype(weights[0].device.type)

    def fresh(self, weight: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(weight)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                self.state[weight] = self.state[weight] or self.fresh(weight)
            if weights:
                self.update(group, weights, [self.state[weight]["momentum"] for weight in weights])

    def update(self, group: dict[str, Any], weights: list[Tensor], momenta: list[Tensor]) -> None:
        lr, keep = group["lr"], torch.full((), group["momentum"], device=weights[0].device)
        grads = [weight.grad for weight in weights if weight.grad is not None]
        if self.found_inf is not None:  # a skipped step changes neither weights nor state
            lr, keep = lr * (1 - self.found_inf), torch.maximum(keep, self.found_inf)
            grads = [grad.where(self.found_inf == 0, 0.0) for grad in grads]
        for momentum, grad in zip(momenta, grads, strict=True):
            momentum.lerp_(grad, 1 - keep)
        ahead = torch._foreach_lerp(grads, momenta, group["momentum"])  # Nesterov momentum
        pairs: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for weight, direction in zip(weights, ahead, strict=True):
            rows = self.rows[id(weight)]
            for part, along in zip(weight.split(rows), direction.split(rows), strict=True):
                pairs.setdefault(part.shape, []).append((part, along))
        for shape, alike in pairs.items():
            parts = [part for part, _ in alike]
            steps = newton_schulz(torch.stack([along for _, along in alike]).to(self.products), group["rounds"])
            steps = steps.to(parts[0].dtype)
            if group["weight_decay"]:
                torch._foreach_mul_(parts, 1 - lr * group["weight_decay"])
            torch._foreach_add_(parts, list((steps * (-lr * max(1, shape[0] / shape[1]) ** 0.5)).unbind()))


def newton_schulz(x: Tensor, rounds: int) -> Tensor:
    """Newton-Schulz iteration: (n, a, b) matrices with singular values near 1 instead of their own; bf16 is
    sufficient."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # x x' is then the smaller Gram matrix
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # singular values of at most 1
    for _ in range(rounds):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x
