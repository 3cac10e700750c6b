"""Weight initialisation by name: each rule maps a weight's role (q, k, v, out, up, gate, down, ...) to its spread."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.layers import FusedLinear


def init_gpt2(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Normal 0.02; weights that write into the residual stream are divided by sqrt(2·depth) (Radford et al. 2019)."""
    nn.init.normal_(weight, std=0.02 / math.sqrt(2 * c.depth) if role in ("out", "down") else 0.02)


def init_t5(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Standard deviations that give unit variance without dividing scores by sqrt(d) (Raffel et al. 2020)."""
    fan = {"token": 1, "q": c.dim * c.head_width, "place": c.dim}.get(role, weight.shape[-1])
    nn.init.normal_(weight, std=1 / math.sqrt(fan))


def init_xavier(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Glorot and Bengio 2010 for linear layers, 1/sqrt(D) for token and position embeddings."""
    if role in ("token", "place"):
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))
    else:
        nn.init.xavier_uniform_(weight)


def zero_init(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Zero `out`, `down` and `head`: at first blocks add nothing, all tokens are equally likely (Zhang et al. 2019)."""
    nn.init.zeros_(weight) if role in ("out", "down", "head") else nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)


INIT_RULES: dict[str, Callable[[str, Tensor, config.Trunk], object]] = {
    "gpt2": init_gpt2, "t5": init_t5, "xavier": init_xavier, "zero_init": zero_init,
    "bert": lambda role, weight, c: nn.init.normal_(weight, std=0.02),
    "vit": lambda role, weight, c: nn.init.trunc_normal_(weight, std=0.02),
}  # fmt: skip


@torch.no_grad()
def init_weights(part: nn.Module, rule: str, c: Any) -> None:
    """Initialise every weight by the rule; biases are zero, and norms keep their initial values."""
    for role, weight in weight_roles(part):
        INIT_RULES[rule](role, weight, c)
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)


def weight_roles(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each weight with its role."""
    for name, module in model.named_modules():
        if isinstance(module, FusedLinear):
            yield from ((part, weight) for part, (weight, _) in module.named_parts().items())
        elif isinstance(module, nn.Linear | nn.Conv2d):
            yield "other", module.weight
        elif isinstance(module, nn.Embedding):
            yield "token", module.weight
        elif ".position" in f".{name}" and not isinstance(module, nn.ModuleList):
            yield from (("place", weight) for weight in module.parameters(recurse=False))
