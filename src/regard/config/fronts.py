"""What can be said about front ends: how raw data becomes the tokens of a trunk."""

from dataclasses import dataclass
from typing import Literal

from regard.config.checks import at_least
from regard.config.trunk import Trunk


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


class Seen:
    """What a front end that reads no text answers when asked for its ids."""

    @property
    def vocab(self) -> int:
        return 0

    @property
    def pad(self) -> int | None:
        return None

    @property
    def end(self) -> int | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Pixels(Seen):
    """Images as ids of a `palette`, row by row after a start token (ImageGPT: Chen et al. 2020).

    The start token is the id after the last colour: the model reads it and all pixels but the last, and says them all.
    """

    kind: Literal["pixels"] = "pixels"
    palette: int = 512
    grid: tuple[int, ...] = (32, 32)

    def __post_init__(self) -> None:
        at_least(1, palette=self.palette)
        if len(self.grid) != 2:
            raise ValueError(f"grid: {list(self.grid)} is not rows and columns, such as [32, 32]")
        at_least(1, rows=self.grid[0], columns=self.grid[1])

    @property
    def vocab(self) -> int:
        return self.palette + 1

    @property
    def count(self) -> int:
        """The tokens that an image becomes."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, kw_only=True)
class Patches(Seen):
    """Square patches of `size` pixels, each one token (Dosovitskiy et al. 2021); `cls` puts a learned token first.

    With `cls` the tokens stand in a line, the learned one at place 0; without it they stand on a grid.
    """

    kind: Literal["patches"] = "patches"
    size: int = 16
    image: int = 224
    channels: int = 3
    cls: bool = True
    bias: bool = True
    norm: bool = False

    def __post_init__(self) -> None:
        at_least(1, size=self.size, image=self.image, channels=self.channels)
        if self.image % self.size:
            raise ValueError(f"size: patches of {self.size} pixels do not fill an image of {self.image}")

    @property
    def side(self) -> int:
        """Patches in a row of the image."""
        return self.image // self.size

    @property
    def count(self) -> int:
        """The tokens that an image becomes."""
        return self.side * self.side + self.cls


@dataclass(frozen=True, kw_only=True)
class Stages(Seen):
    """Patches, then trunks that each end by merging every 2 x 2 tokens into one (Swin: Liu et al. 2021).

    What comes out is for the model's own trunk, which is the last stage.
    """

    kind: Literal["stages"] = "stages"
    patches: Patches = Patches(size=4, cls=False, norm=True)
    trunks: tuple[Trunk, ...] = ()

    def __post_init__(self) -> None:
        if not self.trunks:
            raise ValueError("trunks: name at least one, or let embed be of kind 'patches'")
        if self.patches.cls:
            raise ValueError("patches.cls: tokens on a grid merge, a learned one beside them does not; set it to false")
        if self.patches.side % 2 ** len(self.trunks):
            halves = f"{len(self.trunks)} stages halve it as often"
            raise ValueError(f"trunks: a grid of {self.patches.side} x {self.patches.side} patches, and {halves}")
        for place, trunk in enumerate(self.trunks):
            if trunk.cross != "none":
                raise ValueError(f"trunks[{place}].cross: a stage has nobody to look across to")

    @property
    def count(self) -> int:
        """The tokens that come out for the last trunk."""
        side: int = self.patches.side // 2 ** len(self.trunks)
        return side * side


Front = Embed | Pixels | Patches | Stages
