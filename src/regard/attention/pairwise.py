"""What mask and bias say about chosen pairs of query and key, for kernels that never make the whole table."""

import torch
from torch import Tensor

from regard.core.kernels import Ask
from regard.core.masks import EVERYTHING
from regard.core.positions import Bias
from regard.core.tokens import Spot


def between(ask: Ask, bias: Bias | None, where: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor | None:
    """For pairs at `where`, rows b, heads h, queries i and keys j that broadcast against each other: what is added to
    the score and minus infinity where looking is forbidden; without a bias True where it is allowed; or nothing."""
    b, h, i, j = where
    q, k = Spot(ask.q, b, i), Spot(ask.k, b, j)
    allowed = None if ask.mask == EVERYTHING else ask.mask.allows(q, k)
    if bias is None:
        return allowed
    added = bias.at(b, h, q, k).to(dtype)
    return added if allowed is None else added.masked_fill(~allowed, float("-inf"))


def judged(s: Tensor, table: Tensor | None) -> Tensor:
    """Scores with what `between` says about them."""
    if table is None:
        return s
    return s.masked_fill(~table, float("-inf")) if table.dtype == torch.bool else s + table


def axes(q: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of rows and heads, (B, 1, 1, 1) and (1, H, 1, 1)."""
    rows, heads = (torch.arange(size, device=q.device) for size in q.shape[:2])
    return rows.view(-1, 1, 1, 1), heads.view(1, -1, 1, 1)


def unless(claim: Tensor, said: str) -> str:
    """What is said against data of which the claim is not true; in a compiled graph, or on a GPU, it is said when the
    claim is reached, so that nobody waits for it here."""
    if claim.device.type == "cpu" and not torch.compiler.is_compiling():
        return "" if claim else said
    torch._assert_async(claim, f"attention.kernel {said}")
    return ""


def numbers(name: str, given: tuple[int, ...], *usual: int) -> tuple[int, ...]:
    """The numbers of "topk(32)", and the usual ones for those left out."""
    if len(given) > len(usual) or 0 in given:
        most = f"at most {len(usual)} numbers above 0" if usual else "no numbers"
        raise ValueError(f"attention.kernel {name!r} takes {most}, got {', '.join(map(str, given))}")
    return (*given, *usual[len(given) :])
