"""RNN, GRU, LSTM and causal convolution layers, which read tokens in order with a state; and its cache entry.

    x_1      x_2      x_3            the interface is layer(x, real, state) -> (out, final state)
     │        │        │
  s_0 ─► f ─► s_1 ─► f ─► s_2 ...    a state is a list of tensors, each (B, ...); None is the start of a text

Padding changes no state, wherever it is in a row. Reading in parts gives the same result as reading at once. The size
of a state does not depend on the length.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

RecurrentState = list[Tensor]
CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class LeftAligned:
    """Moves the real tokens of each row to its start, and back to their positions."""

    def __init__(self, real: Tensor) -> None:  # (B, N)
        self.real, self.counts = real, real.sum(-1)
        self.order = (~real).int().argsort(dim=-1, stable=True)

    def gather(self, x: Tensor) -> Tensor:  # (B, N, D)
        return x.masked_fill(~self.real[..., None], 0.0).take_along_dim(self.order[..., None], 1)

    def restore(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter(1, self.order[..., None].expand_as(x), x)


class RNNLayer(nn.Module):
    """A recurrent layer by torch: h_t = tanh(W x_t + U h_t-1 + b), or with the gates of a GRU or an LSTM. #: S124

    A bidirectional layer is two of half the width, one from each end, with concatenated states.
    """

    def __init__(self, kind: str, incoming: int, dim: int, both: bool = False) -> None:
        super().__init__()
        self.kind, self.dim, self.both = kind, dim, both
        self.rnn = CELLS[kind](incoming, dim // 2 if both else dim, batch_first=True, bidirectional=both)
        if kind == "lstm":
            init_forget_gate(self.rnn)

    def fresh(self, batch: int, like: Tensor) -> RecurrentState:
        # sums over a whole text: 16 bits would lose old terms
        return [torch.zeros(batch, self.dim, device=like.device) for _ in range(1 + (self.kind == "lstm"))]

    def forward(
        self, x: Tensor, real: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        begun = None if state is None else self.to_torch_state(state, x.dtype)
        if real is None:
            return self.from_torch_state(*self.rnn(x, begun))
        rows = LeftAligned(real)
        lengths = rows.counts.clamp(min=1).cpu()  # torch needs a token; discarded below
        if int(lengths.min()) == x.shape[1] > 1:  # on a CPU packed rows have an n² gradient
            return self.from_torch_state(*self.rnn(x, begun))
        packed = pack_padded_sequence(rows.gather(x), lengths, batch_first=True, enforce_sorted=False)
        out, last = self.rnn(packed, begun)
        there, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        out, new = self.from_torch_state(rows.restore(there), last)
        old = state or self.fresh(len(x), x)
        return out, [now.where(rows.counts[:, None] > 0, before) for now, before in zip(new, old, strict=True)]

    def to_torch_state(self, state: RecurrentState, dtype: torch.dtype) -> Any:
        """A state in torch's format: a tensor for each direction, and one or two of them."""
        ways = [part.to(dtype).unflatten(-1, (1 + self.both, -1)).transpose(0, 1).contiguous() for part in state]
        return tuple(ways) if self.kind == "lstm" else ways[0]

    def from_torch_state(self, out: Tensor, last: Any) -> tuple[Tensor, RecurrentState]:
        parts = last if self.kind == "lstm" else (last,)
        return out, [part.transpose(0, 1).flatten(1).float() for part in parts]


@torch.no_grad()
def init_forget_gate(lstm: Any) -> None:
    """Initialise the forget gate's bias to 1, the others to 0, so that little is forgotten (Jozefowicz et al. 2015)."""
    for name, bias in lstm.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(bias)
        if name.startswith("bias_ih"):
            nn.init.ones_(bias[lstm.hidden_size : 2 * lstm.hidden_size])


class CausalConv(nn.Module):
    """Convolution over `size` positions, `dilation` apart: y_t = sum_i W_i x_(t - i·dilation) + b; or around t. #: S125

    Its state is the last (size - 1)·dilation vectors.
    """

    def __init__(self, dim: int, out: int, size: int, dilation: int, both: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, out, size, dilation=dilation)
        self.both, self.reach = both, (size - 1) * dilation
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def fresh(self, batch: int, like: Tensor) -> RecurrentState:
        return [torch.zeros(batch, self.reach, self.conv.in_channels, dtype=like.dtype, device=like.device)]

    def forward(
        self, x: Tensor, real: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        rows = None if real is None else LeftAligned(real)
        x = x if rows is None else rows.gather(x)
        if self.both:
            around = F.pad(x, (0, 0, self.reach // 2, self.reach // 2))
        else:
            before = (state or self.fresh(len(x), x))[0].to(x.dtype)
            around = torch.cat([before, x], 1)
        out = self.conv(around.mT).mT
        last = around[:, x.shape[1] :]
        if rows is not None:  # after the last real token
            at = rows.counts[:, None] + torch.arange(self.reach, device=x.device)
            last = around.take_along_dim(at[..., None], 1)
        return out if rows is None else rows.restore(out), [last]


class StateEntry:
    """A layer's state between two calls: tensors (B, ...) with fixed addresses, so that a CUDA graph can be
    replayed."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts

    def take(self) -> list[Tensor]:
        """A copy of the state, since backward may still need it when the next one is written."""
        return [part.clone() for part in self.parts]

    def write(self, parts: list[Tensor]) -> None:
        """Write the state in place, detached: the past is not trained."""
        for held, new in zip(self.parts, parts, strict=True):
            held.copy_(new.detach())

    def tables(self) -> list[Tensor]:
        return self.parts
