"""The library's functions on tensors: a map of a few rows, and a few questions to the past."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from regard.native.build import library

KINDS = {torch.float32: "map_f32", torch.bfloat16: "map_bf16", torch.int8: "map_int8"}
FEW = 16  # rows up to which a product waits for memory, and not for the adder


def few(x: Tensor) -> bool:
    """Whether these are rows for `mapped`: on the CPU, few, in fp32, and nobody asks for gradients."""
    return (
        x.device.type == "cpu" and x.dtype == torch.float32 and 0 < x.numel() <= FEW * x.shape[-1]
        and not (torch.is_grad_enabled() and x.requires_grad)
    )  # fmt: skip


def mapped(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """x (..., K) by weight (N, K) in fp32, bf16 or int8 -> (..., N), each row as if it were alone."""
    x, (N, K) = x.contiguous(), weight.shape
    out = x.new_empty(*x.shape[:-1], N)
    sizes = (ctypes.c_long * 3)(x.numel() // K, N, K)
    scale, bias = (None if each is None else each.data_ptr() for each in (scale, bias))  # type: ignore[assignment]
    getattr(library(), KINDS[weight.dtype])(
        weight.data_ptr(), scale, bias, x.data_ptr(), out.data_ptr(), sizes, torch.get_num_threads()
    )
    return out


def attended(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float) -> Tensor:
    """softmax(q k'·scale + table) v for a few queries; only slots that the table allows are read.

    q (B, H, Q, d), k (B, G, K, d), v (B, G, K, e); the table broadcasts to (B, H, Q, K), True or what is added.
    """
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    (B, H, Q, d), (_, G, K, e) = q.shape, v.shape
    steps: Any = (ctypes.c_long * 3)(0, 0, 0)
    allowed = added = None
    if table is not None:
        table = (table if table.dtype == torch.bool else table.float()).expand(B, H, Q, K)
        table = table if table.stride(-1) == 1 else table.contiguous()
        steps[:] = table.stride()[:3]
        allowed, added = (table.data_ptr(), None) if table.dtype == torch.bool else (None, table.data_ptr())
    out, room = q.new_empty(B, H, Q, e), q.new_empty(B, H, Q, K)
    sizes = (ctypes.c_long * 7)(B, H, Q, G, K, d, e)
    library().attend(q.data_ptr(), k.data_ptr(), v.data_ptr(), allowed, added, steps, room.data_ptr(), out.data_ptr(),
                     sizes, scale, torch.get_num_threads())  # fmt: skip
    return out
