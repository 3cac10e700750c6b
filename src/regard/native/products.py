"""The library's functions on tensors: weights in panels, a map by them, and a few questions to the past."""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.native.build import library, ready

KINDS = {torch.float32: "map_f32", torch.bfloat16: "map_bf16", torch.int8: "map_int8"}
FEW = 16  # rows up to which a product waits for memory, and not for the adder


def ours(x: Tensor) -> bool:
    """Whether these are rows for `mapped`: on the CPU, in fp32, and nobody asks for gradients."""
    return (
        x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
        and not (torch.is_grad_enabled() and x.requires_grad)
    )  # fmt: skip


def panels(weight: Tensor) -> Tensor:
    """A weight (N, K), however it lies, in the order in which it is read: (N/P, K, P, 1), in bf16 (N/P, K/2, P, 2)."""
    made, pair = library(), 2 if weight.dtype == torch.bfloat16 else 1
    short, odd = -len(weight) % made.side(), weight.shape[1] % 2
    weight = F.pad(weight, (0, odd, 0, short)) if short or odd else weight
    table = weight.unflatten(1, (-1, pair)).unflatten(0, (-1, made.side())).transpose(1, 2)
    out = torch.empty(table.shape, dtype=table.dtype)
    made.in_large_pages(out.data_ptr(), out.nbytes)
    return out.copy_(table)


def unpaneled(table: Tensor, N: int, K: int) -> Tensor:
    """The weight (N, K) that lies in panels."""
    return table.transpose(1, 2).reshape(len(table) * table.shape[2], -1)[:N, :K]


def rows_of(table: Tensor, ids: Tensor, K: int) -> Tensor:
    """Some rows (..., K) of a weight that lies in panels."""
    return table[ids // table.shape[2], :, ids % table.shape[2]].flatten(-2)[..., :K]


def mapped(
    x: Tensor, table: Tensor, N: int, scale: Tensor | None, bias: Tensor | None, into: Tensor | None = None
) -> Tensor:
    """x (..., K) by the panels of a weight (N, K) -> (..., N), each row as if it were alone; or `into` such a table.

    More than a few rows are rounded to bf16 where the weight is, or is bytes, and the processor can multiply so.
    """
    x = (F.pad(x, (0, 1)) if x.shape[-1] % 2 else x).contiguous()
    out = x.new_empty(*x.shape[:-1], N) if into is None else into
    K, threads = x.shape[-1], torch.get_num_threads()
    made, M = library(), x.numel() // K
    kind = torch.bfloat16 if made.halves() else torch.float32
    many = table.dtype != torch.float32 and M > FEW
    room = torch.empty((M + threads * table.shape[2]) * K, dtype=kind) if many else None
    places = (None if each is None else each.data_ptr() for each in (table, scale, bias, x, out, room))
    getattr(made, KINDS[table.dtype])(*places, (ctypes.c_long * 3)(M, N, K), threads)
    return out


def attended(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float) -> Tensor:
    """softmax(q k'·scale + table) v for a few queries; only slots that the table allows are read.

    q (B, H, Q, d), k (B, G, K, d), v (B, G, K, e); the table broadcasts to (B, H, Q, K), True or what is added. Where k
    and v have fewer rows, each serves as many of q's, one after the other: beams of one text, which share its source.
    """
    q, k, v = q.contiguous(), *(each if each.stride(-1) == 1 else each.contiguous() for each in (k, v))
    (B, H, Q, d), (sources, G, K, e) = q.shape, v.shape
    steps: Any = (ctypes.c_long * 9)(0, 0, 0, *k.stride()[:3], *v.stride()[:3])
    allowed = added = None
    if table is not None:
        table = (table if table.dtype == torch.bool else table.float()).expand(B, H, Q, K)
        table = table if table.stride(-1) == 1 else table.contiguous()
        steps[:3] = table.stride()[:3]
        allowed, added = (table.data_ptr(), None) if table.dtype == torch.bool else (None, table.data_ptr())
    out, room = q.new_empty(B, H, Q, e), q.new_empty(B, H, Q, K)
    sizes = (ctypes.c_long * 8)(B, H, Q, G, K, d, e, B // sources)
    library().attend(q.data_ptr(), k.data_ptr(), v.data_ptr(), allowed, added, steps, room.data_ptr(), out.data_ptr(),
                     sizes, scale, torch.get_num_threads())  # fmt: skip
    return out


def weighed(logits: Tensor) -> Tensor:
    """The logarithm of the sum of e^x over each row: (R, V) -> (R, 1)."""
    if not at_hand(logits):
        return logits.logsumexp(-1, keepdim=True)
    out = logits.new_empty(len(logits), 1)
    library().weigh(logits.data_ptr(), out.data_ptr(), (ctypes.c_long * 2)(*logits.shape), torch.get_num_threads())
    return out


def ranked(table: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """A few of the largest numbers of each row of a table at hand, the largest first, and their places: (R, count)."""
    best = table.new_empty(len(table), count)
    places = torch.empty_like(best, dtype=torch.long)
    sizes = (ctypes.c_long * 3)(*table.shape, count)
    library().ranked(table.data_ptr(), best.data_ptr(), places.data_ptr(), sizes, torch.get_num_threads())
    return best, places


def take_over(table: Tensor, rows: Tensor, start: int, end: int, alike: Tensor) -> None:
    """In place, slots from `start` to `end` of each row of a table (B, H, S, d) become those of row rows[b].

    The first `alike` (B,) of them are the same already: in C they are left where they are.
    """
    if start >= end:
        return
    if not at_hand(table):
        part = table[:, :, start:end]
        part.copy_(part[rows])
        return
    (B, H, S, d), threads = table.shape, torch.get_num_threads()
    room, sizes = table.new_empty(threads * B * (end - start) * d), (ctypes.c_long * 6)(B, H, S, d, start, end)
    places = (each.data_ptr() for each in (table, rows.contiguous(), alike.contiguous(), room))
    library().take_over(*places, sizes, threads)


def at_hand(table: Tensor) -> bool:
    """Whether a table lies as the library reads it, and the library is there."""
    return ready() and table.device.type == "cpu" and table.dtype == torch.float32 and table.is_contiguous()
