"""Held: a weight that is kept in fewer bits, or in another order, and that nobody else can tell from a plain one.

    F.linear(x, held)       by panels, in C; without a compiler as torch does it
    F.embedding(ids, held)  those rows alone, in fp32
    anything else           the plain fp32 tensor that it stands for

Tied weights stay tied, since both ends hold the same one. It is for asking: training needs the numbers themselves.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from regard.native import products
from regard.native.build import library

KINDS = ("fp32", "bf16", "int8")


class Held(Tensor):
    """A weight (N, K) as `kept` numbers: fp32, bf16, or bytes with a `scale` for each row. They lie in panels where
    there is a library that multiplies them."""

    kept: Tensor
    scale: Tensor | None
    rows: int  # N, without asking torch

    @staticmethod
    def __new__(cls, kept: Tensor, scale: Tensor | None = None, shape: torch.Size | None = None) -> "Held":
        place, shape = torch.device("cpu"), kept.shape if shape is None else shape
        made: Held = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=place)
        made.kept, made.scale, made.rows = kept, scale, shape[0]
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Held({tuple(self.shape)}, {str(self.kept.dtype).removeprefix('torch.')})"

    @property
    def paneled(self) -> bool:
        return self.kept.dim() > 2

    def plain(self) -> Tensor:
        """The fp32 numbers that it stands for."""
        N, K = self.shape
        numbers = (products.unpaneled(self.kept, N, K) if self.paneled else self.kept).float()
        return numbers if self.scale is None else numbers * self.scale[:, None]

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.linear and isinstance(args[1], Held) and not kwargs:
            return multiplied(*args)
        if function is F.embedding and isinstance(args[1], Held):
            return looked_up(*args[:2])
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if function in SAME or function is torch.ops.aten.to.dtype and args[1] == torch.float32:
            return args[0]
        if function is torch.ops.aten.new_empty.default:  # of its kind, not of its numbers
            return torch.empty(args[1], **{"dtype": torch.float32, "device": "cpu", **(kwargs or {})})
        args, kwargs = tree_map(lambda each: each.plain() if isinstance(each, Held) else each, (args, kwargs or {}))
        return function(*args, **kwargs)


SAME = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}


def over(table: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """A product that is written over a table of its shape: new memory, page by page, costs as much as a layer."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        fits = isinstance(weight, Held) and table.shape == (len(x), len(weight))
        return multiplied(x, weight, bias, table) if fits else F.linear(x, weight, bias)  # type: ignore[arg-type]

    return product


def multiplied(x: Tensor, weight: Held, bias: Tensor | None = None, into: Tensor | None = None) -> Tensor:
    """x (..., K) by a held weight (N, K), and a bias; `into` a table that is there already, if it may be."""
    if torch.is_grad_enabled() and (x.requires_grad or bias is not None and bias.requires_grad):
        return F.linear(x, weight.plain(), bias)
    if weight.paneled and products.ours(x):
        return products.mapped(x, weight.kept, weight.rows, weight.scale, bias, into)
    if weight.paneled or weight.kept.dtype == torch.float32:
        return F.linear(x, weight.plain(), bias)
    said = F.linear(x.bfloat16(), weight.kept.bfloat16()).float()  # a byte is exact in bf16
    said = said if weight.scale is None else said.mul_(weight.scale)
    return said if bias is None else said.add_(bias)


def looked_up(ids: Tensor, weight: Held) -> Tensor:
    """Some rows of a table."""
    kept = weight.kept
    rows = (products.rows_of(kept, ids, weight.shape[1]) if weight.paneled else F.embedding(ids, kept)).float()
    return rows if weight.scale is None else rows * F.embedding(ids, weight.scale[:, None])


# ---------------------------------------------------------------- from plain to held


def hold(weight: Tensor, kind: str, paneled: bool = True) -> Held:
    """A plain fp32 weight in this kind; one that is only looked up needs no panels."""
    scale: Tensor | None = None
    if kind == "int8":
        kept, scale = rounded(weight)
    else:
        kept = weight.detach().to(torch.bfloat16 if kind == "bf16" else torch.float32)
    return Held(products.panels(kept) if paneled and library() is not None else kept.contiguous(), scale, weight.shape)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes, and how much a step of each row is worth: the largest number of a row becomes 127."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return (weight / scale[:, None]).round_().to(torch.int8), scale
