"""Whole models: ids to tokens, a trunk of blocks, a head; with an encoder beside it, or several side by side."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.cache import Cache
from regard.core.init import initialise
from regard.core.kernels import Ask, Plan, plan
from regard.core.layers import ACTIVATIONS, Block, Fused, Norm, Scope
from regard.core.masks import DOCUMENTS, EVERYTHING, PADDING, Mask, mask
from regard.core.positions import Place, position
from regard.core.tokens import Places, Tokens, begins
from regard.core.watch import Looker, Watch


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
        order, at = places(ids, real, document, start)
        return Tokens(
            x=x, order=order, at=at, real=real, document=document, segment=segment, pieces=pieces,
            end=None if self.c.end is None else (ids == self.c.end).int().argmax(-1),
            plain=real is None and document is None and start is None,
        )  # fmt: skip


def places(
    ids: Tensor, real: Tensor | None, document: Tensor | None, start: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The order of each token, padding not counted, and its place within its document."""
    index = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    order = index if real is None else (real.cumsum(-1) - 1).clamp(min=0)
    if start is not None:
        order = order + start[:, None]
    if document is None:
        return order, None
    begun = torch.where(begins(document), index, 0).cummax(-1).values
    return index, (index - begun)[..., None]


class Trunk(nn.Module):
    """A stack of blocks: positions and norm before it, the loop, a last norm after it."""

    def __init__(self, c: config.Trunk) -> None:
        super().__init__()
        self.c = c
        tables = c.depth if getattr(c.position, "tables", "shared") == "layer" else 1
        self.positions = nn.ModuleList(
            position(c.position, c.width or c.dim, c.heads[i], c.head_width) for i in range(tables)
        )
        extra = self.position.extra
        self.incoming = c.width or c.dim - extra  # the width that the front end must give
        wide = self.incoming + extra
        self.embed_norm = Norm(c.norm, wide) if c.embed_norm else None
        self.project = nn.Linear(wide, c.dim) if wide != c.dim else None
        self.blocks = nn.ModuleList(Block(c, heads) for heads in c.heads[: 1 if c.shared else None])
        final = c.final_norm if c.final_norm is not None else c.place == "pre"
        self.final_norm = Norm(c.norm, c.dim) if final else None
        self.masks = [variants(mask(text)) for text in c.masks]
        self.nobody = variants(EVERYTHING)

    @property
    def position(self) -> Any:
        return self.positions[0]

    def forward(
        self, tokens: Tokens, *, memory: Tokens | None = None, layers: list[Tensor] | None = None,
        cache: Cache | None = None, watch: Watch | None = None, keep: list[Tensor] | None = None,
    ) -> Tokens:  # fmt: skip
        """`layers` is the memory layer by layer; `keep` collects what each block made, for such a decoder."""
        slots, keys = (None, tokens) if cache is None else cache.begin(tokens)
        x = self.stem(tokens)
        places: list[Place] = [each.prepare(tokens, keys) for each in self.positions]  # type: ignore[operator]
        plans = [self.plan(x, masks, tokens, keys, places[0]) for masks in self.masks]
        across = None if memory is None else self.plan(x, self.nobody, tokens, memory, Place())
        x = x if watch is None else watch.see("embed", x)
        for i in range(self.c.depth):
            scope = Scope(
                plan=plans[i % len(plans)], place=places[i % len(places)], across=across, slots=slots,
                memory=layers[i] if layers is not None else None if memory is None else memory.x,
                fresh=cache is None or cache.fresh, watch=None if watch is None else watch.at(str(i)),
            )  # fmt: skip
            past = (None, None) if cache is None else (cache.entries[i], cache.across[i] if cache.across else None)
            x = self.blocks[i % len(self.blocks)](x, scope, *past)
            if keep is not None:
                keep.append(x if self.final_norm is None else self.final_norm(x))
        if cache is not None:
            cache.fresh = False
        x = x if self.final_norm is None else self.final_norm(x)
        return tokens.carrying(x if watch is None else watch.see("final", x))

    def stem(self, tokens: Tokens) -> Tensor:
        """Positions, norm, dropout, and the map to dim if the vectors are of another width."""
        if tokens.x.shape[-1] != self.incoming:
            raise ValueError(f"the trunk takes vectors of width {self.incoming}, got {tokens.x.shape[-1]}")
        self.position.check(tokens.count)
        x = self.position.embed(tokens.x, tokens)
        x = x if self.embed_norm is None else self.embed_norm(x)
        x = F.dropout(x, self.c.dropout.embed, self.training)
        return x if self.project is None else self.project(x)

    def plan(self, x: Tensor, masks: dict[tuple[bool, bool], Mask], q: Places, k: Places, place: Place) -> Plan:
        """Padding and documents forbid looking wherever the tokens carry them, whatever the mask."""
        packed = q.document is not None and k.document is not None
        dtype = working(x)
        ask = Ask(
            mask=masks[k.real is not None, packed], q=q, k=k, bias=place.biased,
            dropout=self.training and self.c.dropout.attention > 0, grad=torch.is_grad_enabled(),
            half=dtype in (torch.bfloat16, torch.float16), device=x.device.type,
        )  # fmt: skip
        shared = place.bias if len(self.positions) == 1 else None
        return plan(self.c.attention.kernel, ask, shared, self.c.heads[0], dtype)

    def addresses(self) -> Iterator[str]:
        """Every address of the walk that `looking` takes."""
        attention = ("q", "k", "v", "scores", "pattern", "result", "out")
        sides = ("attn", "cross") if self.c.cross != "none" else ("attn",)
        yield "embed"
        for i in range(self.c.depth):
            yield from (f"{i}.{side}.{what}" for side in sides for what in attention)
            yield from (f"{i}.mlp.hidden", f"{i}.mlp.out", f"{i}.residual")
        yield "final"


