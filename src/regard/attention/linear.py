"""Linear attention: a product of features replaces the softmax, so that the order of products may change.

    weight of key j for query i  ~  phi(q_i)·phi(k_j),   phi(x) = elu(x) + 1 > 0

Time and memory grow linearly, and generation keeps one matrix per head (Katharopoulos et al. 2020). It is not
equivalent to softmax: a model is trained with it, not converted to it. A scale on the scores would cancel.
"""

import torch.nn.functional as F
from torch import Tensor

from regard.attention.causal_scan import LinearState, scan_flops, scan_unsupported_reason, weighted_values
from regard.attention.cost import KERNEL_COSTS, KernelCost
from regard.attention.pairwise import kernel_numbers
from regard.core.kernels import AttentionArgs, Plan, register_kernel, repeat_kv
from regard.core.layers import Attention
from regard.gpu import linear_attention


def linear_cache_entry(attention: Attention, batch: int, capacity: int, like: Tensor) -> LinearState:
    """A state of constant size, for any capacity."""
    return LinearState(batch, attention.kv_heads, attention.head_dim, attention.value_head_dim, like)


KERNEL_COSTS["linear"] = KernelCost(flops=lambda a, field: scan_flops(a, field, a.head_dim), growth=("n·d²", 1.0))


@register_kernel("linear", exact=False, unsupported_reason=scan_unsupported_reason, cache_entry=linear_cache_entry)
def linear_kernel(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    kernel_numbers("linear", plan.numbers)
    if args.cache_entry is None and linear_attention.is_supported(q, v, plan.spec):
        return linear_attention.linear_attention(q, repeat_kv(k, q), repeat_kv(v, q))
    return weighted_values(positive_features(q), positive_features(k), v, plan.spec, args.cache_entry)


def positive_features(x: Tensor) -> Tensor:
    """Positive features elu(x) + 1, without elu: the compiler of torch 2.13 gets the layout of its gradient wrong."""
    return F.relu(x) + x.clamp(max=0).exp()
