"""Windows over a line of tokens in chunks: each chunk looks at itself and its neighbours, and at nothing further.

The mask causal & window(64) leaves a query 65 keys; over a table of n x n every query would pay for all n.

    keys      0 │ 1 │ 2 │ 3          a chunk is as long as the window reaches,
    chunk 2       └───┴─■            so its own and the one before hold all it may see

Letters: C chunks of S places; a query sees T places, its own chunk's and its neighbours'.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.kernels import Ask, How, Plan, kernel, pattern, shared
from regard.core.masks import CAUSAL, Mask, Window

LEAST = 16  # places in a chunk: products of fewer are not worth their call


def reach(mask: Mask) -> tuple[int, bool] | None:
    """How far a window reaches, and whether only backwards; None for any other mask."""
    for leaf in mask.leaves:
        if isinstance(leaf, Window) and mask in (leaf, leaf & CAUSAL):
            return leaf.radius, mask != leaf
    return None


def refuses(ask: Ask) -> str:
    if reach(ask.mask) is None:
        return "computes windows alone: the mask must be window(radius) or causal & window(radius)"
    if ask.q is not ask.k or not ask.q.plain:
        return "needs a line of tokens that are all there, without a cache"
    return "has no bias on the scores" if ask.bias else ""


def claims(ask: Ask) -> str:
    found = reach(ask.mask)
    if ask.device != "cpu" or found is None or ask.q.count < 4 * max(found[0], LEAST) or refuses(ask):
        return ""
    return "chunks look no further than the window"


@kernel("local", refuses=refuses, claims=claims)
def local(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    """Equal to the dense mask; time and memory grow with the length, not with its square."""
    found = reach(plan.ask.mask)
    assert found is not None
    (radius, behind), count = found, q.shape[2]
    size = max(radius, LEAST)
    chunks = -(-count // size)
    rest = chunks * size - count
    qs = F.pad(q, (0, 0, 0, rest)).unflatten(2, (chunks, size))  # (B, H, C, S, d)
    ks, vs = (neighbours(shared(x, q), size, rest, behind) for x in (k, v))  # (B, H, C, T, d)
    s = (qs * how.scale) @ ks.mT
    s = s.masked_fill(~allowed(chunks, size, radius, count, behind, q.device), float("-inf"))
    out = F.dropout(pattern(s, sure=True), how.dropout) @ vs
    return out.flatten(2, 3)[:, :, :count]


def neighbours(x: Tensor, size: int, rest: int, behind: bool) -> Tensor:
    """Each chunk with the one before it, and the one after if the window looks both ways."""
    after = 0 if behind else 1
    padded = F.pad(x, (0, 0, size, rest + after * size)).unflatten(2, (-1, size))
    chunks = padded.shape[2] - 1 - after
    return torch.cat([padded[:, :, shift : shift + chunks] for shift in range(2 + after)], 3)


def allowed(chunks: int, size: int, radius: int, count: int, behind: bool, device: torch.device) -> Tensor:
    """(C, S, T) which of its places a query may see; who stands beyond the end sees itself, so that no row is empty."""
    chunk, place, seen = (torch.arange(n, device=device) for n in (chunks, size, size * (2 if behind else 3)))
    i = (chunk[:, None] * size + place)[:, :, None]
    j = (chunk[:, None] - 1).mul(size)[:, :, None] + seen
    near = (i - j <= radius) & (j <= i if behind else j - i <= radius)
    return near & (j >= 0) & ((j < count) | (i == j))
