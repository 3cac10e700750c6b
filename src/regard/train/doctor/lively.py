"""A model with the same structure and other weights, large enough that nothing in it is silent.

Who sees whom, and whether order is seen, is a matter of structure. In a model that has just begun, blocks may add next
to nothing, and a mask that is off would change next to nothing: here every path carries about as much as any other, in
fp32, so what may not be seen changes nothing at all, and what is seen changes much.
"""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.model import Transformer

NOISE = 1e-3  # of the spread of what a model says: less is rounding


@torch.no_grad()
def lively(model: Transformer, trained: nn.Module) -> Transformer:
    """Positions stay as training leaves them, but for their size: a table of zeros says nothing here either."""
    made = copy.deepcopy(model).float().eval()
    made.c, made.lookers = replace(made.c, precision="fp32"), ()
    chance, places = torch.Generator().manual_seed(0), dict(trained.named_parameters())
    for name, weight in made.named_parameters():
        drawn = torch.randn(weight.shape, generator=chance).to(weight.device)
        if ".positions." in f".{name}":
            weight.copy_(sized(places[name], weight))
        elif name.endswith(("tokens.weight", "segments.weight")):
            front: Any = made.get_submodule(name.partition(".")[0])
            weight.copy_(drawn / front.c.scale)  # which would drown the positions
        elif weight.dim() > 1:
            weight.copy_(drawn * weight.shape[-1] ** -0.5)
        else:
            weight.copy_(0.1 * drawn + (1.0 if name.endswith("norm.weight") else 0.0))
    return made


def sized(trained: Tensor, before: Tensor) -> Tensor:
    """With a spread of one; as it was before, where training left no numbers."""
    table = trained.float() if bool(trained.isfinite().all()) else before
    spread = float(table.std(correction=0))
    return table / spread if spread else table


@torch.no_grad()
def said(model: nn.Module, given: dict[str, Tensor]) -> Any:
    """What the model answers: a tensor, or several."""
    rest = dict(given)
    return model(rest.pop("ids"), **rest)


def others(ids: Tensor, vocab: int, avoid: set[int]) -> Tensor:
    """Ids of the same shape, each another one than it was."""
    pool = torch.tensor([id for id in range(vocab) if id not in avoid], device=ids.device)
    chance = torch.Generator().manual_seed(1)
    drawn = pool[torch.randint(len(pool), ids.shape, generator=chance).to(ids.device)]
    return torch.where(drawn == ids, pool[(torch.searchsorted(pool, drawn) + 1) % len(pool)], drawn)
