"""What can be said about front ends: how raw data becomes the tokens of a trunk."""

from typing import Literal

from regard.config.checks import at_least
from regard.config.films import Film
from regard.config.graphs import Graph
from regard.config.images import Convolutions, MaskedPixels
from regard.config.images import Patches as Patches
from regard.config.images import Pixels as Pixels
from regard.config.images import Stages as Stages
from regard.config.series import Series
from regard.config.setting import setting
from regard.config.sounds import Sound
from regard.config.trunk import Trunk


@setting
class Embed:
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
        at_least(1, vocab=self.vocab)
        for name, ident in (("pad", self.pad), ("end", self.end)):
            if ident is not None and not 0 <= ident < self.vocab:
                raise ValueError(f"{name}: {ident} is outside the vocabulary of {self.vocab}")
        if self.pad is not None and self.pad == self.end:
            raise ValueError(f"pad: {self.pad} is also the end-of-text id; leave pad out and say which tokens are real")
        if self.highest and self.end is None:
            raise ValueError("highest: where a text ends is asked for only if there is an end-of-text id; set end")


@setting
class Chunks(Embed):
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
        at_least(1, size=self.size)
        if self.trunk.cross != "none":
            raise ValueError("trunk.cross: a chunk has nobody to look across to")


Front = Embed | Chunks | Pixels | MaskedPixels | Patches | Stages | Convolutions | Sound | Series | Film | Graph
