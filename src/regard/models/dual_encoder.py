"""DualEncoder (CLIP): towers whose pooled vectors are compared, cosines times a trained logit scale."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.hooks import Hook
from regard.core.model import Transformer
from regard.core.tokens import Tokens

TowerInput = (
    Tensor | Tokens | dict[str, Any]
)  # input of a tower: ids or images, or its keyword arguments


class DualEncoder(nn.Module):
    """Dual encoder: several models whose pooled vectors are compared, cosines times a trained scale."""

    def __init__(self, c: config.DualEncoder) -> None:
        super().__init__()
        self.c = c
        widths = {tower.head.out or tower.trunk.dim for tower in c.towers if isinstance(tower.head, config.PoolingHead)}
        if len(c.towers) < 2 or not all(isinstance(tower.head, config.PoolingHead) for tower in c.towers):
            raise ConfigError("towers: at least two, each with a head of kind 'pooling'")
        if len(widths) > 1:
            raise ConfigError(f"towers: their vectors are {sorted(widths)} wide; set head.out to one width for all")
        self.towers: list[Transformer] = nn.ModuleList(Transformer(tower) for tower in c.towers)  # type: ignore[assignment]
        self.scale = nn.Parameter(torch.tensor(math.log(c.initial_scale)))
        for i, tower in enumerate(self.towers):
            tower.where = f"towers.{i}"

    def forward(self, *inputs: TowerInput, compare: bool = True) -> Any:
        """(B, C) logits between the first two towers: row i of the one against row j of the other.

        Without `compare`, the vectors of each tower, and the scale of their cosines.
        """
        places = range(len(self.towers))
        made = [self.encode(place, given) for place, given in zip(places, inputs, strict=True)]
        return self.logit_scale * made[0] @ made[1].mT if compare else (*made, self.logit_scale)  #: S062

    def encode(self, place: int, given: TowerInput) -> Tensor:  # (B, D)
        """The normalised vector of one tower; keyword arguments go in a dict."""
        tower = self.towers[place]
        x = tower(**given) if isinstance(given, dict) else tower(given)
        return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)

    @property
    def logit_scale(self) -> Tensor:
        """The factor of the cosines."""
        return self.scale.clamp(max=math.log(self.c.max_scale)).exp()

    @torch.no_grad()
    def clamp_scale(self) -> None:
        """Clamp the scale to its limit, which the gradient does not know."""
        self.scale.clamp_(max=math.log(self.c.max_scale))

    def addresses(self) -> Iterator[str]:
        for tower in self.towers:
            yield from tower.addresses()

    @property
    def hooks(self) -> tuple[Hook, ...]:
        return self.towers[0].hooks

    @hooks.setter
    def hooks(self, hooks: tuple[Hook, ...]) -> None:
        for tower in self.towers:
            tower.hooks = hooks
