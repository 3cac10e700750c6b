"""Config of multimodal input: a prefix of image or audio tokens before the tokens of a text; the FrontEnd union."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import config_class
from regard.config.inputs.audio import AudioEmbedding
from regard.config.inputs.graph import GraphEmbedding
from regard.config.inputs.image import (
    ConvEmbedding,
    MaskedConvEmbedding,
    PatchEmbedding,
    PixelEmbedding,
    StageEmbedding,
    VideoEmbedding,
)
from regard.config.inputs.series import SeriesEmbedding
from regard.config.inputs.text import ChunkEmbedding, TextEmbedding

FrontEnd = (
    TextEmbedding
    | ChunkEmbedding
    | PixelEmbedding
    | MaskedConvEmbedding
    | PatchEmbedding
    | StageEmbedding
    | ConvEmbedding
    | AudioEmbedding
    | SeriesEmbedding
    | VideoEmbedding
    | GraphEmbedding
)


@config_class
class MultimodalEmbedding:
    """Multimodal input: `prefix` tokens, then `text` tokens, in one sequence; the mask decides on attention between
    them.

    Positions continue from one to the other, and a learned vector marks the modality. Under the mask "prefix(n)", n
    being the number of prefix tokens, these attend to each other and the text is causal (GIT: Wang et al. 2022).
    """

    kind: Literal["multimodal"] = "multimodal"
    prefix: FrontEnd = PatchEmbedding()
    text: TextEmbedding = TextEmbedding()

    def __post_init__(self) -> None:
        if isinstance(self.prefix, TextEmbedding):
            raise ConfigError(
                "prefix.kind: 'text' is what comes after it; choose patches or another that reads no text"
            )

    @property
    def vocab(self) -> int:
        return self.text.vocab

    @property
    def pad_id(self) -> int | None:
        return self.text.pad_id

    @property
    def eos_id(self) -> int | None:
        return self.text.eos_id
