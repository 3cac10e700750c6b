"""What can be said about images: how they become the tokens of a trunk.

Images come as bytes; what a model learns from is (byte / 255 - `mean`) / `std`, of all channels or one by one, so a
checkpoint knows how its images were seen. `white` is the largest number that arrays and lists have for a byte's 255.
"""

from typing import Literal

from regard.config.checks import at_least, fraction
from regard.config.seen import Seen
from regard.config.setting import setting
from regard.config.trunk import Trunk

HEX = set("0123456789abcdef")


def check_colours(channels: int, white: float, **numbers: tuple[float, ...]) -> None:
    at_least(1, channels=channels)
    for name, each in numbers.items():
        if len(each) not in (1, channels):
            raise ValueError(f"{name}: {list(each)} for {channels} channels; say one number, or one for each")
    if min(numbers.get("std", (1.0,))) <= 0:
        raise ValueError(f"std: {list(numbers['std'])}, and to divide by it, it must be more than zero")
    if white <= 0:
        raise ValueError(f"white: {white} is not more than black, which is 0")


def check_grid(grid: tuple[int, ...]) -> None:
    if len(grid) != 2:
        raise ValueError(f"grid: {list(grid)} is not rows and columns, such as [32, 32]")
    at_least(1, rows=grid[0], columns=grid[1])


@setting
class Frame:
    """How an image of another size becomes one that the model sees.

    `fit` is what happens to other proportions: with "cut" the middle that has the right ones is made as large; with
    "squeeze" all of it, whatever it had; with "shorter" its shorter side fits, and what hangs over is cut off. Where
    `whole` is said, the image is first made so many pixels a side, and its middle is what is seen (DeiT: 224 of 256).
    """

    fit: Literal["cut", "squeeze", "shorter"] = "cut"
    whole: int | None = None
    resample: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        at_least(1, whole=self.whole)
        if self.whole is not None and self.fit == "cut":
            raise ValueError("whole: an image that is cut first is made as large as it is seen; leave it out, or let "
                             "fit be squeeze or shorter")  # fmt: skip


def check_frame(frame: Frame, rows: int, columns: int) -> None:
    if frame.whole is not None and frame.whole < max(rows, columns):
        raise ValueError(f"frame.whole: {frame.whole} pixels a side, and {rows} x {columns} of them are to be seen")
    if frame.fit == "shorter" and rows != columns:
        raise ValueError(f"frame.fit: the shorter side of a square fits, and {rows} x {columns} is none; set it to cut")


