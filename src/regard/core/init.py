"""How a model begins: named initialisations, each a rule from a weight's role to its spread.
Roles are the names of the parts: q, k, v, out, up, gate, down; token, place, head, other."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.layers import Fused


def gpt2(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Normal 0.02; what writes into the residual stream is smaller by sqrt(2·depth) (Radford et al. 2019)."""
    nn.init.normal_(weight, std=0.02 / math.sqrt(2 * c.depth) if role in ("out", "down") else 0.02)


def t5(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Spreads that leave unit variance without a division by sqrt(d) in the scores (Raffel et al. 2020)."""
    fan = {"token": 1, "q": c.dim * c.head_width, "place": c.dim}.get(role, weight.shape[-1])
    nn.init.normal_(weight, std=1 / math.sqrt(fan))


def xavier(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Glorot and Bengio 2010 for the maps, 1/sqrt(D) for the tables of tokens and places."""
    if role in ("token", "place"):
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))
    else:
        nn.init.xavier_uniform_(weight)


def quiet(role: str, weight: Tensor, c: config.Trunk) -> None:
    """Blocks add nothing and all tokens are as likely at first: out, down and head are zero (Zhang et al. 2019)."""
    nn.init.zeros_(weight) if role in ("out", "down", "head") else nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)


RULES: dict[str, Callable[[str, Tensor, config.Trunk], object]] = {
    "gpt2": gpt2, "t5": t5, "xavier": xavier, "quiet": quiet,
    "bert": lambda role, weight, c: nn.init.normal_(weight, std=0.02),
    "vit": lambda role, weight, c: nn.init.trunc_normal_(weight, std=0.02),
}


@torch.no_grad()
def initialise(part: nn.Module, rule: str, c: Any) -> None:
    """Give every weight its beginning by the rule; biases begin at zero, and norms as they were made."""
    for role, weight in roles(part):
        RULES[rule](role, weight, c)
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)


def roles(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each weight with the role it plays."""
    for name, module in model.named_modules():
        if isinstance(module, Fused):
            yield from ((part, weight) for part, (weight, _) in module.parts().items())
        elif isinstance(module, nn.Linear | nn.Conv2d):
            yield "other", module.weight
        elif isinstance(module, nn.Embedding):
            yield "token", module.weight
        elif ".position" in f".{name}" and not isinstance(module, nn.ModuleList):
            yield from (("place", weight) for weight in module.parameters(recurse=False))
