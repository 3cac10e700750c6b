"""Config of whole models: Transformer, Encoder, DualEncoder, RecurrentStack. It describes; `regard.core` builds."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_choice, check_minimum, config_class
from regard.config.heads import Head, LMHead, PoolingHead, PretrainingHead
from regard.config.inputs.graph import GraphEmbedding
from regard.config.inputs.image import PixelEmbedding
from regard.config.inputs.multimodal import FrontEnd, MultimodalEmbedding
from regard.config.inputs.text import ChunkEmbedding, TextEmbedding
from regard.config.positions import NoPosition
from regard.config.trunk import MLP, Norm, Trunk


@config_class
class RecurrentStack:
    """A recurrent stack: recurrent layers (rnn, gru, lstm) or convolutions (cnn) instead of transformer blocks.

    `mask` gives the direction: causal from left to right, full in both directions with half of `dim` each. `embed_dim`
    is the width of the embeddings, if it differs. A cnn layer sees `kernel_size` positions, `dilation` times further
    apart in each next layer, and is residual. `dropout` is the rate on the embeddings, between layers and at the end.

    A decoder reads its encoder by `cross`: fixed, one vector for a whole source (Cho et al. 2014); or additive, at each
    step the positions that match its state (Bahdanau et al. 2015).
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm", "cnn"] = "lstm"
    dim: int = 512
    depth: int = 2
    embed_dim: int | None = None
    mask: Literal["causal", "full"] = "causal"
    kernel_size: int = 3
    dilation: int = 1
    cross: Literal["none", "fixed", "additive"] = "none"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_minimum(
            1,
            dim=self.dim,
            depth=self.depth,
            embed_dim=self.embed_dim,
            kernel_size=self.kernel_size,
            dilation=self.dilation,
        )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: {self.dropout} is not a rate between 0 and 1")
        if self.cell != "cnn" and (self.kernel_size, self.dilation) != (3, 1):
            raise ConfigError(
                f"kernel_size, dilation: they are for cell 'cnn', and the cell is {self.cell!r}; leave them out"
            )
        if self.cell != "cnn" and self.mask == "full" and self.dim % 2:
            raise ConfigError(f"dim: {self.dim} is odd, and each direction of a bidirectional stack has half of it")
        if self.mask == "full" and self.cell == "cnn" and self.kernel_size % 2 == 0:
            raise ConfigError(f"kernel_size: {self.kernel_size} is even; a bidirectional convolution needs an odd size")
        if self.cross != "none" and (self.mask != "causal" or self.cell == "cnn"):
            raise ConfigError("cross: a recurrent decoder is causal; set mask to causal "
                             "and cell to rnn, gru or lstm")  # fmt: skip

    # ---------------------------------------------------------------- interface shared with Trunk

    @property
    def masks(self) -> tuple[str, ...]:
        return (self.mask,)

    @property
    def heads(self) -> tuple[int, ...]:
        return ()

    @property
    def position(self) -> NoPosition:
        return NoPosition()

    @property
    def norm_placement(self) -> str:
        return "pre"

    @property
    def norm(self) -> Norm:
        return Norm()

    @property
    def mlp(self) -> MLP:
        return MLP()


Stack = Trunk | RecurrentStack
INITS = ("gpt2", "bert", "t5", "xavier", "vit", "zero_init")


@config_class
class Encoder:
    """The encoder of an encoder-decoder; without an `embed` of its own it shares the decoder's."""

    trunk: Stack = Trunk()
    embed: FrontEnd | None = None


