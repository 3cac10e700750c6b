"""What can be said about a model: small frozen settings, each part owning its few.

A setting describes and never builds; `regard.core` builds. Defaults are the original Transformer's
(Vaswani et al. 2017): 512 wide, 6 layers, 8 heads, dropout 0.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from regard.config.expressions import check_mask
from regard.config.names import did_you_mean

# a kernel of your own enters itself
KERNELS = ["auto", "reference", "fused", "cells", "flex", "local", "short", "varlen"]
ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu")
INITS = ("gpt2", "bert", "t5", "xavier", "vit", "quiet")
MAPS = ("q", "k", "v", "out")


def one_of(name: str, table: Sequence[str], what: str) -> None:
    if name not in table:
        raise ValueError(f"{what}: no {name!r}{did_you_mean(name, table)} there are {', '.join(table)}")


def at_least(least: float, **numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"{name}: {number} is less than {least}")


def beside(mode: str, width: int | None) -> None:
    """A width of its own is for positions that stand beside the vectors, and they need one."""
    at_least(1, width=width)
    if (mode == "concat") != (width is not None):
        raise ValueError("width: mode 'concat' needs it, and it is for that mode alone")


# ---------------------------------------------------------------- positions


@dataclass(frozen=True, kw_only=True)
class Nowhere:
    """No positions: the model sees a set."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class Sinusoidal:
    """Sines and cosines of the place, on one axis or several (channels shared out evenly)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    mode: Literal["add", "concat", "qk"] = "add"
    axes: int = 1
    base: float = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    width: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        at_least(1, axes=self.axes)
        beside(self.mode, self.width)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A trained vector for each place; one table for each axis when `length` names several."""

    kind: Literal["learned"] = "learned"
    mode: Literal["add", "concat", "qk"] = "add"
    length: int | tuple[int, ...] = 512
    width: int | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        for length in self.length if isinstance(self.length, tuple) else (self.length,):
            at_least(1, length=length)
        beside(self.mode, self.width)


@dataclass(frozen=True, kw_only=True)
class OneHot:
    """A one beside the token's vector in the channel of its place: reversible, and the width grows by `length`."""

    kind: Literal["onehot"] = "onehot"
    mode: Literal["concat"] = "concat"
    length: int = 64

    def __post_init__(self) -> None:
        at_least(1, length=self.length)


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """q and k turned by an angle that grows with the place (Su et al. 2021).

    `scaling` names a published way to reach beyond the trained `length`: linear (Chen et al. 2023), dynamic (base
    grows with the input), yarn (Peng et al. 2023), llama3, longrope (Ding et al. 2024, with `factors` for each pair).
    """

    kind: Literal["rotary"] = "rotary"
    base: float = 10_000.0
    layout: Literal["halves", "interleaved"] = "halves"
    part: float = 1.0
    scaling: Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"] = "none"
    factor: float = 1.0
    length: int = 2048
    fast: float = 32.0
    slow: float = 1.0
    low: float = 1.0
    high: float = 4.0
    factors: tuple[float, ...] = ()
    stretch: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ValueError(f"part: {self.part} is not a fraction between 0 and 1")
        for name in ("base", "factor", "length"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} must be more than zero")
        if self.scaling == "longrope" and not self.factors:
            raise ValueError("factors: longrope needs one factor for each pair of channels")


@dataclass(frozen=True, kw_only=True)
class Alibi:
    """Each head subtracts its own slope times the distance (Press et al. 2022)."""

    kind: Literal["alibi"] = "alibi"


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """A trained number for each head and bucket of distances, buckets growing logarithmically (Raffel et al. 2020)."""

    kind: Literal["buckets"] = "buckets"
    buckets: int = 32
    distance: int = 128
    both: bool = True
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        near = self.buckets // (4 if self.both else 2)
        if near < 1:
            raise ValueError(f"buckets: {self.buckets} are too few; {4 if self.both else 2} are the least")
        if self.distance <= near:
            raise ValueError(f"distance: {self.distance} is not beyond the {near} near distances with their own bucket")


