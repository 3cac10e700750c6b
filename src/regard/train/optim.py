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
        matrices = dict(block_matrices(model)) if isinstance(c, config.Muon) else {}
        rest = {name: weight for name, weight in own.items() if name not in matrices}
        self.parts: list[torch.optim.Optimizer] = [adamw(rest, c)]
        if isinstance(c, config.Muon) and matrices:
            moved = [(own[name], rows) for name, rows in matrices.items()]
            lr = torch.tensor(c.lr, device=moved[0][0].device)
            self.parts.append(Muon(moved, lr, c.momentum, c.rounds, c.weight_decay))
        self.base = [float(group["lr"]) for group in self.groups()]
        self.own = own

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
        if clip is not None:
            torch._foreach_mul_(grads, (clip / (norm + 1e-6)).clamp(max=1.0))
        for part in self.parts:
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
        left = dict(held)
        for name, master in self.masters.items():
            master.copy_(left.pop(f"{name}/master"))
        for part in self.parts:
            for weight in (weight for group in part.param_groups for weight in group["params"]):
                name = next(name for name, one in self.own.items() if one is weight)
                keys = [key for key in left if key.rpartition("/")[0] == name]
                part.state[weight] = {key.rpartition("/")[2]: left.pop(key).to(weight.device) for key in keys}
        if left:
            raise config.DataError(f"optimizer state for {', '.join(sorted(left)[:3])}: this run has no such weight")


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
