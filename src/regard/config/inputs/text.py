"""Config of token embeddings: one sequence, or a long text in chunks."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_minimum, config_class
from regard.config.trunk import Trunk


@config_class
class TextEmbedding:
    """Token embedding. `pad_id` is the padding id (None: pass `real` yourself), `eos_id` the end-of-text id.

    With `eos_is_max_id` a text ends at its highest id, as in early models (CLIP: Radford et al. 2021).
    """

    kind: Literal["text"] = "text"
    vocab: int = 37_000
    segments: int = 0
    scale: float = 1.0
    pad_id: int | None = None
    eos_id: int | None = None
    eos_is_max_id: bool = False

    def __post_init__(self) -> None:
        check_minimum(1, vocab=self.vocab)
        for name, ident in (("pad_id", self.pad_id), ("eos_id", self.eos_id)):
            if ident is not None and not 0 <= ident < self.vocab:
                raise ConfigError(f"{name}: {ident} is outside the vocabulary of {self.vocab}")
        if self.pad_id is not None and self.pad_id == self.eos_id:
            raise ConfigError(f"pad_id: {self.pad_id} is also the end-of-text id; leave pad_id out and pass "
                              "the mask of real tokens")  # fmt: skip
        if self.eos_is_max_id and self.eos_id is None:
            raise ConfigError("eos_is_max_id: it finds the end of a text by the end-of-text id; set eos_id")


@config_class
class ChunkEmbedding(TextEmbedding):
    """Chunk embedding for long texts: each chunk of `chunk_size` tokens is read by its own `trunk` and becomes one
    vector by `pooling`.

    The model's trunk then reads the chunks: n tokens cost n·size and (n/size)² query-key pairs instead of n². Its
    outputs represent chunks, so an LM head cannot be used.
    """

    kind: Literal["chunks"] = "chunks"  # type: ignore[assignment]
    chunk_size: int = 128
    pooling: Literal["mean", "first"] = "mean"
    trunk: Trunk = Trunk()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(1, chunk_size=self.chunk_size)
        if self.trunk.cross != "none":
            raise ConfigError("trunk.cross: a chunk has no memory for cross-attention; set it to none")
