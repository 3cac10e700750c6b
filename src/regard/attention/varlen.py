"""Variable-length flash attention on the GPU: packed documents as sequences of their own length.

The number of documents must have a bound known on the host (`pieces`), so that nothing is read back from the GPU;
unused entries cost a little. Documents must be contiguous in their row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.cost import DENSE, KERNEL_COSTS
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel, repeat_kv
from regard.core.masks import CAUSAL, DOCUMENTS
from regard.core.tokens import TokenLayout, document_starts


def varlen_unsupported_reason(spec: AttentionSpec) -> str:
    if spec.mask not in (DOCUMENTS, CAUSAL & DOCUMENTS) or spec.q is not spec.k:
        return "runs the masks documents and causal & documents alone, without padding"
    if spec.q.num_documents is None:
        return "needs to know how many documents there are at most; give pieces= to the front end"
    if spec.bias or spec.dropout:
        return "has neither a bias on the scores nor dropout on the weights"
    half = spec.dtype in (torch.bfloat16, torch.float16)
    return "" if spec.device == "cuda" and half else "runs on CUDA in 16 bits alone"


def varlen_preferred_reason(spec: AttentionSpec) -> str:
    return "" if varlen_unsupported_reason(spec) else "documents run as sequences of their own length"


KERNEL_COSTS["varlen"] = DENSE


@register_kernel("varlen", unsupported_reason=varlen_unsupported_reason, preferred_reason=varlen_preferred_reason)
def varlen_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """Flash attention within each document, without any computation between documents."""
    from torch.nn.attention.varlen import varlen_attn  # imports half of the compiler: as slow as importing torch

    starts = cumulative_lengths(plan.spec.q)
    q_, k_, v_ = (repeat_kv(x, q).transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B·N, H, d)
    window = (-1, -1) if plan.spec.mask == DOCUMENTS else (-1, 0)
    out = varlen_attn(q_, k_, v_, starts, starts, q.shape[2], q.shape[2], scale=args.scale, window_size=window)
    assert isinstance(out, Tensor)
    return out.view(q.shape[0], q.shape[2], *out.shape[1:]).transpose(1, 2)


def cumulative_lengths(places: TokenLayout) -> Tensor:
    """(pieces + 1,) document offsets in the flattened batch, padded with the end: no host sync."""
    assert places.document is not None and places.num_documents is not None
    first, total = document_starts(places.document), places.document.numel()
    index = torch.where(first.flatten(), torch.arange(total, device=first.device), total)
    starts = index.sort().values[: places.num_documents]
    return F.pad(starts, (0, places.num_documents + 1 - starts.shape[0]), value=total).int()
