"""Layers of a transformer: the block, and its attention, cross-attention, MLP, norm and fused linear."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, parse_call
from regard.core.cache import CrossKV, LayerKV
from regard.core.hooks import HookContext
from regard.core.kernels import KERNELS, AttentionArgs, Plan
from regard.core.positions import Bias, PreparedPosition


class Block(nn.Module):
    """Transformer block: attention, cross-attention if there is an encoder, then the MLP if any, each as a residual."""

    #   pre-norm                     post-norm
    #   x ─┬─ norm ─ f ─ + ─►        x ─┬─ f ─ + ─ norm ─►
    #      └─────────────┘              └──────┘

    def __init__(self, c: config.Trunk, layer: int) -> None:
        super().__init__()
        self.post_norm, self.residual, self.dropout = c.norm_placement == "post", c.residual, c.dropout.residual
        self.attn_norm, self.attn = Norm(c.norm, c.dim), MIXERS[c.mixer.kind](c, layer)
        self.cross = CrossAttention(c.cross_attention or c.attention, c, layer) if c.cross != "none" else None
        self.cross_norm = Norm(c.norm, c.dim) if self.cross is not None else None
        self.mlp_norm = Norm(c.norm, c.dim) if c.mlp.kind != "none" else None
        self.mlp = MLP(c.mlp, c.dim, c.dropout.mlp) if self.mlp_norm is not None else None

    def forward(self, x: Tensor, scope: Scope, past: Any = None, across: CrossKV | None = None) -> Tensor:
        x = scope.tap("residual_attn", self.add("attn", x, scope, past))
        if self.cross is not None:
            x = scope.tap("residual_cross", self.add("cross", x, scope, across))
        return scope.tap("residual", x if self.mlp is None else self.add("mlp", x, scope))

    def add(self, name: str, x: Tensor, scope: Scope, *past: object) -> Tensor:
        """The residual connection: the only place where pre-norm and post-norm differ."""
        sublayer, norm = getattr(self, name), getattr(self, f"{name}_norm")
        given = scope.tap(f"{name}.input", x if self.post_norm and self.residual else norm(x))
        out = self.drop(sublayer(given, scope, *past))
        if self.residual and self.post_norm:
            return norm(x + out)  # type: ignore[no-any-return]  #: S044
        return x + out if self.residual else out  #: S042

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Attention(nn.Module):
    """Multi-head attention: a token's query (q) is compared with all keys (k), and their values (v) are mixed to match.
    H heads of width d side by side; `kv_heads` may be fewer. Projections that are left out are the identity."""

    name = "attn"
    sees: tuple[str, ...] = ("q", "k", "v", "scores", "pattern", "result", "head_out", "out")

    def __init__(self, c: config.Attention, trunk: config.Trunk, layer: int) -> None:
        super().__init__()
        dim = trunk.dim
        self.heads, self.kv_heads, self.head_dim = c.counts(layer, dim)
        self.value_head_dim = c.value_head_dim or self.head_dim
        self.cosine, self.dropout = c.score == "cosine", trunk.dropout.attention
        self.scale = c.scale if c.scale is not None else math.sqrt(self.head_dim) ** (1 if self.cosine else -1)
        d, e = self.head_dim, self.value_head_dim
        sizes, inner = {"q": self.heads * d, "k": self.kv_heads * d, "v": self.kv_heads * e}, self.heads * e
        for name, size in {**sizes, "out": inner}.items():
            if name not in c.projections and size != dim:
                raise ConfigError(f"attention.projections: without {name!r} its width {size} must be dim {dim}")
        self.q_norm, self.k_norm = (Norm(c.qk_norm, self.head_dim) if c.qk_norm else None for _ in range(2))
        self.out = FusedLinear(inner, {"out": dim}, c.bias) if "out" in c.projections else nn.Identity()
        self.build_projections({name: size for name, size in sizes.items() if name in c.projections}, dim, c.bias)
        name, given = parse_call(c.kernel)
        self.kernel = KERNELS.get(name)
        self.own = self.kernel.weights(self, trunk, given) if self.kernel and self.kernel.weights else None

    def build_projections(self, sizes: dict[str, int], dim: int, bias: tuple[str, ...]) -> None:
        self.qkv = FusedLinear(dim, sizes, bias) if sizes else None

    def forward(self, x: Tensor, scope: Scope, past: Any = None) -> Tensor:
        q, k, v = self.project(x, scope.position.qk_offset)
        q, k = scope.position.rotate(q), scope.position.rotate(k)
        q, k, v = (scope.tap(f"attn.{name}", t, self.heads) for name, t in zip("qkv", (q, k, v), strict=True))
        bias = scope.position.bias_for(q, self.scale)
        if isinstance(past, LayerKV):
            assert scope.cache_slots is not None
            k, v, past = *past.append(k, v, scope.cache_slots, scope.is_first), None
        return self.project_output(self.attend(q, k, v, scope.plan, bias, scope, past), scope)

    def entry(self, batch: int, capacity: int, like: Tensor) -> Any:
        """An empty cache entry."""
        if self.kernel and self.kernel.cache_entry:
            return self.kernel.cache_entry(self, batch, capacity, like)
        widths = (self.head_dim, self.value_head_dim)
        return LayerKV(*(like.new_zeros(batch, self.kv_heads, capacity, width) for width in widths))

    def project(self, x: Tensor, lean: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project x to q, k, v (B, H, N, d); `lean` (position vectors) is added to the input of q and k only."""
        if self.qkv is None:
            made = {}
        elif lean is None:
            made = self.qkv.split(x)
        else:
            made = {**self.qkv.project_only(x + lean.to(x.dtype), "q", "k"), **self.qkv.project_only(x, "v")}  #: S016
        asked = x if lean is None else x + lean.to(x.dtype)
        q = self.split(made.get("q", asked), self.heads)
        k = self.split(made.get("k", asked), self.kv_heads)
        v = self.split(made.get("v", x), self.kv_heads)
        return *self.normalize_qk(q, k), v

    def normalize_qk(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """QK normalisation, if any: trained norms, or unit length so that a score is a cosine."""
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return (F.normalize(q, dim=-1), F.normalize(k, dim=-1)) if self.cosine else (q, k)  #: S015

    def split(self, x: Tensor, heads: int) -> Tensor:  # (B, N, H·d) -> (B, H, N, d)
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # type: ignore[no-any-return]  #: S007

    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, bias: Bias | None, scope: Scope, past: Any) -> Tensor:
        q, k, v = (x.to(compute_dtype(v)) for x in (q, k, v))  # norms return fp32
        how = AttentionArgs(self.scale, self.dropout if self.training else 0.0, bias, self.own, past)
        if scope.watch is None:
            return plan.run(q, k, v, how)
        return scope.watch.attend_and_record(self.name, q, k, v, plan, how)

    def project_output(self, result: Tensor, scope: Scope) -> Tensor:  # (B, H, N, e) -> (B, N, D)
        result = scope.tap(f"{self.name}.result", result)
        out = self.out(result.transpose(1, 2).flatten(-2))  #: S006
        if scope.watch is not None:
            out = scope.watch.apply_by_head(f"{self.name}.head_out", result, lambda: head_maps(self.out, result), out)
        return scope.tap(f"{self.name}.out", out)


