"""Two kinds of data in one sequence: the tokens of what is seen, then those of a text.

    picture ── patches ──►  ▒▒▒▒▒▒▒▒▒        x      side by side, each with the vector of its kind
    text    ── embed ────►           ░░░░    order  0 1 2 ... 8 | 9 10 11 12: places run on
                            ▒▒▒▒▒▒▒▒▒░░░░    real   joined; segment  0 for what is seen, 1 for the text

A trunk knows nothing of this: what may look at what is said by its mask.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.model import FRONTS
from regard.core.tokens import Tokens
from regard.inputs.text import Embed

SEEN = "seen_"  # before the names of what else is given to the front end of what is seen


class Mixed(nn.Module):
    """Ids (B, N) of a text and `seen`, what the other front end takes, to Tokens."""

    def __init__(self, c: config.Mixed, width: int) -> None:
        super().__init__()
        self.c = c
        self.seen = FRONTS[c.seen.kind](c.seen, width)
        self.text = Embed(c.text, width)
        self.kinds = nn.Embedding(2, width)

    @property
    def tokens(self) -> nn.Embedding:
        """The table of words: a tied head says them with it."""
        return self.text.tokens

    def forward(self, ids: Tensor, *, seen: Any = None, start: Tensor | None = None, **given: Any) -> Tokens:
        """`seen_real` and the like go to the front end of what is seen. With `start` the text goes on, after a cache
        that has seen it already."""
        other = {name.removeprefix(SEEN): given.pop(name) for name in list(given) if name.startswith(SEEN)}
        if "document" in given:
            raise ValueError("document: a text that follows what is seen is one document; leave it out")
        if seen is None:
            if start is None:
                raise ValueError("seen: a model of both reads it before the text; give seen= beside the ids")
            return self.told(self.text(ids, start=start, **given), 1)
        first = self.told(self.seen(seen, **other), 0)
        if first.batch != len(ids):
            raise ValueError(f"seen: {first.batch} rows, and there are {len(ids)} texts; give one for each")
        counts = first.order.new_full((first.batch,), first.count) if first.real is None else first.real.sum(-1)
        return joined(first, self.told(self.text(ids, start=counts, **given), 1))  #: S083

    def told(self, tokens: Tokens, kind: int) -> Tokens:
        """The tokens with the vector of their kind."""
        tokens = tokens.carrying(tokens.x + self.kinds.weight[kind].to(tokens.x.dtype))
        tokens.segment = torch.full_like(tokens.order, kind)
        return tokens


def joined(first: Tokens, second: Tokens) -> Tokens:
    """One sequence of two; coordinates on several axes become places in a line."""
    real = None
    if first.real is not None or second.real is not None:
        real = torch.cat([everyone(side) if side.real is None else side.real for side in (first, second)], 1)
    return Tokens(
        x=torch.cat([first.x, second.x], 1), order=torch.cat([first.order, second.order], 1), real=real,
        segment=torch.cat([table for side in (first, second) if (table := side.segment) is not None], 1),
        end=None if second.end is None else second.end + first.count, plain=real is None and first.plain,
    )  # fmt: skip


def everyone(tokens: Tokens) -> Tensor:
    return torch.ones_like(tokens.order, dtype=torch.bool)


FRONTS["mixed"] = Mixed
