"""Mixers in the attention slot of a block: dense, convolution, recurrent, none; with attention's signature. #: S049

The trunk's mask decides on their direction. Padding is skipped; packed documents are refused.

DenseMixer has a matrix for each pair of positions, N²·D² weights: 1.05e12 of them for 1,000 tokens of width 1,024,
where attention has 4·D² = 4.2e6. Its weights belong to positions: a pattern must be learned again at every position.
Under a causal mask the matrices from later positions are zero. Not for texts longer than `length`. #: S049
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.layers import MIXERS, Scope
from regard.core.masks import mask
from regard.inputs.cost import MIXER_GROWTH, matrix_flops
from regard.models.rnn import CausalConv, LeftAligned, RecurrentState, RNNLayer, StateEntry
from regard.models.state_space import StateSpaceMixer


class DenseMixer(nn.Module):
    """Dense mixer, y_t = sum_s W_ts x_s; its state is the previous vectors and their number."""

    def __init__(self, dim: int, length: int, both: bool = False) -> None:
        super().__init__()
        self.length, self.both = length, both
        self.weight = nn.Parameter(torch.empty(length, length, dim, dim))  # to, from, out, in
        nn.init.normal_(self.weight, std=(length * dim) ** -0.5)

    def fresh(self, batch: int, like: Tensor) -> RecurrentState:
        dim, device = self.weight.shape[-1], like.device
        read = torch.zeros(batch, self.length, dim, dtype=like.dtype, device=device)
        return [read, torch.zeros(batch, dtype=torch.long, device=device)]

    def forward(
        self, x: Tensor, real: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        count = x.shape[1]
        if count > self.length:
            raise ConfigError(f"trunk.mixer.max_length: {count} tokens, and there are maps for {self.length} places; "
                             "give it shorter texts, or build it longer")  # fmt: skip
        rows = None if real is None else LeftAligned(real)
        x = x if rows is None else rows.gather(x)
        if state is None:
            y = torch.einsum("tsoi,bsi->bto", self.maps(count).to(x.dtype), x)
            return y if rows is None else rows.restore(y), []
        read, done = state
        at = (done[:, None] + torch.arange(count, device=x.device)).clamp(max=self.length - 1)  # beyond is padding
        read = read.scatter_add(1, at[..., None].expand_as(x), x.to(read.dtype))  # padding is zero
        y = torch.einsum("btsoi,bsi->bto", self.maps(self.length)[at].to(x.dtype), read.to(x.dtype))
        counts = torch.full_like(done, count) if rows is None else rows.counts
        return y if rows is None else rows.restore(y), [read, done + counts]

    def flops(self, tokens: int) -> int:
        return int(2 * self.weight.shape[-1] ** 2 * tokens * tokens)

    def maps(self, count: int) -> Tensor:
        maps = self.weight[:count, :count]
        if self.both:
            return maps
        past = torch.ones(count, count, dtype=torch.bool, device=maps.device).tril()
        return maps.masked_fill(~past[..., None, None], 0.0)


class MixerLayer(nn.Module):
    """An RNN, convolution or state space layer instead of attention."""

    sees: tuple[str, ...] = ("out",)

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, x: Tensor, scope: Scope, past: StateEntry | None = None) -> Tensor:
        places = scope.plan.spec.q
        refuse_packed_documents(places.document)
        out, state = self.reader(x, places.is_real, None if past is None else past.take())
        if past is not None:
            past.write(state)
        return scope.tap("attn.out", out)

    def entry(self, batch: int, capacity: int, like: Tensor) -> StateEntry:
        return StateEntry(self.reader.fresh(batch, like))

    def flops(self, tokens: int) -> int:
        return reader_flops(self.reader, tokens)


class NoMixer(nn.Module):
    """No mixer: it adds zero."""

    sees: tuple[str, ...] = ("out",)

    def forward(self, x: Tensor, scope: Scope, past: StateEntry | None = None) -> Tensor:
        return scope.tap("attn.out", torch.zeros_like(x))

    def entry(self, batch: int, capacity: int, like: Tensor) -> StateEntry:
        return StateEntry([])


def reader_flops(reader: nn.Module, tokens: int) -> int:
    """FLOPs for one sequence: the layer's own, or each of its matrices once for each token."""
    declared = getattr(reader, "flops", None)
    return declared(tokens) if declared else matrix_flops(reader) * tokens


def refuse_packed_documents(document: Tensor | None) -> None:
    """Refuse packed documents: the state would carry over from one to the next."""
    if document is not None:
        raise ConfigError("document: packed documents are kept apart by attention alone; set train.pack to false, and "
                         "train.batch_tokens to have rows of about one length")  # fmt: skip


MIXER_GROWTH |= {"none": ("0", 0.0), "cnn": ("k·n·d²", 1.0)} | dict.fromkeys(("rnn", "gru", "lstm"), ("n·d²", 1.0))


def register_mixer(kind: str, make: Callable[[Any, int, bool], Any], growth: tuple[str, float] | None = None) -> None:
    """Register a mixer: its layer from a config, a width and whether it is bidirectional; and the growth of its
    cost."""
    MIXER_GROWTH.update({} if growth is None else {kind: growth})

    def build_layer(c: config.Trunk, layer: int) -> MixerLayer:
        return MixerLayer(make(c.mixer, c.dim, mask(c.masks[layer % len(c.masks)]).ahead))

    MIXERS[kind] = build_layer


register_mixer("dense", lambda c, dim, both: DenseMixer(dim, c.max_length, both), ("n²·d²", 2.0))
register_mixer("conv", lambda c, dim, both: CausalConv(dim, dim, c.kernel_size, c.dilation, both), ("k·n·d²", 1.0))
register_mixer("recurrent", lambda c, dim, both: RNNLayer(c.cell, dim, dim, both))
register_mixer("ssm", lambda c, dim, both: StateSpaceMixer(dim, c.state_dim, both), ("n·s·d", 1.0))
MIXERS["none"] = lambda c, layer: NoMixer()
