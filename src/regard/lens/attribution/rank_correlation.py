"""Rank correlation: do two lists of numbers order the same things alike? Spearman's rho and Kendall's tau-b.

Both are 1 for the same order, -1 for the opposite one and nan where one of the lists is constant; ties share a rank.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def ranks(x: Tensor) -> Tensor:  # (…, N) -> (…, N)
    """Ranks from one on; equal numbers share the mean of theirs."""
    order = x.contiguous().sort(-1).values
    below = torch.searchsorted(order, x.contiguous())
    through = torch.searchsorted(order, x.contiguous(), right=True)
    return (below + through + 1).double() / 2


def spearman(x: Tensor, y: Tensor) -> Tensor:  # (…, N) and (…, N), which broadcast -> (…)
    """The correlation of the ranks (Spearman 1904)."""
    a, b = (each - each.mean(-1, keepdim=True) for each in (ranks(x), ranks(y)))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def kendall(x: Tensor, y: Tensor) -> Tensor:
    """Pairs in the same order less pairs in opposite order, as a share of those without ties (tau-b, Kendall 1945)."""
    x, y = torch.broadcast_tensors(x, y)
    rows = zip(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), strict=True)
    return torch.stack([kendall_row(a, b) for a, b in rows]).view(x.shape[:-1])


def kendall_row(x: Tensor, y: Tensor) -> Tensor:  # (N,) and (N,) -> ()
    a, b = ((each[:, None] - each).sign().double() for each in (x, y))  # one row at a time: N x N
    return (a * b).sum() / (a.abs().sum() * b.abs().sum()).sqrt()


CORRELATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"spearman": spearman, "kendall": kendall}
