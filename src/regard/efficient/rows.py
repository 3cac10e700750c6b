"""Tables of who looks at whom a few queries at a time, each forgotten and made once more when backward comes to it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROOM = 2**22  # numbers in a piece of the table: what a cache of the processor holds


def by_rows(q: Tensor, keys: int, each: int, piece: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """piece(q (B, H, R, d), their numbers (R,)) for all queries, so many at once that R x keys x `each` fits."""
    size = max(1, ROOM // (q.shape[0] * q.shape[1] * keys * each))
    number = torch.arange(q.shape[2], device=q.device)
    if size >= q.shape[2]:
        return piece(q, number)
    made = []
    for start in range(0, q.shape[2], size):
        some = q[:, :, start : start + size], number[start : start + size]
        forgets = torch.is_grad_enabled()
        made.append(checkpoint(piece, *some, use_reentrant=False) if forgets else piece(*some))
    return torch.cat(made, 2)
