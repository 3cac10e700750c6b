"""Ids to Tokens: a trained vector for each, and the place each has among those that are real."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.model import FRONTS
from regard.core.tokens import Tokens, begins


class Embed(nn.Module):
    """Ids (B, N) to Tokens: the text front end."""

    def __init__(self, c: config.Embed, width: int) -> None:
        super().__init__()
        self.c = c
        self.tokens = nn.Embedding(c.vocab, width)
        self.segments = nn.Embedding(c.segments, width) if c.segments else None

    def forward(
        self, ids: Tensor, *, real: Tensor | None = None, document: Tensor | None = None,
        segment: Tensor | None = None, start: Tensor | None = None, pieces: int | None = None,
    ) -> Tokens:  # fmt: skip
        """`start` (B,) is the order of the first token, after what a cache holds; `pieces` bounds the documents."""
        if ids.dim() != 2:
            raise ValueError(f"ids must be (batch, tokens), got a tensor of shape {tuple(ids.shape)}")
        if real is None and self.c.pad is not None:
            real = ids != self.c.pad
        x = self.tokens(ids) * self.c.scale if self.c.scale != 1 else self.tokens(ids)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segment is None else segment)
        if segment is not None and self.segments is None:
            raise ValueError("segment: this model knows no segments; set embed.segments")
        return Tokens(
            x=x, order=places(ids, real, document, start), real=real, document=document, segment=segment, pieces=pieces,
            end=None if self.c.end is None else (ids if self.c.highest else (ids == self.c.end).int()).argmax(-1),
            plain=real is None and document is None and start is None,
        )  # fmt: skip


def places(ids: Tensor, real: Tensor | None, document: Tensor | None, start: Tensor | None) -> Tensor:
    """(B, N) the order of each token: padding is not counted, and every document begins anew."""
    every = torch.arange(1, ids.shape[1] + 1, device=ids.device).expand(ids.shape)
    count = every if real is None else real.cumsum(-1)  # tokens up to here
    if document is not None:
        before = F.pad(count[:, :-1], (1, 0))
        count = count - torch.where(begins(document), before, 0).cummax(-1).values
    order = (count - 1).clamp(min=0)
    return order if start is None else order + start[:, None]


FRONTS["text"] = Embed
