"""What can be said about whole models. A setting describes and never builds; `regard.core` builds."""

from typing import Literal

from regard.config.checks import one_of
from regard.config.fronts import Chunks, Embed, Front, Pixels
from regard.config.graphs import Graph
from regard.config.heads import Both, Head, Pooled, Vocabulary
from regard.config.mixed import Mixed
from regard.config.recurrent import Recurrent
from regard.config.setting import setting
from regard.config.trunk import Trunk

Stack = Trunk | Recurrent
INITS = ("gpt2", "bert", "t5", "xavier", "vit", "quiet")


@setting
class Encoder:
    """The reading side of an encoder-decoder; without an `embed` of its own it shares the decoder's."""

    trunk: Stack = Trunk()
    embed: Front | None = None


@setting
class Transformer:
    """A whole model: front end, trunk, head, and an encoder beside them if it translates."""

    kind: Literal["transformer"] = "transformer"
    embed: Front | Mixed = Embed()
    trunk: Stack = Trunk()
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
        reads = None if self.encoder is None else self.encoder.trunk
        if self.trunk.cross == "fixed" and isinstance(reads, Recurrent) and reads.mask != "causal":
            raise ValueError("encoder.trunk.mask: a fixed vector is the encoder's last one, where the way back has "
                             "read one token alone; set it to causal")  # fmt: skip
        if isinstance(self.embed, Graph) and isinstance(self.trunk, Trunk) and (
            self.trunk.position.kind not in ("none", "spatial")
        ):
            raise ValueError(f"trunk.position.kind: {self.trunk.position.kind!r}, and the nodes of a graph stand in no "
                             "order; set it to none or spatial")  # fmt: skip
        layerwise = self.encoder is not None and self.trunk.cross == "layerwise"
        if layerwise and self.encoder is not None and self.encoder.trunk.depth != self.trunk.depth:
            raise ValueError("trunk.cross: layer by layer needs as many encoder layers as decoder layers")
        for head in (self.head.vocabulary, self.head.pooled) if isinstance(self.head, Both) else (self.head,):
            if isinstance(head, Pooled) and head.place == "end" and self.embed.end is None:
                raise ValueError("head.place: 'end' needs embed.end, the id of the end-of-text token")
            if isinstance(head, Vocabulary) and isinstance(self.embed, Chunks):
                raise ValueError("head.kind: 'vocabulary' answers every token, and embed.kind 'chunks' leaves one "
                                 "vector for many; set it to pooled or none")  # fmt: skip
            if isinstance(head, Vocabulary) and not isinstance(self.embed, Embed | Pixels | Mixed):
                raise ValueError(f"head.kind: 'vocabulary' is for ids, and embed.kind is {self.embed.kind!r}; "
                                 "set it to pooled or none")  # fmt: skip
