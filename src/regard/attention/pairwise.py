"""Mask and bias of chosen query-key pairs, and tables by query rows, for kernels without an n x n table."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.config.errors import ConfigError
from regard.core.kernels import AttentionSpec
from regard.core.masks import CAUSAL, FULL, Mask, Window
from regard.core.positions import Bias
from regard.core.tokens import TokenIndex


def pair_bias(spec: AttentionSpec, bias: Bias | None, where: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor | None:
    """Mask and bias of pairs at `where`, index tensors of row, head, query and key that broadcast: what is added to the
    score, minus infinity where not allowed; without a bias True where allowed; or None."""
    b, h, i, j = where
    q, k = TokenIndex(spec.q, b, i), TokenIndex(spec.k, b, j)
    allowed = None if spec.mask == FULL else spec.mask.allows(q, k)
    if bias is None:
        return allowed
    added = bias.at(b, h, q, k).to(dtype)
    return added if allowed is None else added.masked_fill(~allowed, float("-inf"))


def apply_pair_bias(s: Tensor, table: Tensor | None) -> Tensor:
    """Scores with the mask and bias of `pair_bias`."""
    if table is None:
        return s
    return s.masked_fill(~table, float("-inf")) if table.dtype == torch.bool else s + table


def batch_head_index(q: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of rows and heads, (B, 1, 1, 1) and (1, H, 1, 1)."""
    rows, heads = (torch.arange(size, device=q.device) for size in q.shape[:2])
    return rows.view(-1, 1, 1, 1), heads.view(1, -1, 1, 1)


def refuse_unless(claim: Tensor, problem: str) -> str:
    """The problem, if the claim is false for this data. In a compiled graph or on a GPU it is checked when the claim is
    computed, without waiting for the device."""
    if claim.device.type == "cpu" and not torch.compiler.is_compiling():
        return "" if claim else problem
    torch._assert_async(claim, f"attention.kernel {problem}")
    return ""


def kernel_numbers(name: str, given: tuple[int, ...], *usual: int) -> tuple[int, ...]:
    """The arguments of "topk(32)", with defaults for those left out."""
    if len(given) > len(usual) or 0 in given:
        most = f"at most {len(usual)} numbers above 0" if usual else "no numbers"
        raise ConfigError(f"attention.kernel {name!r} takes {most}, got {', '.join(map(str, given))}")
    return (*given, *usual[len(given) :])


ROOM = 2**22  # numbers in a chunk of the table: what fits in the CPU cache


def by_query_rows(q: Tensor, keys: int, each: int, piece: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Run piece(q (B, H, R, d), indices (R,)) over all queries, in chunks with R x keys x `each` bounded."""
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


def window_reach(mask: Mask) -> tuple[int, bool] | None:
    """The reach of a window, and whether it is causal; None for any other mask."""
    for leaf in mask.leaves:
        if isinstance(leaf, Window) and mask in (leaf, leaf & CAUSAL):
            return leaf.radius, mask != leaf
    return None
