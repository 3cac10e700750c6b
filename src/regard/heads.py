"""What is asked of a trunk's vectors: one vector for a whole sequence, and models compared by theirs."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.model import HEADS, Embed, Transformer
from regard.core.tokens import Tokens
from regard.core.watch import Looker


class Pooled(nn.Module):
    """One vector for the sequence: the first token's, the mean, the last real one's, or the end-of-text token's."""

    def __init__(self, c: config.Pooled, trunk: config.Trunk, embed: Embed) -> None:
        super().__init__()
        self.c = c
        self.dense = nn.Linear(trunk.dim, trunk.dim) if c.dense else None
        self.out = nn.Linear(trunk.dim, c.out, bias=c.bias) if c.out else None

    def forward(self, tokens: Tokens) -> Tensor:
        x = self.pick(tokens)
        x = x if self.dense is None else self.dense(x).tanh()
        return x if self.out is None else self.out(x)

    def pick(self, tokens: Tokens) -> Tensor:  # (B, D)
        x, real = tokens.x, tokens.real
        if self.c.place == "mean":
            keep = x.new_ones(x.shape[:2]) if real is None else real.to(x.dtype)
            return (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
        at = torch.zeros_like(tokens.order[:, 0])  #: S054
        if self.c.place == "end" and tokens.end is not None:
            at = tokens.end
        elif self.c.place == "last":
            index = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
            at = (index if real is None else index * real).amax(-1)
        elif real is not None:
            at = real.int().argmax(-1)  # the first real token, after padding on the left
        return x.take_along_dim(at[:, None, None], 1)[:, 0]


HEADS["pooled"] = Pooled


class Towers(nn.Module):
    """Several models whose pooled vectors are compared: cosines times a trained scale."""

    def __init__(self, c: config.Towers) -> None:
        super().__init__()
        self.c = c
        self.towers: list[Transformer] = nn.ModuleList(Transformer(tower) for tower in c.towers)  # type: ignore[assignment]
        self.scale = nn.Parameter(torch.tensor(c.scale).log())
        for i, tower in enumerate(self.towers):
            tower.where = f"towers.{i}"

    def forward(self, *inputs: Tensor | Tokens) -> Tensor:
        """(B, C) logits between the first two towers: row i of the one against row j of the other."""
        first, second, *_ = (F.normalize(tower(x), dim=-1) for tower, x in zip(self.towers, inputs, strict=True))
        return self.scale.exp() * first @ second.mT

    def addresses(self) -> Iterator[str]:
        for tower in self.towers:
            yield from tower.addresses()

    @property
    def lookers(self) -> tuple[Looker, ...]:
        return self.towers[0].lookers

    @lookers.setter
    def lookers(self, lookers: tuple[Looker, ...]) -> None:
        for tower in self.towers:
            tower.lookers = lookers