@config_class
class Transformer:
    """A whole model: front end, trunk, head, and optionally an encoder."""

    kind: Literal["transformer"] = "transformer"
    embed: FrontEnd | MultimodalEmbedding = TextEmbedding()
    trunk: Stack = Trunk()
    head: Head = LMHead()
    encoder: Encoder | None = None
    init: str = "xavier"
    precision: Literal["fp32", "mixed", "bf16"] = "fp32"

    def __post_init__(self) -> None:
        check_choice(self.init, INITS, "init")
        if (self.encoder is None) != (self.trunk.cross == "none"):
            raise ConfigError("trunk.cross: an encoder needs cross-attention in the trunk, and the other way round")
        if self.encoder is not None and self.encoder.trunk.dim != self.trunk.dim:
            raise ConfigError(f"encoder.trunk.dim: {self.encoder.trunk.dim} must be trunk.dim {self.trunk.dim}")
        if self.encoder is not None and self.encoder.trunk.cross != "none":
            raise ConfigError("encoder.trunk.cross: an encoder has no memory for cross-attention; set it to none")
        reads = None if self.encoder is None else self.encoder.trunk
        if self.trunk.cross == "fixed" and isinstance(reads, RecurrentStack) and reads.mask != "causal":
            raise ConfigError("encoder.trunk.mask: a fixed vector is the encoder's last one, whose backward state has "
                             "read only one token; set it to causal")  # fmt: skip
        if (
            isinstance(self.embed, GraphEmbedding)
            and isinstance(self.trunk, Trunk)
            and (self.trunk.position.kind not in ("none", "graph_distance"))
        ):
            raise ConfigError(f"trunk.position.kind: {self.trunk.position.kind!r}, and the nodes of a graph have "
                              "no order; set it to none or graph_distance")  # fmt: skip
        layerwise = self.encoder is not None and self.trunk.cross == "layerwise"
        if layerwise and self.encoder is not None and self.encoder.trunk.depth != self.trunk.depth:
            raise ConfigError("trunk.cross: layer by layer needs as many encoder layers as decoder layers")
        for head in (self.head.lm, self.head.pooling) if isinstance(self.head, PretrainingHead) else (self.head,):
            if isinstance(head, PoolingHead) and head.pooling == "eos" and self.embed.eos_id is None:
                raise ConfigError("head.pooling: 'eos' needs embed.eos_id, the id of the end-of-text token")
            if isinstance(head, LMHead) and isinstance(self.embed, ChunkEmbedding):
                raise ConfigError("head.kind: 'lm' predicts at every token, and embed.kind 'chunks' has one "
                                 "vector for many; set it to pooling or none")  # fmt: skip
            if isinstance(head, LMHead) and not isinstance(
                self.embed, TextEmbedding | PixelEmbedding | MultimodalEmbedding
            ):
                raise ConfigError(f"head.kind: 'lm' is for ids, and embed.kind is {self.embed.kind!r}; "
                                 "set it to pooling or none")  # fmt: skip


@config_class
class DualEncoder:
    """Dual encoder: several models whose pooled vectors are compared (CLIP: Radford et al. 2021).

    Cosines are multiplied by a trained scale, which starts at `initial_scale` and stays below `max_scale`. Where a
    single model is needed, for its vocabulary or width, it is the text tower.
    """

    kind: Literal["dual_encoder"] = "dual_encoder"
    towers: tuple[Transformer, ...]
    initial_scale: float = 1 / 0.07
    max_scale: float = 100.0

    def __post_init__(self) -> None:
        if not self.towers:
            raise ConfigError("towers: none is given; describe at least two, as [model.image] and [model.text]")
        check_minimum(1e-3, initial_scale=self.initial_scale)
        if self.initial_scale > self.max_scale:
            raise ConfigError(
                f"initial_scale: it begins at {self.initial_scale:g}, beyond its limit of {self.max_scale:g}"
            )
        if len({tower.precision for tower in self.towers}) > 1:
            raise ConfigError("towers: their precision differs; choose one for all")

    @property
    def text(self) -> Transformer:
        """The text tower; the last one if none reads text."""
        return next((tower for tower in self.towers if isinstance(tower.embed, TextEmbedding)), self.towers[-1])

    @property
    def embed(self) -> FrontEnd | MultimodalEmbedding:
        return self.text.embed

    @property
    def trunk(self) -> Stack:
        return self.text.trunk

    @property
    def head(self) -> Head:
        return self.text.head

    @property
    def encoder(self) -> Encoder | None:
        return None

    @property
    def init(self) -> str:
        return self.text.init

    @property
    def precision(self) -> Literal["fp32", "mixed", "bf16"]:
        return self.text.precision


Model = Transformer | DualEncoder
