"""Attention kernels: the reference softmax attention, the Plan that picks a kernel, their table, and the fused one.

Every exact kernel computes the same as `reference`; they differ in speed and in what they support. A kernel that cannot
honour an AttentionSpec gives the reason. A Plan is made once per forward pass for each distinct mask, not per layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import config
from regard.config.errors import ConfigError, did_you_mean, parse_call
from regard.config.trunk import KERNELS as SAYABLE
from regard.core.masks import CAUSAL, FULL, Mask
from regard.core.positions import Bias
from regard.core.tokens import TokenIndex, TokenLayout


def reference(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """Reference attention, softmax(QK'·scale + bias) V: the definition that every exact kernel must match."""
    table = plan.table(q, args.bias)
    weights = attention_weights(
        attention_scores(q, k, args.scale, table), sure=table is None or plan.spec.causal and args.bias is None
    )
    return F.dropout(weights, args.dropout) @ repeat_kv(v, q)  #: S002


def attention_scores(q: Tensor, k: Tensor, scale: float, table: Tensor | None) -> Tensor:
    """QK'·scale + bias, and minus infinity where attention is not allowed."""
    s = (q * scale) @ repeat_kv(k, q).mT  #: S005
    if table is None:
        return s
    return s.masked_fill_(~table, float("-inf")) if table.dtype == torch.bool else s + table  # s is not shared


def attention_weights(s: Tensor, sure: bool = False) -> Tensor:
    """Softmax over keys. A query without keys gets zeros, not NaN, and finite gradients; `sure`: all have a key."""
    if sure:
        return s.softmax(-1)
    empty = s.amax(-1, keepdim=True).detach() == float("-inf")
    return s.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)  #: S024


def repeat_kv(x: Tensor, q: Tensor) -> Tensor:
    """Grouped-query attention: repeat each key and value head for the query heads that share it."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


@dataclass(frozen=True, eq=False)
class Plan:
    """The chosen attention kernel, the reason, and its inputs. Attention layers call only `run`."""

    kernel: Kernel
    reason: str
    spec: AttentionSpec
    ready: Tensor | None = None  # the table below, computed once for all layers that share mask and bias
    bias: Bias | None = None  # the bias that `ready` was computed from
    numbers: tuple[int, ...] = ()  # arguments in the kernel's name: 32 of "topk(32)"

    def run(self, q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
        return self.kernel.run(q, k, v, self, args)

    def __str__(self) -> str:
        return f"{self.kernel.name}: {self.spec.mask} over {self.spec.q.count} x {self.spec.k.count}, {self.reason}"

    def table(self, q: Tensor, bias: Bias | None) -> Tensor | None:
        """What is added to the scores, or True where attention is allowed; None if there is neither mask nor bias."""
        if self.ready is not None and bias is self.bias:
            return self.ready
        heads, rows = (torch.arange(size, device=q.device) for size in q.shape[1:3])
        return mask_table(self.spec, heads, rows, bias, q.dtype)


def mask_table(spec: AttentionSpec, h: Tensor, i: Tensor, bias: Bias | None, dtype: torch.dtype) -> Tensor | None:
    """The mask and bias table of heads h and query rows i; broadcasts to (B, H, Q, K)."""
    if spec.mask == FULL and bias is None:
        return None
    b = torch.arange(spec.q.batch, device=i.device).view(-1, 1, 1, 1)
    j = torch.arange(spec.k.count, device=i.device).view(1, 1, 1, -1)
    q, k = TokenIndex(spec.q, b, i.view(1, 1, -1, 1)), TokenIndex(spec.k, b, j)
    if bias is None:
        return spec.mask.allows(q, k)
    added = bias.at(b, h.view(1, -1, 1, 1), q, k).to(dtype)
    return added if spec.mask == FULL else added.masked_fill(~spec.mask.allows(q, k), float("-inf"))


def make_plan(name: str, spec: AttentionSpec, bias: Bias | None = None, heads: int = 1) -> Plan:
    """The configured kernel, or for "auto" the fastest; the table of a `bias` that layers share is computed here."""
    name, given = parse_call(name)
    if name != "auto" and name not in KERNELS:
        raise ConfigError(f"no kernel {name!r}{did_you_mean(name, KERNELS)} there are auto, {', '.join(KERNELS)}")
    chosen, reason = choose_kernel(spec) if name == "auto" else (name, "asked for")
    if why := KERNELS[chosen].unsupported_reason(spec):
        raise ConfigError(f"attention.kernel {name!r} {why}; set attention.kernel = 'auto'")
    if not KERNELS[chosen].needs_mask_table(spec) or (spec.bias and bias is None):  # no table, or one for each layer
        return Plan(KERNELS[chosen], reason, spec, numbers=given)
    every, rows = (torch.arange(size, device=spec.q.order.device) for size in (heads, spec.q.count))
    return Plan(KERNELS[chosen], reason, spec, mask_table(spec, every, rows, bias, spec.dtype), bias, given)


def choose_kernel(spec: AttentionSpec) -> tuple[str, str]:
    """The name of the fastest kernel that honours the whole spec, and the reason."""
    for name, kernel in KERNELS.items():
        if why := kernel.preferred_reason(spec):
            return name, why
    return "fused", "one fused pass" if spec.plain else "one fused pass over a table"


@dataclass(frozen=True, eq=False)
class AttentionSpec:
    """What a kernel must honour: mask, layouts, bias, dropout, gradients, cache, dtype and device."""

    mask: Mask
    q: TokenLayout
    k: TokenLayout
    bias: bool = False
    dropout: bool = False
    grad: bool = False
    cached: bool = False
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def causal(self) -> bool:
        return self.mask == CAUSAL and self.q.is_plain and self.k.is_plain

    @property
    def plain(self) -> bool:
        """True for `full`, or `causal` from the first token on, without bias: no table is needed."""
        return not self.bias and (self.causal or self.mask == FULL)


@dataclass(frozen=True, eq=False)
class AttentionArgs:
    """The other arguments of one call: scale, dropout, bias; the kernel's own weights and cache entry, if any."""

    scale: float
    dropout: float = 0.0
    bias: Bias | None = None
    weights: Any = None
    cache_entry: Any = None


