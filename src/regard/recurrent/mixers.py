"""What stood in the block's first slot before attention did, each called as attention is. #: S049

The trunk's mask says whether they may look ahead. Padding is not read; packed documents are not told apart.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.layers import MIXERS, Scope
from regard.core.masks import mask
from regard.recurrent.connect import Connect
from regard.recurrent.readers import Cell, Window
from regard.recurrent.space import Space
from regard.recurrent.states import Held


class Mixing(nn.Module):
    """A reader in the place of attention."""

    sees: tuple[str, ...] = ("out",)

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, x: Tensor, scope: Scope, past: Held | None = None) -> Tensor:
        places = scope.plan.ask.q
        whole(places.document)
        out, state = self.reader(x, places.real, None if past is None else past.take())
        if past is not None:
            past.write(state)
        return scope.see("attn.out", out)

    def entry(self, batch: int, capacity: int, like: Tensor) -> Held:
        return Held(self.reader.fresh(batch, like))


class Nothing(nn.Module):
    """No tokens meet: it adds zero."""

    sees: tuple[str, ...] = ("out",)

    def forward(self, x: Tensor, scope: Scope, past: Held | None = None) -> Tensor:
        return scope.see("attn.out", torch.zeros_like(x))

    def entry(self, batch: int, capacity: int, like: Tensor) -> Held:
        return Held([])


def whole(document: Tensor | None) -> None:
    """A state would go on from one document into the next."""
    if document is not None:
        raise ValueError("document: packed documents are kept apart by attention alone; set train.pack to false, and "
                         "train.tokens to have rows of about one length")  # fmt: skip


def enter(kind: str, make: Callable[[Any, int, bool], Any]) -> None:
    """A reader of a setting, a width, and whether it may look ahead."""

    def made(c: config.Trunk, layer: int) -> Mixing:
        return Mixing(make(c.mixer, c.dim, mask(c.masks[layer % len(c.masks)]).ahead))

    MIXERS[kind] = made


enter("fc", lambda c, dim, both: Connect(dim, c.length, both))
enter("conv", lambda c, dim, both: Window(dim, dim, c.size, c.dilation, both))
enter("rnn", lambda c, dim, both: Cell(c.cell, dim, dim, both))
enter("ssm", lambda c, dim, both: Space(dim, c.states, both))
MIXERS["none"] = lambda c, layer: Nothing()
