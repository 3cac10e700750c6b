"""Who is updated by what: weight decay on matrices and tables alone, Muon for the blocks' matrices if asked for.

Learning rates are tensors, so that a captured step can change them. Weights kept in bf16 have an fp32 master here:
the optimizer moves the master, and the weight follows it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.layers import Fused
from regard.train.muon import Muon


class Optimizer:
    """One or two of torch's optimizers that move together."""

    def __init__(self, model: nn.Module, c: config.AdamW | config.Muon) -> None:
        self.names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.masters = {
            name: nn.Parameter(weight.detach().float()) for name, weight in self.names.items()
            if weight.dtype in (torch.bfloat16, torch.float16)
        }  # fmt: skip
        own = {name: self.masters.get(name, weight) for name, weight in self.names.items()}
        muon = isinstance(c, config.Muon)
        matrices = {name: rows for name, rows in block_matrices(model) if muon and name in own}
        rest = {name: weight for name, weight in own.items() if name not in matrices}
        self.parts: list[torch.optim.Optimizer] = [adamw(rest, c)] if rest else []
        if isinstance(c, config.Muon) and matrices:
            moved = [(own[name], rows) for name, rows in matrices.items()]
            lr = torch.tensor(c.lr, device=moved[0][0].device)
            self.parts.append(Muon(moved, lr, c.momentum, c.rounds, c.weight_decay))
        self.own, self.base = own, [base_rate(part, c) for part in self.parts for _ in part.param_groups]

    def groups(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            yield from part.param_groups

    def rate(self, factor: float) -> None:
        """Set the learning rates for the next step."""
        for group, base in zip(self.groups(), self.base, strict=True):
            group["lr"].fill_(base * factor)

    def gradients(self) -> list[Tensor]:
        for name, master in self.masters.items():
            grad = self.names[name].grad
            master.grad = None if grad is None else grad.float()
        return [weight.grad for weight in self.own.values() if weight.grad is not None]

    @torch.no_grad()
    def step(self, clip: float | None) -> Tensor:
        """Clip, move, and answer with the norm of the gradients; where that is no number, nothing moves."""
        grads = self.gradients()
        norm = torch.nn.utils.get_total_norm(grads)
        if norm.device.type == "cpu":  # where looking costs nothing, what need not be done is left
            if not norm.isfinite():
                return norm
            clip = clip if clip is not None and norm > clip else None
        if clip is not None:
            torch._foreach_mul_(grads, (clip / (norm + 1e-6)).clamp(max=1.0))
        for part in self.parts:
            if norm.device.type != "cpu":
                part.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
            part.step()
        for name, master in self.masters.items():
            self.names[name].copy_(master)
        return norm

    def zero_grad(self) -> None:
        for weight in self.names.values():
            weight.grad = None

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by the name of its weight."""
        held = {f"{name}/master": master.detach() for name, master in self.masters.items()}
        for part in self.parts:
            for name, weight in self.own.items():
                held |= {f"{name}/{key}": value for key, value in part.state.get(weight, {}).items()}
        return held

    @torch.no_grad()
    def load(self, held: dict[str, Tensor]) -> None:
        """Take over another's state; every tensor on both sides is accounted for, or nothing is taken."""
        names = {id(weight): name for name, weight in self.own.items()}
        slots = {f"{name}/master": master for name, master in self.masters.items()}
        kept = [
            (part, weight, key) for part in self.parts for group in part.param_groups for weight in group["params"]
            for key in (("momentum",) if isinstance(part, Muon) else ("step", "exp_avg", "exp_avg_sq"))
        ]  # fmt: skip
        begun = any(not key.endswith("/master") for key in held)  # a fresh optimizer has no state yet
        wanted = {*slots, *(f"{names[id(weight)]}/{key}" for _, weight, key in kept if begun)}
        if strange := sorted(wanted ^ held.keys()):
            what = "missing" if strange[0] in wanted else "unknown"
            raise config.DataError(f"optimizer state: {strange[0]} is {what}; it was saved by another optimizer, or "
                                   "for another model")  # fmt: skip
        for name, master in slots.items():
            master.copy_(held[name])
        for part, weight, key in kept if begun else []:
            there = held[f"{names[id(weight)]}/{key}"]
            part.state[weight][key] = there.to(weight.device, copy=True)


def base_rate(part: torch.optim.Optimizer, c: config.AdamW | config.Muon) -> float:
    """The learning rate as it was said, not as a tensor rounds it."""
    return c.adam_lr if isinstance(c, config.Muon) and not isinstance(part, Muon) else c.lr


def adamw(weights: dict[str, nn.Parameter], c: config.AdamW | config.Muon) -> torch.optim.AdamW:
    """Fused where there is a fused one; biases and gains are not decayed."""
    device = next(iter(weights.values())).device
    lr = c.lr if isinstance(c, config.AdamW) else c.adam_lr
    decay = c.weight_decay if isinstance(c, config.AdamW) else 0.0
    matrices = [weight for weight in weights.values() if weight.dim() >= 2]
    vectors = [weight for weight in weights.values() if weight.dim() < 2]
    groups = [
        {"params": params, "weight_decay": amount, "lr": torch.tensor(lr, device=device)}
        for params, amount in ((matrices, decay), (vectors, 0.0)) if params
    ]  # fmt: skip
    cuda = device.type == "cuda"
    return torch.optim.AdamW(groups, betas=(c.betas[0], c.betas[1]), eps=c.eps, fused=True, capturable=cuda)


def block_matrices(model: nn.Module) -> Iterator[tuple[str, list[int]]]:
    """The weights of the maps inside blocks, with the rows of their parts."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}":
            rows = list(module.sizes.values()) if isinstance(module, Fused) else [module.out_features]
            yield f"{name}.weight", rows