@dataclass(frozen=True, kw_only=True)
class Shaw:
    """A trained vector for each distance up to `radius`, added to the keys: q·(k + a) (Shaw et al. 2018)."""

    kind: Literal["shaw"] = "shaw"
    radius: int = 16
    tables: Literal["shared", "layer"] = "layer"

    def __post_init__(self) -> None:
        at_least(0, radius=self.radius)


@dataclass(frozen=True, kw_only=True)
class Relative:
    """A trained number r for each head and offset: (q·k + r)/sqrt(d), or outside the scale as in Swin."""

    kind: Literal["relative"] = "relative"
    radius: int = 16
    axes: int = 1
    inside: bool = True
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        at_least(0, radius=self.radius)
        at_least(1, axes=self.axes)


Position = Nowhere | Sinusoidal | Learned | OneHot | Rotary | Alibi | Buckets | Shaw | Relative


# ---------------------------------------------------------------- parts of a block


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Zero mean and unit variance (layer), or unit mean square (rms); eps stands inside the root."""

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    gain: bool = True
    bias: bool = True
    offset: float = 0.0

    def __post_init__(self) -> None:
        at_least(0, eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Heads and their maps. `groups` is the number of key/value heads; `maps` left out are the identity."""

    heads: int | tuple[int, ...] = 8
    groups: int | None = None
    width: int | None = None
    value_width: int | None = None
    scale: float | None = None
    score: Literal["dot", "cosine"] = "dot"
    qk_norm: Norm | None = None
    maps: tuple[str, ...] = MAPS
    bias: tuple[str, ...] = MAPS
    kernel: str = "auto"

    def __post_init__(self) -> None:
        one_of(self.kernel, KERNELS, "kernel")
        for name in (*self.maps, *self.bias):
            one_of(name, MAPS, "maps and bias")
        heads = self.heads if isinstance(self.heads, tuple) else (self.heads,)
        if len(heads) > 1 and self.width is None:
            raise ValueError("width: heads that differ from layer to layer need the width of a head")
        for count in heads:
            at_least(1, heads=count, groups=self.groups, width=self.width, value_width=self.value_width)
            if count % (self.groups or count):
                raise ValueError(f"heads {count} is not divisible by groups {self.groups}")


