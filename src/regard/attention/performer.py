"""Performer (FAVOR+): softmax attention estimated by random features, in time that grows with the length.

    exp(q·k)  =  the mean over random w of  exp(w·q - |q|²/2) exp(w·k - |k|²/2),      w ~ N(0, 1) in every channel

The estimate is unbiased and positive. Orthogonal directions, each with its opposite, have less variance than
independent ones (Choromanski et al. 2021). The error falls as 1/sqrt(features), but grows as exp(|q + k|²): at unit
scale in heads of 64 it stays above 0.8 even with 4,096 features (docs/efficient.md).
"""

import torch
from torch import Tensor, nn

from regard import config
from regard.attention.causal_scan import (
    LinearState,
    accumulation_dtype,
    scan_flops,
    scan_unsupported_reason,
    weighted_values,
)
from regard.attention.cost import KERNEL_COSTS, AttentionField, KernelCost
from regard.attention.pairwise import kernel_numbers
from regard.config.errors import ConfigError
from regard.core.kernels import AttentionArgs, Plan, register_kernel
from regard.core.layers import Attention

FEATURES = 256
HIGHEST = 60.0  # e^60 times a million keys is still finite


class RandomFeatures(nn.Module):
    """The random directions (features/2, d) of one layer, drawn from a seed; both are saved with the weights."""

    w: Tensor
    seed: Tensor

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        if features % 2:
            raise ConfigError(f"attention.kernel 'performer' takes an even number of features, got {features}")
        self.register_buffer("w", torch.zeros(features // 2, width))
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        if not self.w.is_meta:
            self.draw(int(torch.randint(2**31, ())))

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Draw other directions: equal seeds give equal directions."""
        self.seed.fill_(seed)
        self.w.copy_(orthogonal_features(len(self.w), self.w.shape[1], torch.Generator().manual_seed(seed)))


def orthogonal_features(count: int, width: int, chance: torch.Generator) -> Tensor:
    """Random orthogonal directions in groups of `width`, with the norms of independent normal vectors."""
    made = torch.linalg.qr(torch.randn(-(-count // width), width, width, generator=chance))
    # QR fixes signs, which favours some directions and would bias the estimate
    turned = made.Q * made.R.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    length: Tensor = torch.randn(count, width, generator=chance).norm(dim=-1, keepdim=True)
    directions: Tensor = turned.flatten(0, 1)[:count]
    return directions * length


def redraw_features(model: nn.Module, seed: int) -> None:
    """New directions in every layer, as in Performer training every thousand steps or so."""
    for number, own in enumerate(part for part in model.modules() if isinstance(part, RandomFeatures)):
        own.draw(seed + number)


def performer_weights(attention: Attention, trunk: config.Trunk, given: tuple[int, ...]) -> RandomFeatures:
    (features,) = kernel_numbers("performer", given, FEATURES)
    return RandomFeatures(features, attention.head_dim)


def performer_cache_entry(attention: Attention, batch: int, capacity: int, like: Tensor) -> LinearState:
    assert isinstance(attention.own, RandomFeatures)
    return LinearState(batch, attention.kv_heads, 2 * len(attention.own.w), attention.value_head_dim, like)


def performer_flops(a: Attention, field: AttentionField) -> int:
    assert isinstance(a.own, RandomFeatures)
    directions = 2 * a.own.w.numel() * (a.heads * field.queries + a.kv_heads * field.keys)
    return directions + scan_flops(a, field, 2 * len(a.own.w))


KERNEL_COSTS["performer"] = KernelCost(flops=performer_flops, growth=("n·m·d", 1.0))


@register_kernel(
    "performer",
    exact=False,
    unsupported_reason=scan_unsupported_reason,
    weights=performer_weights,
    cache_entry=performer_cache_entry,
)
def performer_kernel(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    root = abs(args.scale) ** 0.5
    flipped = -root if args.scale < 0 else root
    asked, offered = feature_map(q * flipped, args.weights.w), feature_map(k * root, args.weights.w)
    asked = asked - asked.amax(-1, keepdim=True).detach()  # cancels: each query is divided by its own sum
    # not so for keys, which share it: a maximum over all of them would let the future change the past
    return weighted_values(asked.exp().to(v), offered.clamp(max=HIGHEST).exp().to(v), v, plan.spec, args.cache_entry)


def feature_map(x: Tensor, w: Tensor) -> Tensor:
    """Exponents of the random features: w·x - |x|²/2 and -w·x - |x|²/2 in fp32, (B, H, N, features)."""
    x = x.to(accumulation_dtype(x))
    along = x @ w.to(x.dtype).mT
    return torch.cat([along, -along], -1) - x.square().sum(-1, keepdim=True) / 2  #: S118
