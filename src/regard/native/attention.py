"""The decode attention kernel in C: a few queries over a long cache; empty and masked slots are not read."""

import torch
from torch import Tensor

from regard.core.kernels import KERNELS, AttentionArgs, AttentionSpec, Kernel, Plan
from regard.native import library

MOST = 8  # queries of a row: beyond, matrix products are faster


def unsupported_reason(spec: AttentionSpec) -> str:
    if spec.device != "cpu" or spec.dtype != torch.float32:
        return f"is for fp32 on the CPU, not for {str(spec.dtype).removeprefix('torch.')} on {spec.device}"
    if spec.grad or spec.dropout:
        return "is for asking: it has no gradients and no dropout"
    if spec.q.count > MOST:
        return f"is for {MOST} queries at most, not for {spec.q.count}"
    return "" if library.load_library() is not None else "needs a C compiler (gcc or clang) on Linux"


def preferred_reason(spec: AttentionSpec) -> str:
    """Preferred where the library is already loaded, and there is a cache or an encoder's memory to read."""
    if torch.compiler.is_compiling() or not library.is_loaded():
        return ""
    return "a few queries, over what is filled alone" if spec.k is not spec.q and not unsupported_reason(spec) else ""


def native_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    table = plan.table(q, args.bias)
    return library.decode_attention(q, k, v, table, args.scale)


# Cannot be configured by name: only "auto" chooses it, in generation.
KERNELS["native_decode"] = Kernel(
    "native_decode",
    native_attention,
    unsupported_reason,
    preferred_reason,
    needs_mask_table=lambda spec: not spec.plain,
    grouped_kv=True,
)
