"""Config of the trunk, the stack of blocks: attention, MLP, norm, dropout, masks, depth and width.

Defaults are the original Transformer's (Vaswani et al. 2017): 512 wide, 6 layers, 8 heads, dropout 0.1.
"""

from typing import Literal, TypeVar

from regard.config.aliases import CURRENT
from regard.config.errors import ConfigError, parse_call
from regard.config.fields import check_choice, check_minimum, config_class
from regard.config.masks import check_mask
from regard.config.mixers import AttentionMixer, Mixer, check_mixer
from regard.config.positions import Position, RotaryPosition, SinusoidalPosition

# custom kernels register themselves
KERNELS = [
    "auto", "reference", "fused", "additive", "window2d", "flex", "linear", "linformer", "local", "lsh", "performer",
    "short", "sparse", "tiled_flash", "topk", "varlen",
]  # fmt: skip
CURRENT["kernel"] = KERNELS
ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu")
T = TypeVar("T")
PROJECTIONS = ("q", "k", "v", "out")


@config_class
class Norm:
    """LayerNorm (layer): zero mean, unit variance; or RMSNorm (rms): unit mean square; eps is inside the root."""

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    gain: bool = True
    bias: bool = True
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_minimum(0, eps=self.eps)


@config_class
class Attention:
    """Attention heads and projections. `kv_heads` is the number of key/value heads; `projections` left out are the
    identity.

    `heads` and `kv_heads` may be lists with a number for each layer, for pruned models. A `kernel` may have integer
    arguments, such as "topk(32)".
    """

    heads: int | tuple[int, ...] = 8
    kv_heads: int | tuple[int, ...] | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    scale: float | None = None
    score: Literal["dot", "cosine"] = "dot"
    qk_norm: Norm | None = None
    projections: tuple[str, ...] = PROJECTIONS
    bias: tuple[str, ...] = PROJECTIONS
    kernel: str = "auto"

    def __post_init__(self) -> None:
        try:
            name, _ = parse_call(self.kernel)
        except ValueError as problem:
            raise ConfigError(f"kernel: {problem}") from None
        check_choice(name, KERNELS, "kernel")
        for name in (*self.projections, *self.bias):
            check_choice(name, PROJECTIONS, "projections and bias")
        check_minimum(1, head_dim=self.head_dim, value_head_dim=self.value_head_dim)
        heads, groups = as_tuple(self.heads), as_tuple(self.kv_heads)
        if len(heads) > 1 and self.head_dim is None:
            raise ConfigError("head_dim: heads that differ from layer to layer need the width of a head")
        if len(heads) > 1 < len(groups) != len(heads):
            raise ConfigError(f"kv_heads names {len(groups)} layers and heads {len(heads)}")
        for layer in range(max(len(heads), len(groups))):
            mine, shared = heads[layer % len(heads)], groups[layer % len(groups)]
            check_minimum(1, heads=mine, kv_heads=shared)
            if mine % (shared or mine):
                raise ConfigError(f"heads {mine} is not divisible by kv_heads {shared}")

    def counts(self, layer: int, dim: int) -> tuple[int, int, int]:
        """Heads, key/value heads and head width of one layer."""
        heads, groups = as_tuple(self.heads), as_tuple(self.kv_heads)
        mine = heads[layer % len(heads)]
        return mine, groups[layer % len(groups)] or mine, self.head_dim or dim // mine


def as_tuple(one: T | tuple[T, ...]) -> tuple[T, ...]:
    return one if isinstance(one, tuple) else (one,)


@config_class
class MLP:
    """MLP (feed-forward); `hidden` (d_ff) is four times dim by default. `gated` multiplies by a second projection.

    With kind "none" blocks have no MLP, and `activation` is that of heads which take the trunk's.
    """

    kind: Literal["dense", "none"] = "dense"
    hidden: int | None = None
    activation: str = "relu"
    gated: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        check_choice(self.activation, ACTIVATIONS, "activation")
        check_minimum(1, hidden=self.hidden)
        if self.kind == "none":
            for name, given in (("hidden", self.hidden), ("gated", self.gated), ("bias", not self.bias)):
                if given:
                    raise ConfigError(f"{name}: kind 'none' has no feed-forward; remove it, or set kind to dense")