@dataclass(frozen=True, kw_only=True)
class MLP:
    """The feed-forward layer; `hidden` (d_ff) is four times dim unless said. `gated` multiplies by a second map."""

    hidden: int | None = None
    activation: str = "relu"
    gated: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        one_of(self.activation, ACTIVATIONS, "activation")
        at_least(1, hidden=self.hidden)


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Rates: on the embedded tokens, on attention weights, inside the feed-forward, on what each sublayer adds."""

    embed: float = 0.1
    attention: float = 0.0
    mlp: float = 0.0
    sublayer: float = 0.1

    def __post_init__(self) -> None:
        for name in ("embed", "attention", "mlp", "sublayer"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not a rate between 0 and 1")


NO_DROPOUT = Dropout(embed=0.0, sublayer=0.0)


# ---------------------------------------------------------------- models


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """A stack of blocks: what stands before it, in it and after it.

    `mask` may name several masks, tiled over the layers. `cross` adds cross-attention to every block: to the
    encoder's last layer, or layer by layer. `final_norm` is present for pre-norm and absent for post-norm unless said.
    """

    dim: int = 512
    depth: int = 6
    width: int | None = None
    position: Position = Sinusoidal()
    mask: str | tuple[str, ...] = "everything"
    attention: Attention = Attention()
    mlp: MLP = MLP()
    norm: Norm = Norm()
    place: Literal["pre", "post"] = "pre"
    embed_norm: bool = False
    final_norm: bool | None = None
    cross: Literal["none", "last", "layerwise"] = "none"
    shared: bool = False
    dropout: Dropout = Dropout()

    def __post_init__(self) -> None:
        at_least(1, dim=self.dim, depth=self.depth, width=self.width)
        if not self.masks:
            raise ValueError("mask: name at least one, such as 'causal'")
        for text in self.masks:
            check_mask(text)
        beside_it = getattr(self.position, "length" if self.position.kind == "onehot" else "width", None) or 0
        if self.width is None and beside_it >= self.dim:
            raise ValueError(f"position: {beside_it} channels set beside the tokens leave none of dim {self.dim}")
        heads = self.attention.heads
        if isinstance(heads, tuple) and len(heads) != self.depth:
            raise ValueError(f"attention.heads names {len(heads)} layers and depth is {self.depth}")
        if len(set(self.heads)) > 1 and (self.shared or self.position.kind in ("alibi", "buckets", "relative")):
            raise ValueError("attention.heads: shared layers and positions on the scores need one number of heads")
        if isinstance(heads, int) and self.attention.width is None and self.dim % heads:
            raise ValueError(f"dim {self.dim} is not divisible by attention.heads {heads}; set attention.width")
        if isinstance(self.position, Rotary) and self.head_width * self.position.part < 2:
            part = f"{self.position.part} of a head {self.head_width} wide"
            raise ValueError(f"position.part: {part} leaves no pair of channels")

    @property
    def masks(self) -> tuple[str, ...]:
        return self.mask if isinstance(self.mask, tuple) else (self.mask,)

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of heads in each layer."""
        heads = self.attention.heads
        return heads if isinstance(heads, tuple) else (heads,) * self.depth

    @property
    def head_width(self) -> int:
        return self.attention.width or self.dim // self.heads[0]


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Ids to vectors. `pad` is the id that is not there (None: say `real` yourself), `end` the end-of-text id."""

    kind: Literal["text"] = "text"
    vocab: int = 37_000
    segments: int = 0
    scale: float = 1.0
    pad: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        at_least(1, vocab=self.vocab)
        for name, ident in (("pad", self.pad), ("end", self.end)):
            if ident is not None and not 0 <= ident < self.vocab:
                raise ValueError(f"{name}: {ident} is outside the vocabulary of {self.vocab}")
        if self.pad is not None and self.pad == self.end:
            raise ValueError(f"pad: {self.pad} is also the end-of-text id; leave pad out and say which tokens are real")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Logits over the vocabulary; `transform` is BERT's extra dense layer, activation and norm before them."""

    kind: Literal["vocabulary"] = "vocabulary"
    tied: bool = True
    bias: bool = False
    scale: float = 1.0
    transform: bool = False


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One vector for the whole sequence, from `place`; `dense` is BERT's tanh layer, `out` the width of a last map."""

    kind: Literal["pooled"] = "pooled"
    place: Literal["cls", "mean", "last", "end"] = "cls"
    dense: bool = False
    out: int | None = None
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Bare:
    """No head: the trunk's vectors themselves."""

    kind: Literal["none"] = "none"


Head = Vocabulary | Pooled | Bare


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The reading side of an encoder-decoder; without an `embed` of its own it shares the decoder's."""

    trunk: Trunk = Trunk()
    embed: Embed | None = None


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A whole model: embedding, trunk, head, and an encoder beside them if it translates."""

    embed: Embed = Embed()
    trunk: Trunk = Trunk()
    head: Head = Vocabulary()
    encoder: Encoder | None = None
    init: str = "xavier"
    precision: Literal["fp32", "mixed", "bf16"] = "fp32"

    def __post_init__(self) -> None:
        one_of(self.init, INITS, "init")
        if (self.encoder is None) != (self.trunk.cross == "none"):
            raise ValueError("trunk.cross: an encoder needs cross-attention in the trunk, and the other way round")
        if self.encoder is not None and self.encoder.trunk.dim != self.trunk.dim:
            raise ValueError(f"encoder.trunk.dim: {self.encoder.trunk.dim} must be trunk.dim {self.trunk.dim}")
        if self.encoder is not None and self.encoder.trunk.cross != "none":
            raise ValueError("encoder.trunk.cross: an encoder has nobody to look across to")
        layerwise = self.encoder is not None and self.trunk.cross == "layerwise"
        if layerwise and self.encoder is not None and self.encoder.trunk.depth != self.trunk.depth:
            raise ValueError("trunk.cross: layer by layer needs as many encoder layers as decoder layers")
        if self.head.kind == "pooled" and self.head.place == "end" and self.embed.end is None:
            raise ValueError("head.place: 'end' needs embed.end, the id of the end-of-text token")


@dataclass(frozen=True, kw_only=True)
class Towers:
    """Several models side by side whose pooled vectors are compared (CLIP: Radford et al. 2021)."""

    towers: tuple[Transformer, ...] = ()
    scale: float = 1 / 0.07
