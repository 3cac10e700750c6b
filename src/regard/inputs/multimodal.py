"""Multimodal embedding: the tokens of an image (or another modality), then those of a text, in one sequence.

    image ── patches ──►  ▒▒▒▒▒▒▒▒▒        x      concatenated, each with a vector of its modality
    text  ── embed ────►           ░░░░    order  0 1 2 ... 8 | 9 10 11 12: positions continue
                          ▒▒▒▒▒▒▒▒▒░░░░    real   joined; segment  0 for the image, 1 for the text

The trunk does not depend on this: its mask decides which tokens attend to which.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.model import FRONT_ENDS
from regard.core.tokens import Tokens
from regard.inputs.cost import FrontEndCost, TrunkCost, front_end_cost
from regard.inputs.text import TextEmbedding

SEEN = "seen_"  # prefix of keywords for the other front end


class MultimodalEmbedding(nn.Module):
    """Multimodal front end: text ids (B, N) and `seen`, the input of the other front end, to Tokens."""

    def __init__(self, c: config.MultimodalEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.prefix = FRONT_ENDS[c.prefix.kind](c.prefix, width)
        self.text = TextEmbedding(c.text, width)
        self.kinds = nn.Embedding(2, width)

    @property
    def tokens(self) -> nn.Embedding:
        """The token embedding, which a tied head uses."""
        return self.text.tokens

    def forward(self, ids: Tensor, *, seen: Any = None, start: Tensor | None = None, **given: Any) -> Tokens:
        """Prefix and text; keywords such as `seen_real` go to the front end of the prefix. With `start` only the text
        follows, after a cache that already holds the prefix."""
        other = {name.removeprefix(SEEN): given.pop(name) for name in list(given) if name.startswith(SEEN)}
        if "document" in given:
            raise ConfigError("document: the text after the prefix is one document; leave it out")
        if seen is None:
            if start is None:
                raise ConfigError("seen: a multimodal model reads it before the text; give seen= beside the ids")
            return self.add_kind(self.text(ids, start=start, **given), 1)
        first = self.add_kind(self.prefix(seen, **other), 0)
        if first.batch != len(ids):
            raise ConfigError(f"seen: {first.batch} rows, and there are {len(ids)} texts; give one for each")
        counts = first.order.new_full((first.batch,), first.count) if first.is_real is None else first.is_real.sum(-1)
        return concatenate_tokens(first, self.add_kind(self.text(ids, start=counts, **given), 1))  #: S083

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        first, text = (front_end_cost(each, context, trunk_cost) for each in (self.prefix, self.text))
        return FrontEndCost(first.parts + text.parts, first.tokens + text.tokens)

    def add_kind(self, tokens: Tokens, kind: int) -> Tokens:
        """The tokens with the vector of their modality added."""
        tokens = tokens.with_vectors(tokens.x + self.kinds.weight[kind].to(tokens.x.dtype))
        tokens.segment = torch.full_like(tokens.order, kind)
        return tokens


def concatenate_tokens(first: Tokens, second: Tokens) -> Tokens:
    """Concatenate two sequences; coordinates on several axes become sequence positions."""
    real = None
    if first.is_real is not None or second.is_real is not None:
        real = torch.cat([all_real(side) if side.is_real is None else side.is_real for side in (first, second)], 1)
    return Tokens(
        x=torch.cat([first.x, second.x], 1), order=torch.cat([first.order, second.order], 1), is_real=real,
        segment=torch.cat([table for side in (first, second) if (table := side.segment) is not None], 1),
        end=None if second.end is None else second.end + first.count, is_plain=real is None and first.is_plain,
    )  # fmt: skip


def all_real(tokens: Tokens) -> Tensor:
    return torch.ones_like(tokens.order, dtype=torch.bool)


FRONT_ENDS["multimodal"] = MultimodalEmbedding