def variants(base: Mask) -> dict[tuple[bool, bool], Mask]:
    """The mask with and without padding and documents, made beforehand: forward only picks one."""
    padded, packed = base & PADDING, base & DOCUMENTS
    return {(False, False): base, (True, False): padded, (False, True): packed, (True, True): padded & packed}


def working(x: Tensor) -> torch.dtype:
    """The type that products run in here."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


# ---------------------------------------------------------------- heads


class Vocabulary(Fused):
    """Vectors to logits over the vocabulary, with the embedding's own table when tied."""

    def __init__(self, c: config.Vocabulary, trunk: config.Trunk, embed: Embed) -> None:
        vocab, width = embed.tokens.weight.shape if c.tied or c.transform else (embed.c.vocab, trunk.dim)
        super().__init__(width, {"head": vocab}, ("head",) if c.bias else ())
        self.scale = c.scale
        self.dense = nn.Linear(trunk.dim, width) if c.transform else None
        self.norm = Norm(trunk.norm, width) if c.transform else None
        self.activation = ACTIVATIONS[trunk.mlp.activation]
        if c.tied and self.dense is None and width != trunk.dim:
            raise ValueError(f"head.tied: the embedding is {width} wide and the trunk {trunk.dim}; set head.transform")
        if c.tied:
            self.weight = embed.tokens.weight

    def forward(self, tokens: Tokens) -> Tensor:  # type: ignore[override]
        x = tokens.x
        if self.dense is not None and self.norm is not None:
            x = self.norm(self.activation(self.dense(x)))
        return super().forward(x if self.scale == 1 else x * self.scale)  #: S047


class Bare(nn.Module):
    """No head: the trunk's own vectors."""

    def forward(self, tokens: Tokens) -> Tensor:
        return tokens.x


HEADS: dict[str, Callable[..., nn.Module]] = {  # regard.heads enters more
    "vocabulary": Vocabulary,
    "none": lambda c, trunk, embed: Bare(),
}


