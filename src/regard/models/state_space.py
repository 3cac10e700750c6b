"""Diagonal state space model (S4D): a linear recurrent layer, whose steps can be computed in parallel. #: S130

    s_t = a s_t-1 + b u_t        y_t = 2 Re(c · s_t)            step by step: for generation
    y = k * u                    k_l = 2 Re(c · b a^l)          one convolution: for training

Each channel has its own complex states, initialised as in S4D-Lin (Gu et al. 2022): a = exp(Δ·A),
A_n = -1/2 + i·pi·n, b = (a - 1)/A; Δ lies between 0.001 and 0.1, so that the memory of channels ranges from ten tokens
to a thousand. S is half of the states: each represents itself and its conjugate.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.layers import FusedLinear
from regard.inputs.cost import matrix_flops
from regard.models.rnn import LeftAligned, RecurrentState


class StateSpaceMixer(nn.Module):
    """State space mixer: a linear state and a skip connection for each channel; then gelu and a linear layer."""

    def __init__(self, dim: int, states: int, both: bool = False) -> None:
        super().__init__()
        self.dim, self.pairs = dim, states // 2
        self.ways = nn.ModuleList(DiagonalSSM(dim, self.pairs) for _ in range(1 + both))
        self.skip = nn.Parameter(torch.ones(dim))
        self.out = FusedLinear(dim, {"out": dim}, ("out",))

    def fresh(self, batch: int, like: Tensor) -> RecurrentState:
        return [torch.zeros(batch, self.dim, self.pairs, 2, device=like.device)]

    def forward(
        self, x: Tensor, real: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """The final state is computed only if one was given."""
        rows = None if real is None else LeftAligned(real)
        u = (x if rows is None else rows.gather(x)).float()  # sums over a whole text: not in 16 bits
        y, after = self.ways[0](u, None if rows is None else rows.counts, state)
        if len(self.ways) > 1:
            y = y + self.ways[1](u.flip(1), None, None)[0].flip(1)  # padding is zero, and leaves a state of zeros
        y = F.gelu(y + self.skip * u).to(x.dtype)
        return self.out(y if rows is None else rows.restore(y)), after

    def flops(self, tokens: int) -> int:
        """FLOPs: a complex multiply-add for each state, and the linear layer."""
        return (8 * len(self.ways) * self.dim * self.pairs + matrix_flops(self.out)) * tokens


class DiagonalSSM(nn.Module):
    """The state space model of one direction, with separate channels."""

    def __init__(self, dim: int, pairs: int) -> None:
        super().__init__()
        self.shape = (dim, pairs)
        # flat, because weight decay applies to matrices, and these are time scales
        self.step = nn.Parameter(torch.empty(dim).uniform_(math.log(0.001), math.log(0.1)))
        self.decay = nn.Parameter(torch.full((dim * pairs,), math.log(0.5)))
        self.turn = nn.Parameter(math.pi * torch.arange(float(pairs)).repeat(dim))
        self.read = nn.Parameter(torch.randn(dim * pairs * 2) * math.sqrt(0.5))

    def numbers(self) -> tuple[Tensor, Tensor, Tensor]:  # (D, S) each
        """The state space parameters log a, b and c."""
        rate = torch.complex(-self.decay.float().exp(), self.turn.float()).view(self.shape)
        log = self.step.float().exp()[:, None] * rate
        return log, (log.exp() - 1) / rate, torch.view_as_complex(self.read.float().view(*self.shape, 2))

    def forward(self, u: Tensor, counts: Tensor | None, state: RecurrentState | None) -> tuple[Tensor, RecurrentState]:
        log, b, c = self.numbers()
        time = torch.arange(u.shape[1], device=u.device)
        powers = (log * time[:, None, None]).exp()  # (N, D, S)
        y = fft_convolve(u, 2 * torch.einsum("nds,ds->nd", powers, b * c).real)
        if state is None:
            return y, []
        begun = torch.view_as_complex(state[0])
        y = y + 2 * torch.einsum("bds,nds->bnd", begun, powers * (log.exp() * c)).real
        if counts is None:
            told = torch.einsum("bnd,nds->bds", u.to(powers.dtype), powers.flip(0))
            return y, [torch.view_as_real(told * b + (log * u.shape[1]).exp() * begun)]
        since = (counts[:, None] - 1 - time).clamp(min=0)  # (B, N) steps from each token to the last real one
        told = torch.einsum("bnd,bnds->bds", u.to(powers.dtype), powers[since])
        return y, [torch.view_as_real(told * b + (log * counts[:, None, None]).exp() * begun)]


def fft_convolve(u: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution y_t = sum_l k_l u_(t-l) by FFT: (B, N, D) and (N, D) -> (B, N, D)."""
    count = 2 * u.shape[1]  # padding against circular wrap-around
    both = torch.fft.rfft(u, count, 1) * torch.fft.rfft(kernel, count, 0)
    y: Tensor = torch.fft.irfft(both, count, 1)
    return y[:, : u.shape[1]]