# q (B, H, Q, d), k (B, G, K, d), v (B, G, K, e) -> (B, H, Q, e); G groups of heads share keys and values
Run = Callable[[Tensor, Tensor, Tensor, Plan, AttentionArgs], Tensor]


@dataclass(frozen=True)
class Kernel:
    name: str
    run: Run
    unsupported_reason: Callable[[AttentionSpec], str] = lambda spec: ""  # why it cannot run, or ""
    preferred_reason: Callable[[AttentionSpec], str] = lambda spec: ""  # why "auto" chooses it, or ""
    needs_mask_table: Callable[[AttentionSpec], bool] = lambda spec: False  # whether it reads the plan's table
    exact: bool = True
    grouped_kv: bool = False  # whether k and v may have fewer rows than q: each serves several of q in a row
    weights: Callable[[Any, config.Trunk, tuple[int, ...]], nn.Module] | None = None  # from an Attention
    cache_entry: Callable[[Any, int, int, Tensor], Any] | None = None  # of rows and tokens


KERNELS: dict[str, Kernel] = {}


def register_kernel(name: str, **facts: Any) -> Callable[[Run], Run]:
    """Register a function in KERNELS under a name that configs can use; `facts` are the fields of Kernel."""

    def enter(run: Run) -> Run:
        KERNELS[name] = Kernel(name, run, **facts)
        if name not in SAYABLE:
            SAYABLE.append(name)
        return run

    return enter


register_kernel("reference", needs_mask_table=lambda spec: True)(reference)
# On the GPU, fastest first. No cuDNN with a table: for a query without keys it returns nonzero values (torch 2.11).
MASKED_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FASTEST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, *MASKED_BACKENDS]


@register_kernel("fused", needs_mask_table=lambda spec: not spec.plain)
def fused(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """PyTorch's scaled_dot_product_attention: exact, without an n x n tensor where mask and bias allow."""
    spec = plan.spec
    rest: dict[str, Any] = dict(dropout_p=args.dropout, scale=args.scale, enable_gqa=q.shape[1] != k.shape[1])
    rest |= {"is_causal": spec.mask == CAUSAL} if spec.plain else {"attn_mask": plan.table(q, args.bias)}
    if spec.device != "cuda":
        return F.scaled_dot_product_attention(q, k, v, **rest)
    with sdpa_kernel(FASTEST if spec.plain else MASKED_BACKENDS, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, **rest)
