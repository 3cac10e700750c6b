"""Long texts in chunks: each chunk is read by itself and becomes one vector, and the model's trunk reads the chunks.

    text    a b c d │ e f g h │ i j . .
    inner   └trunk──┘ └trunk──┘ └trunk──┘       the same weights for every chunk
    outer      ▒         ▒         ▒            one token each, mean or first: the trunk of the model

A chunk begins with the row's first real token, so padding changes nothing. Letters: C chunks of S tokens.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.model import FRONTS, TRUNKS
from regard.core.tokens import Tokens, line
from regard.core.watch import Watch
from regard.inputs.text import Embed


class Chunks(nn.Module):
    """Ids (B, N) to Tokens (B, C, D)."""

    def __init__(self, c: config.Chunks, width: int) -> None:
        super().__init__()
        self.c = c
        self.trunk = TRUNKS[c.trunk.kind](c.trunk, "xavier")
        self.text = Embed(c, self.trunk.incoming)
        self.map = nn.Linear(c.trunk.dim, width)

    @property
    def tokens(self) -> nn.Embedding:
        """The table of words."""
        return self.text.tokens

    def forward(
        self, ids: Tensor, *, real: Tensor | None = None, watch: Watch | None = None, **given: Tensor
    ) -> Tokens:
        if given:
            raise ValueError(f"{', '.join(given)}: a text in chunks is read whole, and alone; leave it out")
        if real is None and self.c.pad is not None:
            real = ids != self.c.pad
        plain = real is None and ids.shape[1] % self.c.size == 0
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        ids, real = (self.folded(x, real) for x in (ids, real))  # (B, C, S)
        made = self.trunk(self.text(ids.flatten(0, 1), real=real.flatten(0, 1)), watch=watch)
        x = self.map(self.pooled(made.x.unflatten(0, real.shape[:2]), real))  #: S120
        return line(x) if plain else chunked(x, real.any(-1))

    def folded(self, table: Tensor, real: Tensor) -> Tensor:  # (B, N) -> (B, C, S)
        """Each row from its first real token on, filled up to whole chunks with what is not there."""
        number = torch.arange(table.shape[1], device=table.device)
        from_first = (number + real.int().argmax(-1, keepdim=True)) % table.shape[1]
        chunks: Tensor = F.pad(table.gather(1, from_first), (0, -table.shape[1] % self.c.size))
        return chunks.unflatten(1, (-1, self.c.size))  # type: ignore[no-any-return]

    def pooled(self, x: Tensor, real: Tensor) -> Tensor:  # (B, C, S, D) -> (B, C, D)
        if self.c.pool == "first":
            return x[:, :, 0]
        keep = real[..., None].to(x.dtype)
        return (x * keep).sum(2) / keep.sum(2).clamp(min=1)

    def addresses(self) -> Iterator[str]:
        yield from self.trunk.addresses()


def chunked(x: Tensor, there: Tensor) -> Tokens:
    """Chunks in a row, of which the last may not be there."""
    tokens = line(x)
    tokens.real, tokens.plain = there, False
    return tokens


FRONTS["chunks"] = Chunks
