"""Linformer: keys and values of n tokens projected to k rows, so that scores are n x k instead of n x n.

    softmax(Q (E K)'·scale) (F V)          E, F (k, n) are learned: one pair per layer, for all its heads

Time and memory grow as n·k (Wang et al. 2020). The projection has a weight for each position, so the length is fixed
when the model is built; and since each projected key mixes every position, it can be neither causal nor cached. Padding
is set to zero before the projection.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.attention.cost import KERNEL_COSTS, AttentionField, KernelCost
from regard.attention.pairwise import kernel_numbers
from regard.config.errors import ConfigError
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel, repeat_kv
from regard.core.layers import Attention
from regard.core.masks import FULL, PADDING

MIXED = 256


class LengthProjection(nn.Module):
    """E and F; at initialisation projected unit keys have the norm of one key."""

    def __init__(self, mixed: int, length: int) -> None:
        super().__init__()
        self.k, self.v = (nn.Parameter(torch.empty(mixed, length)) for _ in range(2))
        for table in self.parameters():
            nn.init.normal_(table, std=length**-0.5)


def linformer_weights(attention: Attention, trunk: config.Trunk, given: tuple[int, ...]) -> LengthProjection:
    known = getattr(trunk.position, "length", 0) if trunk.position.kind in ("learned", "onehot") else 0
    mixed, length = kernel_numbers("linformer", given, MIXED, known if isinstance(known, int) else 0)
    if not length:
        raise ConfigError(f"attention.kernel 'linformer' fixes the length of its input; write linformer({mixed}, 1024)")
    return LengthProjection(mixed, length)


def linformer_unsupported_reason(spec: AttentionSpec) -> str:
    if spec.mask not in (FULL, PADDING):
        return f"projects all positions into each key: the mask must be full, not {spec.mask}"
    if spec.q is not spec.k:
        return "fixes the length of its input: it has neither cross-attention nor a cache"
    return "projects the keys of all positions: no score takes a bias; choose another position" if spec.bias else ""


def linformer_cache_entry(attention: Attention, batch: int, capacity: int, like: Tensor) -> None:
    raise ConfigError("attention.kernel 'linformer' has no cache: each of its keys mixes all positions")


def linformer_flops(a: Attention, field: AttentionField) -> int:
    assert isinstance(a.own, LengthProjection)
    return 2 * len(a.own.k) * (a.head_dim + a.value_head_dim) * (a.kv_heads * field.keys + a.heads * field.queries)


KERNEL_COSTS["linformer"] = KernelCost(flops=linformer_flops, growth=("n·k·d", 1.0))


@register_kernel(
    "linformer",
    exact=False,
    unsupported_reason=linformer_unsupported_reason,
    weights=linformer_weights,
    cache_entry=linformer_cache_entry,
)
def linformer_kernel(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    count, length = k.shape[2], args.weights.k.shape[1]
    if count != length:
        raise ConfigError(f"attention.kernel 'linformer' was made for {length} tokens, got {count}; pad or cut to that")
    if plan.spec.k.is_real is not None:
        k, v = (x.masked_fill(~plan.spec.k.is_real[:, None, :, None], 0.0) for x in (k, v))
    k, v = args.weights.k.to(k.dtype) @ k, args.weights.v.to(v.dtype) @ v  # (B, G, mixed, d)  #: S117
    k, v = repeat_kv(k, q), repeat_kv(v, q)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=args.dropout, scale=args.scale)