class Square(Seen):
    """Tokens on a grid with as many rows as columns."""

    @property
    def side(self) -> int:
        """Tokens in a row of the last grid."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """The tokens that an image becomes."""
        return self.side * self.side

    @property
    def raster(self) -> tuple[int, int]:
        """Rows and columns of the tokens."""
        return self.side, self.side


@setting
class Patches(Seen):
    """Square patches of `size` pixels, each one token (Dosovitskiy et al. 2021); `cls` puts a learned token first.

    With `cls` the tokens stand in a line, the learned one at place 0; without it they stand on a grid. A number puts
    as many learned ones first (DeiT has 2: Touvron et al. 2021).
    """

    kind: Literal["patches"] = "patches"
    size: int = 16
    image: int = 224
    channels: int = 3
    cls: bool | int = True
    bias: bool = True
    norm: bool = False
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    white: float = 255.0
    frame: Frame = Frame()

    def __post_init__(self) -> None:
        at_least(1, size=self.size, image=self.image)
        at_least(0, cls=self.cls)
        if self.cls in (0, 1):
            object.__setattr__(self, "cls", bool(self.cls))  # one spelling for each model
        check_colours(self.channels, self.white, mean=self.mean, std=self.std)
        check_frame(self.frame, self.image, self.image)
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

    @property
    def raster(self) -> tuple[int, int] | None:
        """Rows and columns of the tokens; None where they stand in a line behind a learned one."""
        return None if self.cls else (self.side, self.side)


@setting
class Stages(Square):
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
    def side(self) -> int:
        side: int = self.patches.side // 2 ** len(self.trunks)
        return side


@setting
class Convolutions(Square):
    """Residual convolutions of 3 x 3 pixels in stages, each of half the side of the one before (He et al. 2016).

    `widths` are the channels of the stages, `blocks` the residual blocks in each. The tokens stand on the last grid.
    Norms are over groups of channels (Wu and He 2018): an image is seen alike whatever else is in its batch.
    """

    kind: Literal["convolutions"] = "convolutions"
    image: int = 32
    channels: int = 3
    widths: tuple[int, ...] = (64, 128, 256)
    blocks: int = 2
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    white: float = 255.0

    def __post_init__(self) -> None:
        at_least(1, image=self.image, blocks=self.blocks)
        check_colours(self.channels, self.white, mean=self.mean, std=self.std)
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths: {list(self.widths)} is not a width for each stage, such as [64, 128, 256]")
        if self.image % 2 ** (len(self.widths) - 1):
            raise ValueError(f"widths: {len(self.widths)} stages halve an image of {self.image} pixels "
                             f"{len(self.widths) - 1} times")  # fmt: skip

    @property
    def side(self) -> int:
        side: int = self.image // 2 ** (len(self.widths) - 1)
        return side


@setting
class Pixels(Seen):
    """Images as ids of a `palette`, row by row after a start token (ImageGPT: Chen et al. 2020).

    The start token is the id after the last colour: the model reads it and all pixels but the last, and says them all.
    With `values` of "colours" a pixel is the nearest of them: `colours` in hexadecimal, such as "ff8000" or "c0" for a
    grey, or with four digits a channel where they lie between bytes; or as many as the palette has, learned from the
    training data where none are said. With "levels" every number of a pixel is a token, the nearest of so many from
    black to white (Image Transformer: Parmar et al. 2018).
    """

    kind: Literal["pixels"] = "pixels"
    palette: int = 512
    grid: tuple[int, ...] = (32, 32)
    channels: int = 3
    values: Literal["colours", "levels"] = "colours"
    colours: tuple[str, ...] = ()
    white: float = 255.0
    frame: Frame = Frame()

    def __post_init__(self) -> None:
        at_least(1, palette=self.palette)
        check_grid(self.grid)
        check_frame(self.frame, *self.grid)
        check_colours(self.channels, self.white)
        check_palette(self.colours, self.palette, self.channels)
        if self.values == "levels" and (self.colours or not 2 <= self.palette <= 256):
            raise ValueError(f"palette: {self.palette} levels; there are 2 to 256 from black to white, and no colours")

    @property
    def vocab(self) -> int:
        return self.palette + 1

    @property
    def numbers(self) -> int:
        """Tokens of one pixel."""
        return self.channels if self.values == "levels" else 1

    @property
    def count(self) -> int:
        """The tokens that an image becomes."""
        return self.grid[0] * self.grid[1] * self.numbers


def check_palette(colours: tuple[str, ...], palette: int, channels: int) -> None:
    if colours and len(colours) != palette:
        raise ValueError(f"colours: {len(colours)} are said, and the palette has {palette}")
    for colour in colours:
        if len(colour) not in (2 * channels, 4 * channels) or not set(colour.lower()) <= HEX:
            wanted = "ff8000" if channels == 3 else "c0" * channels
            raise ValueError(f"colours: {colour!r} is not {channels} bytes in hexadecimal, such as {wanted!r}")


def numbers(colour: str, channels: int) -> list[float]:
    """A colour as numbers from 0 to 255."""
    digits = len(colour) // channels
    return [int(colour[at : at + digits], 16) * 255 / (16**digits - 1) for at in range(0, len(colour), digits)]


@setting
class MaskedPixels(Pixels):
    """Pixels through convolutions that see what is above them and before them (PixelCNN: van den Oord et al. 2016).

    One layer of 7 x 7 that does not see its own pixel, then `blocks` residual ones of 3 x 3 that do, `width` wide, with
    `dropout` inside (Salimans et al. 2017).
    """

    kind: Literal["masked_pixels"] = "masked_pixels"  # type: ignore[assignment]
    blocks: int = 5
    width: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, blocks=self.blocks, width=self.width)
        fraction(dropout=self.dropout)
        if self.numbers > 1:
            raise ValueError("values: a masked convolution has one token a pixel; take colours, or one channel")