class CrossAttention(Attention):
    """Cross-attention: queries from the decoder, keys and values from the encoder's memory."""

    name = "cross"

    def build_projections(self, sizes: dict[str, int], dim: int, bias: tuple[str, ...]) -> None:
        asks = {name: size for name, size in sizes.items() if name == "q"}
        gives = {name: size for name, size in sizes.items() if name != "q"}
        self.q = FusedLinear(dim, asks, bias) if asks else None
        self.kv = FusedLinear(dim, gives, bias) if gives else None

    def forward(self, x: Tensor, scope: Scope, past: CrossKV | None = None) -> Tensor:
        assert scope.cross_plan is not None
        q, (k, v) = self.split(x if self.q is None else self.q(x), self.heads), self.remember(scope, past)
        if len(k) < len(q) and not (scope.cross_plan.kernel.grouped_kv and scope.watch is None):
            k, v = (each.repeat_interleave(len(q) // len(each), 0) for each in (k, v))
        q, k = self.normalize_qk(q, k)
        q, k, v = (scope.tap(f"cross.{name}", t, self.heads) for name, t in zip("qkv", (q, k, v), strict=True))
        return self.project_output(self.attend(q, k, v, scope.cross_plan, None, scope, None), scope)

    def remember(self, scope: Scope, past: CrossKV | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's memory; with a cache they are computed once for a source."""
        if past is not None and past.k is not None and past.v is not None:
            return past.k, past.v
        assert scope.memory is not None
        made = {} if self.kv is None else self.kv.split(scope.memory)
        k, v = (self.split(made.get(name, scope.memory), self.kv_heads) for name in "kv")
        if past is not None:
            past.k, past.v = k.detach().clone(), v.detach().clone()  #: S011
        return k, v


class MLP(nn.Module):
    """MLP (feed-forward), on each token separately: f(x W1 + b1) W2 + b2, or f(x G)·(x W1) W2 when gated."""

    def __init__(self, c: config.MLP, dim: int, dropout: float) -> None:
        super().__init__()
        hidden = c.hidden or 4 * dim
        bias = ("up", "gate") if c.bias else ()
        self.up = FusedLinear(dim, {"gate": hidden, "up": hidden} if c.gated else {"up": hidden}, bias)
        self.down = FusedLinear(hidden, {"down": dim}, ("down",) if c.bias else ())
        self.gated, self.activation, self.dropout = c.gated, c.activation, dropout

    def forward(self, x: Tensor, scope: Scope) -> Tensor:
        hidden, act = self.up(x), ACTIVATIONS[self.activation]
        gate, up = hidden.chunk(2, -1) if self.gated else (hidden, None)
        hidden = scope.tap("mlp.hidden", act(gate) if up is None else act(gate) * up)  #: S038
        return scope.tap("mlp.out", self.down(F.dropout(hidden, self.dropout, self.training)))


class Norm(nn.Module):
    """LayerNorm or RMSNorm: (x - mean) / sqrt(variance + eps), or x / sqrt(mean square + eps); then gain and bias."""

    def __init__(self, c: config.Norm, dim: int) -> None:
        super().__init__()
        self.c, self.dim = c, dim
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - c.offset)) if c.gain else None
        self.bias = nn.Parameter(torch.zeros(dim)) if c.bias and c.kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight + self.c.offset if self.weight is not None and self.c.offset else self.weight
        if self.c.kind == "layer":
            return F.layer_norm(x, (self.dim,), gain, self.bias, self.c.eps)  #: S043
        return F.rms_norm(x if gain is None else x.to(gain.dtype), (self.dim,), gain, self.c.eps)


class FusedLinear(nn.Linear):
    """Fused linear layer: several projections of one input as one matrix product; `named_parts` gives each by name.
    Parts without a bias (Whisper's k) store none."""

    def __init__(self, dim: int, sizes: dict[str, int], bias: tuple[str, ...]) -> None:
        self.sizes = sizes
        self.biased = tuple(name for name in sizes if name in bias)
        super().__init__(dim, sum(sizes.values()), bias=False)
        if self.biased:
            self.bias = nn.Parameter(torch.zeros(sum(sizes[name] for name in self.biased)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.full_bias())

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """The product, split into its parts."""
        return dict(zip(self.sizes, self(x).split(list(self.sizes.values()), -1), strict=True))

    def project_only(self, x: Tensor, *names: str) -> dict[str, Tensor]:
        """The projections of some parts only."""
        parts = self.named_parts()
        return {name: F.linear(x, *parts[name]) for name in names if name in parts}

    def full_bias(self) -> Tensor | None:
        if not self.biased or len(self.biased) == len(self.sizes):
            return self.bias
        empty = {name: self.bias.new_zeros(size) for name, size in self.sizes.items()}
        return torch.cat([empty[name] if bias is None else bias for name, (_, bias) in self.named_parts().items()])

    def named_parts(self, weight: Tensor | None = None) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Views of each part's weight and bias; of `weight` instead of its own, if given."""
        weights = (self.weight if weight is None else weight).split(list(self.sizes.values()))
        biases = self.bias.split([self.sizes[name] for name in self.biased]) if self.biased else ()
        bias = dict(zip(self.biased, biases, strict=True))
        return {name: (weight, bias.get(name)) for name, weight in zip(self.sizes, weights, strict=True)}

    def reset_parameters(self) -> None:
        """Does nothing: `regard.core.init` initialises the weights."""


def head_maps(out: Callable[[Tensor], Tensor], result: Tensor) -> Tensor:  # (H, e, D)
    """Each head's slice of an output projection; with adapters or packed weights, its output for unit vectors."""
    if type(out) is FusedLinear and type(out.weight) is nn.Parameter:
        return out.weight.mT.to(result.dtype).view(result.shape[1], result.shape[3], -1)
    units = torch.eye(result.shape[1] * result.shape[3], dtype=result.dtype, device=result.device)
    return (out(units) - out(torch.zeros_like(units[:1]))).view(result.shape[1], result.shape[3], -1)


def gelu_tanh(x: Tensor) -> Tensor:
    """Tanh GELU, x/2·(1 + tanh u), u = sqrt(2/pi)·(x + 0.044715 x^3); compiled as x·sigmoid(2u), faster on a CPU."""
    if torch.compiler.is_compiling():
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * x * (1 + 0.044715 * x * x))
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "relu2": lambda x: F.relu(x).square(), "silu": F.silu,
    "gelu": F.gelu, "gelu_tanh": gelu_tanh, "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}  # fmt: skip


# The sublayer in a block's attention slot, which mixes tokens: (trunk config, layer) -> a module.
MIXERS: dict[str, Callable[[config.Trunk, int], Any]] = {"attention": lambda c, i: Attention(c.attention, c, i)}


@dataclass(frozen=True, eq=False)
class Scope:
    """Inputs of a block besides x: plan, positions, memory, cache slots, hooks; built by the trunk in forward."""

    plan: Plan
    position: PreparedPosition
    memory: Tensor | None = None  # (B, M, D) the encoder's output
    cross_plan: Plan | None = None
    cache_slots: Tensor | None = None  # where new tokens are written in the cache
    is_first: bool = True
    watch: HookContext | None = None

    def tap(self, name: str, x: Tensor, heads: int = 0) -> Tensor:
        """Let hooks, if any, record or replace x. `heads`: the number of query heads, where x has fewer."""
        return x if self.watch is None else self.watch.apply(name, x, heads)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products here: autocast's, or that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if kind != "meta" and torch.is_autocast_enabled(kind) else x.dtype


# bf16 products: an x86 CPU without bf16 instructions emulates them, 100 times slower; oneDNN reports other CPUs
EMULATED = torch.cpu._is_avx2_supported() and not (
    torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())  # fmt: skip
ONEDNN_BF16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
CPU_BF16 = ONEDNN_BF16 and not EMULATED


def product_dtype(device: str) -> torch.dtype:
    """The product dtype of precision "mixed" on a device type: bf16, or fp32 on a CPU that would emulate bf16."""
    return torch.bfloat16 if device != "cpu" or CPU_BF16 else torch.float32
