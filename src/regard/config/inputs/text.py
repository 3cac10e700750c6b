"""Config of token embeddings: one sequence, or a long text in chunks."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_minimum, config_class
from regard.config.trunk import Trunk


@config_class
class TextEmbedding:
    """Ids to vectors. `pad` is the id that is not there (None: say `real` yourself), `end` the end-of-text id.

    With `highest` a text ends where its highest id stands, as early models had it (CLIP: Radford et al. 2021).
    """

    kind: Literal["text"] = "text"
    vocab: int = 37_000
    segments: int = 0
    scale: float = 1.0
    pad: int | None = None
    end: int | None = None
    highest: bool = False

    def __post_init__(self) -> None:
        check_minimum(1, vocab=self.vocab)
        for name, ident in (("pad", self.pad), ("end", self.end)):
            if ident is not None and not 0 <= ident < self.vocab:
                raise ConfigError(f"{name}: {ident} is outside the vocabulary of {self.vocab}")
        if self.pad is not None and self.pad == self.end:
            raise ConfigError(f"pad: {self.pad} is also the end-of-text id; leave pad out and say which tokens are "
                              "real")  # fmt: skip
        if self.highest and self.end is None:
            raise ConfigError("highest: where a text ends is asked for only if there is an end-of-text id; set end")


@config_class
class ChunkEmbedding(TextEmbedding):
    """A long text in chunks of `size` tokens: each is read by a `trunk` of its own and becomes one vector by `pool`.

    The model's trunk then reads the chunks: n tokens cost n·size and (n/size)² pairs of query and key, not n². What
    it makes stands for a chunk and not for a word, so heads over the vocabulary are not for it.
    """

    kind: Literal["chunks"] = "chunks"  # type: ignore[assignment]
    size: int = 128
    pool: Literal["mean", "first"] = "mean"
    trunk: Trunk = Trunk()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(1, size=self.size)
        if self.trunk.cross != "none":
            raise ConfigError("trunk.cross: a chunk has nobody to look across to")
