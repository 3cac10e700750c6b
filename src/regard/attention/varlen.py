"""Packed documents as sequences of their own length: variable-length flash attention on the GPU.

The number of documents must be bounded by a Python number (`pieces`), so that nothing is read back to the host; the
bound's empty places cost a little. Documents must stand together in their row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.kernels import Ask, How, Plan, kernel, shared
from regard.core.masks import CAUSAL, DOCUMENTS
from regard.core.tokens import Places, begins


def refuses(ask: Ask) -> str:
    if ask.mask not in (DOCUMENTS, CAUSAL & DOCUMENTS) or ask.q is not ask.k:
        return "runs the masks documents and causal & documents alone, without padding"
    if ask.q.pieces is None:
        return "needs to know how many documents there are at most; give pieces= to the front end"
    if ask.bias or ask.dropout:
        return "has neither a bias on the scores nor dropout on the weights"
    half = ask.dtype in (torch.bfloat16, torch.float16)
    return "" if ask.device == "cuda" and half else "runs on CUDA in 16 bits alone"


def claims(ask: Ask) -> str:
    return "" if refuses(ask) else "documents run as sequences of their own length"


@kernel("varlen", refuses=refuses, claims=claims)
def varlen(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    """softmax within each document, and nothing computed between documents."""
    from torch.nn.attention.varlen import varlen_attn  # brings half of the compiler: as slow to import as torch itself

    starts = document_starts(plan.ask.q)
    q_, k_, v_ = (shared(x, q).transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B·N, H, d)
    window = (-1, -1) if plan.ask.mask == DOCUMENTS else (-1, 0)
    out = varlen_attn(q_, k_, v_, starts, starts, q.shape[2], q.shape[2], scale=how.scale, window_size=window)
    assert isinstance(out, Tensor)
    return out.view(q.shape[0], q.shape[2], *out.shape[1:]).transpose(1, 2)


def document_starts(places: Places) -> Tensor:
    """(pieces + 1,) where each document begins in the flattened batch, filled up with the end: no host sync."""
    assert places.document is not None and places.pieces is not None
    first, total = begins(places.document), places.document.numel()
    index = torch.where(first.flatten(), torch.arange(total, device=first.device), total)
    starts = index.sort().values[: places.pieces]
    return F.pad(starts, (0, places.pieces + 1 - starts.shape[0]), value=total).int()
