"""Attention of a few queries over a long past, in C: slots that are empty or forbidden are not even read."""

import torch
from torch import Tensor

from regard.core.kernels import KERNELS, Ask, How, Kernel, Plan
from regard.native import build, products

MOST = 8  # queries of a row: beyond, a product of matrices pays


def refuses(ask: Ask) -> str:
    if ask.device != "cpu" or ask.dtype != torch.float32:
        return f"is for fp32 on the CPU, not for {str(ask.dtype).removeprefix('torch.')} on {ask.device}"
    if ask.grad or ask.dropout:
        return "is for asking: it has no gradients and no dropout"
    if ask.q.count > MOST:
        return f"is for {MOST} queries at most, not for {ask.q.count}"
    return "" if build.library() is not None else "needs a C compiler (gcc or clang) on Linux"


def claims(ask: Ask) -> str:
    """Where somebody has asked for the library already, and a past or a source is there to be read."""
    if torch.compiler.is_compiling() or not build.ready():
        return ""
    return "a few queries, over what is filled alone" if ask.k is not ask.q and not refuses(ask) else ""


def steps(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    table = plan.table(q, how.bias)
    return products.attended(q, k, v, table, how.scale)


# Nobody asks for it by name: it is there for "auto", where a text grows.
KERNELS["steps"] = Kernel("steps", steps, refuses, claims, tabled=lambda ask: not ask.plain, shares=True)