# ---------------------------------------------------------------- models


class Transformer(nn.Module):
    """An encoder, a decoder, or both: which one is said by the masks and by whether there is an `encoder`."""

    def __init__(self, c: config.Transformer) -> None:
        super().__init__()
        self.c = c
        self.trunk = Trunk(c.trunk)
        self.embed = Embed(c.embed, self.trunk.incoming)
        self.encoder = Trunk(c.encoder.trunk) if c.encoder else None
        own = c.encoder is not None and c.encoder.embed
        self.encoder_embed = Embed(own, self.encoder.incoming) if own and self.encoder is not None else None
        self.head = HEADS[c.head.kind](c.head, c.trunk, self.embed)
        self.lookers: tuple[Looker, ...] = ()
        self.where = ""
        initialise(self, c.init, c.trunk.depth)
        if c.precision == "bf16":
            self.to(torch.bfloat16)

    def forward(
        self, ids: Tensor | Tokens, *, source: Tensor | Tokens | None = None, real: Tensor | None = None,
        source_real: Tensor | None = None, document: Tensor | None = None, segment: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        """Logits (B, N, V), or whatever the head makes. Front ends of your own may give Tokens in place of ids."""
        with self.casting(ids.x if isinstance(ids, Tokens) else ids):
            watch = Watch(self.lookers, self.where) if self.lookers else None
            memory, layers = self.read(source, source_real, cache, watch)
            start = None if cache is None or cache.fresh else cache.next
            if not isinstance(ids, Tokens):
                ids = self.embed(ids, real=real, document=document, segment=segment, start=start)
            inner = None if watch is None else watch.at("trunk")
            hidden = self.trunk(ids, memory=memory, layers=layers, cache=cache, watch=inner)
            out = self.head(hidden)
            return out if watch is None else watch.see("logits", out)

    def read(
        self, source: Tensor | Tokens | None, real: Tensor | None, cache: Cache | None, watch: Watch | None
    ) -> tuple[Tokens | None, list[Tensor] | None]:
        """The encoder's memory, and its layers one by one where the decoder wants them; a cache keeps both."""
        if self.encoder is None:
            if source is not None:
                raise ValueError("source: this model has no encoder")
            return None, None
        if source is None:
            if cache is None or cache.memory is None:
                raise ValueError("source: an encoder-decoder needs what to read, at least at the first call of a cache")
            return cache.memory, cache.layers
        embed = self.embed if self.encoder_embed is None else self.encoder_embed
        keep: list[Tensor] | None = [] if self.c.trunk.cross == "layerwise" else None
        tokens = source if isinstance(source, Tokens) else embed(source, real=real)
        memory = self.encoder(tokens, keep=keep, watch=None if watch is None else watch.at("encoder"))
        if cache is not None:
            cache.remember(memory, keep)
        return memory, keep  #: S012

    def casting(self, x: Tensor) -> Any:
        mixed = self.c.precision == "mixed"
        return torch.autocast(x.device.type, torch.bfloat16) if mixed else nullcontext()

    def cache(self, batch: int, capacity: int) -> Cache:
        """Room for `capacity` tokens in each of `batch` rows, to be given to forward again and again."""
        self.trunk.position.check(capacity)
        c = self.c.trunk
        sizes = [(c.attention.groups or n, c.head_width, c.attention.value_width or c.head_width) for n in c.heads]
        like = self.embed.tokens.weight
        if self.c.precision == "mixed":
            like = like.new_empty(0, dtype=torch.bfloat16)
        return Cache(sizes, batch, capacity, self.encoder is not None, like)

    def addresses(self) -> Iterator[str]:
        for name, trunk in (("encoder", self.encoder), ("trunk", self.trunk)):
            if trunk is not None:
                yield from (f"{self.where}.{name}.{step}".lstrip(".") for step in trunk.addresses())
        yield f"{self.where}.logits".lstrip(".")
