"""Optimizers and parameter groups of a run.

Weight decay applies to matrices and embedding tables only, Muon (if configured) to matrices in blocks. Learning rates
are tensors, so that a captured step can change them. bf16 weights have fp32 master weights here: the optimizer updates
the master, which is then copied to the weight.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.layers import FusedLinear
from regard.training.optim.adafactor import Adafactor
from regard.training.optim.muon import Muon
from regard.training.parallel.wrap import full_tensor
from regard.training.state_dict import load_state_tensors


class OptimizerGroup:
    """One or two optimizers that step together, with all their state."""

    def __init__(self, model: nn.Module, c: config.Optimizer) -> None:
        self.names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.masters = {
            name: nn.Parameter(weight.detach().float()) for name, weight in self.names.items()
            if weight.dtype in (torch.bfloat16, torch.float16)
        }  # fmt: skip
        self.own = {name: self.masters.get(name, weight) for name, weight in self.names.items()}
        self.parts = build_optimizers(model, self.own, c)
        self.base = [float(group["base"]) for group in self.groups()]

    def groups(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            yield from part.param_groups

    def set_lr_factor(self, factor: float) -> None:
        """Set the learning rates for the next step."""
        for group, base in zip(self.groups(), self.base, strict=True):
            group["lr"].fill_(base * factor)

    def gradients(self) -> list[Tensor]:
        for name, master in self.masters.items():
            grad = self.names[name].grad
            master.grad = None if grad is None else grad.float()
        return [weight.grad for weight in self.own.values() if weight.grad is not None]

    def init_state(self) -> None:
        """Create all state, also of weights without a gradient so far, so that what is saved and loaded is complete.

        Called at the first step, not before, since a run that is only read needs no state; the tensors stay in place.
        """
        for part in self.parts:
            for weight in (weight for group in part.param_groups for weight in group["params"]):
                part.state[weight] = part.state[weight] or initial_state(part, weight)

    @torch.no_grad()
    def step(self, clip: float | None, judge: Callable[[Tensor], Tensor] = torch.isfinite) -> tuple[Tensor, Tensor]:
        """Clip gradients and step. Returns the norm before clipping, and whether `judge(norm)` let the step be taken.

        A skipped step changes nothing: no weight, no moment, no step count.
        """
        self.init_state()
        grads = self.gradients()
        norm = full_tensor(torch.nn.utils.get_total_norm(grads))
        taken = judge(norm)
        if norm.device.type != "cuda":  # off the GPU reading `taken` costs little, and saves the work of a skipped step
            if not taken:
                return norm, taken
            clip = clip if clip is not None and norm > clip else None
        if clip is not None:
            torch._foreach_mul_(grads, (clip / (norm + 1e-6)).clamp(max=1.0))  # as torch clips
        for part in self.parts:
            if norm.device.type == "cuda":
                part.found_inf = (~taken).float()  # type: ignore[attr-defined]
            part.step()
        for name, master in self.masters.items():
            self.names[name].copy_(master)
        return norm, taken

    def zero_grad(self) -> None:
        for weight in (*self.names.values(), *self.masters.values()):
            weight.grad = None

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by the name of its weight."""
        self.init_state()
        held = {f"{name}/master": master.detach() for name, master in self.masters.items()}
        for part in self.parts:
            for name, weight in self.own.items():
                held |= {f"{name}/{key}": value for key, value in part.state.get(weight, {}).items()}
        return held

    def load(self, held: dict[str, Tensor]) -> None:
        """Load a saved state, completely or not at all."""
        load_state_tensors(self.state(), held, "optimizer state")


def build_optimizers(
    model: nn.Module, own: dict[str, nn.Parameter], c: config.Optimizer
) -> list[torch.optim.Optimizer]:
    """The optimizers of a config, each with its weights."""
    if isinstance(c, config.AdamW):
        return [build_adamw(parameter_groups(own, c.lr, c.weight_decay), c)]
    if isinstance(c, config.Adafactor):
        return [
            Adafactor(parameter_groups(own, c.lr, c.weight_decay), c.decay_rate, (c.eps[0], c.eps[1]), c.clip_threshold)
        ]
    matrices = {name: rows for name, rows in block_matrices(model) if name in own}
    rest = {name: weight for name, weight in own.items() if name not in matrices}
    found: list[torch.optim.Optimizer] = [build_adamw(parameter_groups(rest, c.adam_lr, 0.0), c)] if rest else []
    if matrices:
        moved = [(own[name], rows) for name, rows in matrices.items()]
        found.append(Muon(moved, c.lr, c.momentum, c.newton_schulz_steps, c.weight_decay))
    return found


def parameter_groups(weights: dict[str, nn.Parameter], lr: float, decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices and tables with weight decay, biases and gains without; `base` is the exact configured
    rate, which a tensor would round."""
    matrices = [weight for weight in weights.values() if weight.dim() >= 2]
    vectors = [weight for weight in weights.values() if weight.dim() < 2]
    return [
        {"params": some, "weight_decay": amount, "base": lr, "lr": torch.tensor(lr, device=some[0].device)}
        for some, amount in ((matrices, decay), (vectors, 0.0)) if some
    ]  # fmt: skip


def build_adamw(groups: list[dict[str, Any]], c: config.AdamW | config.Muon) -> torch.optim.Optimizer:
    cuda, coupled = any(group["lr"].is_cuda for group in groups), isinstance(c, config.AdamW) and not c.decoupled
    kind = torch.optim.Adam if coupled else torch.optim.AdamW
    return kind(groups, betas=(c.betas[0], c.betas[1]), eps=c.eps, fused=True, capturable=cuda)


def initial_state(part: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """The state of a weight before its first step, as torch's AdamW would create it itself."""
    if isinstance(part, Adafactor | Muon):
        return part.fresh(weight)
    step = torch.zeros((), device=weight.device)
    return {"step": step, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}


def block_matrices(model: nn.Module) -> Iterator[tuple[str, list[int]]]:
    """The weights of linear layers in blocks, with the rows of their parts."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}":
            rows = list(module.sizes.values()) if isinstance(module, FusedLinear) else [module.out_features]
            yield f"{name}.weight", rows