@config_class
class Dropout:
    """Dropout rates: on embedded tokens, attention weights, the MLP's hidden layer, and each sublayer's output."""

    embed: float = 0.1
    attention: float = 0.0
    mlp: float = 0.0
    residual: float = 0.1

    def __post_init__(self) -> None:
        for name in ("embed", "attention", "mlp", "residual"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a rate between 0 and 1")


NO_DROPOUT = Dropout(embed=0.0, residual=0.0)


@config_class
class Trunk:
    """The trunk, a stack of blocks: its input stage, blocks and output norm.

    `mask` may be a list of masks, tiled over the layers. `cross` adds cross-attention to every block: to the encoder's
    last layer, or layer by layer; its heads are those of `attention` unless `cross_attention` has others. `final_norm`
    is by default present for pre-norm and absent for post-norm. `mixer` replaces attention; without `residual` a
    sublayer's output replaces its input.
    """

    kind: Literal["blocks", "reversible"] = "blocks"
    dim: int = 512
    depth: int = 6
    embed_dim: int | None = None
    position: Position = SinusoidalPosition()
    mask: str | tuple[str, ...] = "full"
    attention: Attention = Attention()
    mixer: Mixer = AttentionMixer()
    mlp: MLP = MLP()
    norm: Norm = Norm()
    norm_placement: Literal["pre", "post"] = "pre"
    embed_norm: bool = False
    final_norm: bool | None = None
    cross: Literal["none", "last", "layerwise"] = "none"
    cross_attention: Attention | None = None
    share_layers: bool = False
    residual: bool = True
    dropout: Dropout = Dropout()

    def __post_init__(self) -> None:
        check_minimum(1, dim=self.dim, depth=self.depth, embed_dim=self.embed_dim)
        if not self.masks:
            raise ConfigError("mask: name at least one, such as 'causal'")
        for text in self.masks:
            check_mask(text)
        beside_it = getattr(self.position, "length" if self.position.kind == "onehot" else "dim", None) or 0
        if self.embed_dim is None and beside_it >= self.dim:
            raise ConfigError(f"position: {beside_it} channels set beside the tokens leave none of dim {self.dim}")
        check_mixer(self.mixer, self.masks, self.position, self.dim, self.residual)
        if self.mixer.kind == self.mlp.kind == "none":
            raise ConfigError("mlp: with kind 'none' and mixer 'none' a block does nothing; set one of the two")
        self.check_heads("attention", self.attention)
        if self.cross_attention is not None:
            self.check_heads("cross_attention", self.cross_attention)
        scored = self.position.kind == "alibi" or getattr(self.position, "tables", "") == "shared"
        if len(set(self.heads)) > 1 and scored and self.position.kind != "shaw":
            way = "" if self.position.kind == "alibi" else "; set position.tables to layer"
            raise ConfigError(f"attention.heads: positions on the scores need one number of heads{way}")
        if isinstance(self.position, RotaryPosition) and self.head_width * self.position.fraction < 2:
            part = f"{self.position.fraction} of a head {self.head_width} wide"
            raise ConfigError(f"position.fraction: {part} leaves no pair of channels")

    def check_heads(self, name: str, c: Attention) -> None:
        for what, numbers in (("heads", c.heads), ("kv_heads", c.kv_heads)):
            if isinstance(numbers, tuple) and len(numbers) != self.depth:
                raise ConfigError(f"{name}.{what} names {len(numbers)} layers and depth is {self.depth}")
            if self.share_layers and len(set(as_tuple(numbers))) > 1:
                raise ConfigError(f"{name}.{what}: shared layers need one number")
        if isinstance(c.heads, int) and c.head_dim is None and self.dim % c.heads:
            raise ConfigError(f"dim {self.dim} is not divisible by {name}.heads {c.heads}; set {name}.head_dim")

    @property
    def masks(self) -> tuple[str, ...]:
        return as_tuple(self.mask)

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of heads in each layer."""
        heads = self.attention.heads
        return heads if isinstance(heads, tuple) else (heads,) * self.depth

    @property
    def head_width(self) -> int:
        return self.attention.head_dim or self.dim // self.heads[0]
