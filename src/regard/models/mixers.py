"""Every place fully connected to every place: what attention saves us from. #: S049

A map of its own for each pair of places, N²·D² weights: 1.05e12 of them for 1,000 tokens of width 1,024, where
attention has 4·D² = 4.2e6. It knows places, not tokens: what it learns of one place it must learn again of the next.
Under a causal mask the maps from later places are zero. Not for texts longer than `length`.
"""

import torch
from torch import Tensor, nn

from regard.recurrent.readers import State, Together


class Connect(nn.Module):
    """y_t = sum_s W_ts x_s; its state are the vectors read so far, and how many they are."""

    def __init__(self, dim: int, length: int, both: bool = False) -> None:
        super().__init__()
        self.length, self.both = length, both
        self.weight = nn.Parameter(torch.empty(length, length, dim, dim))  # to, from, out, in
        nn.init.normal_(self.weight, std=(length * dim) ** -0.5)

    def fresh(self, batch: int, like: Tensor) -> State:
        dim, device = self.weight.shape[-1], like.device
        read = torch.zeros(batch, self.length, dim, dtype=like.dtype, device=device)
        return [read, torch.zeros(batch, dtype=torch.long, device=device)]

    def forward(self, x: Tensor, real: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        count = x.shape[1]
        if count > self.length:
            raise ValueError(f"trunk.mixer.length: {count} tokens, and there are maps for {self.length} places; give "
                             "it shorter texts, or build it longer")  # fmt: skip
        rows = None if real is None else Together(real)
        x = x if rows is None else rows.gather(x)
        if state is None:
            y = torch.einsum("tsoi,bsi->bto", self.maps(count).to(x.dtype), x)
            return y if rows is None else rows.back(y), []
        read, done = state
        at = (done[:, None] + torch.arange(count, device=x.device)).clamp(max=self.length - 1)  # beyond stands padding
        read = read.scatter_add(1, at[..., None].expand_as(x), x.to(read.dtype))  # which is zero
        y = torch.einsum("btsoi,bsi->bto", self.maps(self.length)[at].to(x.dtype), read.to(x.dtype))
        counts = torch.full_like(done, count) if rows is None else rows.counts
        return y if rows is None else rows.back(y), [read, done + counts]

    def maps(self, count: int) -> Tensor:
        maps = self.weight[:count, :count]
        if self.both:
            return maps
        past = torch.ones(count, count, dtype=torch.bool, device=maps.device).tril()
        return maps.masked_fill(~past[..., None, None], 0.0)
