"""Frozen norms and plain matrices: what makes a walk through a transformer linear (Elhage et al. 2021, section 2).

    norm(x) = gain · s · (x - mean(x)) + bias        s is 1 / deviation, or 1 / root mean square without the mean

With `s` taken from a run, or left out, a norm is an affine map. `pull_through_norm` takes a direction of its output
back to its input, `push_through_norm` two parts of its input to its output; `fold_norm` multiplies its gain and its
centring into a matrix that reads its output.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.core.layers import FusedLinear, Norm


def widen(x: Tensor) -> Tensor:
    """In float64, so that a sum of many parts is as exact as what was recorded; Apple's GPU has none."""
    return x if x.device.type == "mps" else x.double()


def norm_gain(norm: Norm) -> Tensor:  # (D,)
    """The gain that the norm multiplies by, with its offset; ones where it has none."""
    if norm.weight is None:
        return torch.ones(norm.dim)
    return widen(norm.weight.detach()) + norm.c.offset


def pull_through_norm(norm: Norm, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """A direction (…, D) of the norm's output as one of its input x, with the scale that x has; and the bias's part."""
    x, centred = widen(x), norm.c.kind == "layer"
    square = x.var(-1, correction=0) if centred else x.square().mean(-1)
    pulled = direction * norm_gain(norm).to(direction) * (square + norm.c.eps).rsqrt()[..., None]
    bias = direction.new_zeros(()) if norm.bias is None else (direction * widen(norm.bias.detach())).sum()
    return pulled - pulled.mean(-1, keepdim=True) if centred else pulled, bias


def push_through_norm(norm: Norm, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:  # (…, D) and (…, D)
    """The two parts of norm(x + p), both with the scale of the sum; the bias goes with x."""
    x, p, centred = widen(x), widen(p), norm.c.kind == "layer"
    whole = x + p
    square = whole.var(-1, correction=0) if centred else whole.square().mean(-1)
    gain = norm_gain(norm).to(x) * (square + norm.c.eps).rsqrt()[..., None]
    x, p = ((part - part.mean(-1, keepdim=True) if centred else part) * gain for part in (x, p))
    return x if norm.bias is None else x + widen(norm.bias.detach()), p


def fold_norm(norm: Norm, reader: Tensor) -> Tensor:  # (…, D) -> (…, D)
    """Rows that read the norm's output as rows that read its input: gain and centring in, scale and bias left out."""
    folded = reader * norm_gain(norm).to(reader)
    return folded - folded.mean(-1, keepdim=True) if norm.c.kind == "layer" else folded


def apply_gain(norm: Norm, columns: Tensor) -> Tensor:  # (D, …) -> (D, …)
    """Columns that are written before the norm as they leave it: centred and times the gain, up to the scale."""
    centred = columns - columns.mean(0) if norm.c.kind == "layer" else columns
    return centred * norm_gain(norm).to(columns)[:, None]


def linear_matrix(linear: Any, width: int, rows: int = 1024) -> Tensor:  # (width, out)
    """The matrix of a linear layer, x @ matrix: a view of its weight; or, with adapters or packed weights, what it
    answers to unit vectors, `rows` at a time."""
    if isinstance(linear, nn.Identity):
        return torch.eye(width)
    if type(linear) in (nn.Linear, FusedLinear) and type(linear.weight) is nn.Parameter:
        weight: Tensor = linear.weight.detach()
        return weight.mT
    like = next(linear.parameters())
    kind = like.dtype if like.is_floating_point() else torch.float32
    with torch.no_grad():
        units = torch.eye(width, dtype=kind, device=like.device).split(rows)
        none = widen(linear(torch.zeros(1, width, dtype=kind, device=like.device)))
        return torch.cat([widen(linear(part)) - none for part in units])


def linear_bias(linear: Any) -> Tensor | None:  # (out,)
    """Its bias, None where it has none."""
    bias = linear.full_bias() if isinstance(linear, FusedLinear) else getattr(linear, "bias", None)
    return None if bias is None else widen(bias.detach())
