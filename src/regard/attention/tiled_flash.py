"""Flash attention, readable: exact attention without an n x n table (Dao et al. 2022).

The softmax over a row can be computed in parts if the largest score so far is kept: for a larger one, all previous sums
are scaled by exp(old - new). Keys come in tiles; a tile's scores are computed, used and dropped.

    top    = max(top, scores)                  the largest score so far
    total  = total·exp(old - top) + sum(p)     p = exp(scores - top)
    out    = out·exp(old - top) + p V          and at the end out / total

Backward recomputes each tile from q, k and one number per row, top + log(total). In fp32 throughout. Fused kernels do
this in registers; this version is for reading, and for comparison.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.cost import DENSE, KERNEL_COSTS
from regard.attention.pairwise import apply_pair_bias, batch_head_index, kernel_numbers, pair_bias
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel, repeat_kv
from regard.core.positions import Bias
from regard.core.tokens import TokenIndex

SIZE = 64


def unsupported_reason(spec: AttentionSpec) -> str:
    return "has no dropout on attention weights" if spec.dropout else ""


KERNEL_COSTS["tiled_flash"] = DENSE


@register_kernel("tiled_flash", unsupported_reason=unsupported_reason)
def tiled_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    (size,) = kernel_numbers("tiled_flash", plan.numbers, SIZE)
    tables = bias_tensors(args.bias)
    call = TiledCall(plan.spec, args.bias, tuple(tables), args.scale, size)
    out: Tensor = TiledFunction.apply(call, q, repeat_kv(k, q), repeat_kv(v, q), *tables.values())  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True, eq=False)
class TiledCall:
    """Arguments of one call besides its tensors."""

    spec: AttentionSpec
    bias: Bias | None
    tables: tuple[str, ...]  # the bias' own tensors, which need gradients
    scale: float
    size: int

    def tiles(self, count: int) -> Iterator[tuple[slice, slice]]:
        """The queries and keys of each tile; under a causal mask, queries before the tile's keys are skipped."""
        for start in range(0, count, self.size):
            yield slice(start if self.spec.causal else 0, None), slice(start, start + self.size)

    def where(self, q: Tensor, k: Tensor, rows: slice, keys: slice) -> tuple[Tensor, ...]:
        i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
        return *batch_head_index(q), i[rows].view(1, 1, -1, 1), j[keys].view(1, 1, 1, -1)

    def scores(self, q: Tensor, k: Tensor, rows: slice, keys: slice) -> Tensor:
        s = (q[:, :, rows] * self.scale) @ k[:, :, keys].mT
        return apply_pair_bias(s, pair_bias(self.spec, self.bias, self.where(q, k, rows, keys), s.dtype))

    def pull(self, tables: list[Tensor], sums: list[Tensor], ds: Tensor, where: tuple[Tensor, ...]) -> None:
        """Add a tile's share to the gradients of the bias' own tables."""
        if self.bias is None or not any(table.requires_grad for table in tables):
            return
        b, h, i, j = where
        with torch.enable_grad():
            fresh = [table.detach().requires_grad_() for table in tables]
            bias = replace(self.bias, **dict(zip(self.tables, fresh, strict=True)))  # type: ignore[type-var]
            added = (bias.at(b, h, TokenIndex(self.spec.q, b, i), TokenIndex(self.spec.k, b, j)) * ds).sum()
        for one, part in zip(sums, torch.autograd.grad(added, fresh), strict=True):
            one += part


def bias_tensors(bias: Bias | None) -> dict[str, Tensor]:
    if bias is None or not is_dataclass(bias):
        return {}
    given = {field.name: getattr(bias, field.name) for field in fields(bias)}
    return {name: table for name, table in given.items() if isinstance(table, Tensor)}


class TiledFunction(torch.autograd.Function):
    """Forward and backward of exact attention, one tile of keys at a time."""

    @staticmethod
    def forward(ctx: Any, call: TiledCall, q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        Q, K, V = (x.to(wide) for x in (q, k, v))
        out, total = Q.new_zeros(*Q.shape[:3], V.shape[-1]), Q.new_zeros(*Q.shape[:3], 1)
        top = torch.full_like(total, float("-inf"))
        for rows, keys in call.tiles(K.shape[2]):
            s = call.scores(Q, K, rows, keys)
            new = torch.maximum(top[:, :, rows], s.amax(-1, keepdim=True))
            safe = new.masked_fill(new == float("-inf"), 0.0)  # a row without keys so far keeps zeros
            p, shrink = (s - safe).exp(), (top[:, :, rows] - safe).exp()
            total[:, :, rows] = total[:, :, rows] * shrink + p.sum(-1, keepdim=True)
            out[:, :, rows] = out[:, :, rows] * shrink + p @ V[:, :, keys]  #: S116
            top[:, :, rows] = new
        seen = total.masked_fill(total == 0, 1.0)
        out = (out / seen).to(v.dtype)
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, top.masked_fill(total == 0, 0.0) + seen.log(), *tables)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients with weights p: dV = p'g, and for scores p·(gV' - its mean over the row), from which dQ and dK
        follow."""
        q, k, v, out, sums, *tables = ctx.saved_tensors
        Q, K, V, G = (x.to(sums.dtype) for x in (q, k, v, g))
        call, mean = ctx.call, (G * out).sum(-1, keepdim=True)
        dq, dk, dv, *rest = (torch.zeros_like(x) for x in (Q, K, V, *tables))
        for rows, keys in call.tiles(K.shape[2]):
            p = (call.scores(Q, K, rows, keys) - sums[:, :, rows]).exp()
            ds = p * (G[:, :, rows] @ V[:, :, keys].mT - mean[:, :, rows])
            dq[:, :, rows] += ds @ K[:, :, keys] * call.scale
            dk[:, :, keys] += ds.mT @ Q[:, :, rows] * call.scale
            dv[:, :, keys] += p.mT @ G[:, :, rows]
            call.pull(tables, rest, ds, call.where(Q, K, rows, keys))
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *rest
