"""Token embedding: ids to Tokens, a trained vector for each, and their order without padding; long texts in chunks.

    text    a b c d │ e f g h │ i j . .
    inner   └trunk──┘ └trunk──┘ └trunk──┘       the same weights for every chunk
    outer      ▒         ▒         ▒            one token each, mean or first: the trunk of the model

Chunks start at the row's first real token, so padding changes nothing. Letters: C chunks of S tokens.
"""

from collections import Counter
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.hooks import HookContext
from regard.core.model import FRONT_ENDS, TRUNKS
from regard.core.tokens import Tokens, document_starts, sequence_tokens
from regard.inputs.cost import FrontEndCost, TrunkCost, linear_flops


class ChunkEmbedding(nn.Module):
    """Chunk embedding: ids (B, N) to Tokens (B, C, D)."""

    def __init__(self, c: config.ChunkEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.trunk = TRUNKS[c.trunk.kind](c.trunk, "xavier")
        self.text = TextEmbedding(c, self.trunk.incoming)
        self.map = nn.Linear(c.trunk.dim, width)

    @property
    def tokens(self) -> nn.Embedding:
        """The token embedding table."""
        return self.text.tokens

    def forward(
        self, ids: Tensor, *, real: Tensor | None = None, watch: HookContext | None = None, **given: Tensor
    ) -> Tokens:
        if given:
            raise ConfigError(f"{', '.join(given)}: chunked text is one whole text a row; leave it out")
        if real is None and self.c.pad_id is not None:
            real = ids != self.c.pad_id
        plain = real is None and ids.shape[1] % self.c.chunk_size == 0
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        ids, real = (self.fold_rows(x, real) for x in (ids, real))  # (B, C, S)
        made = self.trunk(self.text(ids.flatten(0, 1), real=real.flatten(0, 1)), watch=watch)
        x = self.map(self.pool_chunks(made.x.unflatten(0, real.shape[:2]), real))  #: S120
        return sequence_tokens(x) if plain else chunk_tokens(x, real.any(-1))

    def fold_rows(self, table: Tensor, real: Tensor) -> Tensor:  # (B, N) -> (B, C, S)
        """Each row from its first real token on, padded to whole chunks."""
        number = torch.arange(table.shape[1], device=table.device)
        from_first = (number + real.int().argmax(-1, keepdim=True)) % table.shape[1]
        chunks: Tensor = F.pad(table.gather(1, from_first), (0, -table.shape[1] % self.c.chunk_size))
        return chunks.unflatten(1, (-1, self.c.chunk_size))  # type: ignore[no-any-return]

    def pool_chunks(self, x: Tensor, real: Tensor) -> Tensor:  # (B, C, S, D) -> (B, C, D)
        if self.c.pooling == "first":
            return x[:, :, 0]
        keep = real[..., None].to(x.dtype)
        return (x * keep).sum(2) / keep.sum(2).clamp(min=1)

    def addresses(self) -> Iterator[str]:
        yield from self.trunk.addresses()

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        """FLOPs: each chunk is a short text of its own."""
        count = -(-context // self.c.chunk_size)
        inner = trunk_cost(self.trunk, self.c.chunk_size, None)
        found = Counter({name: count * operations for name, operations in inner.items()})
        return FrontEndCost(found + Counter({"embedding": linear_flops(self.map, count)}), count)


def chunk_tokens(x: Tensor, there: Tensor) -> Tokens:
    """Chunk vectors as tokens; `there` marks the real ones."""
    tokens = sequence_tokens(x)
    tokens.is_real, tokens.is_plain = there, False
    return tokens


FRONT_ENDS["chunks"] = ChunkEmbedding


class TextEmbedding(nn.Module):
    """Text front end: ids (B, N) to Tokens."""

    def __init__(self, c: config.TextEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.tokens = nn.Embedding(c.vocab, width)
        self.segments = nn.Embedding(c.segments, width) if c.segments else None

    def forward(
        self, ids: Tensor, *, real: Tensor | None = None, document: Tensor | None = None,
        segment: Tensor | None = None, start: Tensor | None = None, pieces: int | None = None,
    ) -> Tokens:  # fmt: skip
        """Ids to Tokens. `start` (B,) is the order of the first token, after a cache; `pieces` bounds the documents."""
        if ids.dim() != 2:
            raise ConfigError(f"ids must be (batch, tokens), got a tensor of shape {tuple(ids.shape)}")
        if real is None and self.c.pad_id is not None:
            real = ids != self.c.pad_id
        x = self.tokens(ids) * self.c.scale if self.c.scale != 1 else self.tokens(ids)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segment is None else segment)
        if segment is not None and self.segments is None:
            raise ConfigError("segment: this model has no segments; set embed.segments")
        return Tokens(
            x=x,
            order=token_order(ids, real, document, start),
            is_real=real,
            document=document,
            segment=segment,
            num_documents=pieces,
            end=None
            if self.c.eos_id is None
            else (ids if self.c.eos_is_max_id else (ids == self.c.eos_id).int()).argmax(-1),
            is_plain=real is None and document is None and start is None,
        )

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        return FrontEndCost(Counter(), context)

    def describe(self) -> str:
        return f"{self.tokens.num_embeddings:,} x {self.tokens.embedding_dim}"


def token_order(ids: Tensor, real: Tensor | None, document: Tensor | None, start: Tensor | None) -> Tensor:
    """(B, N) the order of each token: padding is not counted, and every document restarts at 0."""
    every = torch.arange(1, ids.shape[1] + 1, device=ids.device).expand(ids.shape)
    count = every if real is None else real.cumsum(-1)  # tokens up to here
    if document is not None:
        before = F.pad(count[:, :-1], (1, 0))
        count = count - torch.where(document_starts(document), before, 0).cummax(-1).values
    order = (count - 1).clamp(min=0)
    return order if start is None else order + start[:, None]


FRONT_ENDS["text"] = TextEmbedding
