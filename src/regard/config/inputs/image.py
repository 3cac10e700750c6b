"""Config of image and video embeddings: patches, stages, convolutions, pixels of a palette, tubelets, and resizing.

Images come as bytes; a model sees (byte / 255 - `mean`) / `std`, for all channels or channel by channel, so a
checkpoint knows how its images were normalised. `white` is the number that arrays and lists have for a byte's 255.
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_fraction, check_minimum, config_class
from regard.config.trunk import Trunk


@config_class
class VideoEmbedding(NonTextEmbedding):
    """`frames` images of `image` pixels a side; a token is a block of `tube` frames and `size` pixels a side.

    Tokens stand on a grid of time, rows and columns: positions have three axes (Arnab et al. 2021).
    """

    kind: Literal["film"] = "film"
    frames: int = 16
    image: int = 64
    channels: int = 3
    tube: int = 2
    size: int = 16

    def __post_init__(self) -> None:
        check_minimum(1, frames=self.frames, image=self.image, tube=self.tube, size=self.size)
        if self.channels not in (1, 3):
            raise ConfigError(f"channels: {self.channels}; 1 is grey and 3 is colour")
        if self.frames % self.tube:
            raise ConfigError(f"tube: blocks of {self.tube} frames do not fill {self.frames}")
        if self.image % self.size:
            raise ConfigError(f"size: blocks of {self.size} pixels do not fill an image of {self.image}")

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks in time, in a column and in a row."""
        return self.frames // self.tube, self.image // self.size, self.image // self.size

    @property
    def count(self) -> int:
        """The tokens of a video."""
        time, rows, columns = self.grid
        return time * rows * columns


HEX = set("0123456789abcdef")


def check_channels(channels: int, white: float, **numbers: tuple[float, ...]) -> None:
    check_minimum(1, channels=channels)
    for name, each in numbers.items():
        if len(each) not in (1, channels):
            raise ConfigError(f"{name}: {list(each)} for {channels} channels; say one number, or one for each")
    if min(numbers.get("std", (1.0,))) <= 0:
        raise ConfigError(f"std: {list(numbers['std'])}, and to divide by it, it must be more than zero")
    if white <= 0:
        raise ConfigError(f"white: {white} is not more than black, which is 0")


def check_grid(grid: tuple[int, ...]) -> None:
    if len(grid) != 2:
        raise ConfigError(f"grid: {list(grid)} is not rows and columns, such as [32, 32]")
    check_minimum(1, rows=grid[0], columns=grid[1])


@config_class
class ImageResize:
    """How an image of another size becomes one that the model sees.

    `fit` is what happens to other proportions: with "cut" the middle that has the right ones is made as large; with
    "squeeze" all of it, whatever it had; with "shorter" its shorter side fits, and what hangs over is cut off. Where
    `whole` is said, the image is first made so many pixels a side, and its middle is what is seen (DeiT: 224 of 256).
    """

    fit: Literal["cut", "squeeze", "shorter"] = "cut"
    whole: int | None = None
    resample: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        check_minimum(1, whole=self.whole)
        if self.whole is not None and self.fit == "cut":
            raise ConfigError("whole: an image that is cut first is made as large as it is seen; leave it out, or let "
                             "fit be squeeze or shorter")  # fmt: skip


def check_image_resize(frame: ImageResize, rows: int, columns: int) -> None:
    if frame.whole is not None and frame.whole < max(rows, columns):
        raise ConfigError(f"frame.whole: {frame.whole} pixels a side, and {rows} x {columns} of them are to be seen")
    if frame.fit == "shorter" and rows != columns:
        raise ConfigError(f"frame.fit: the shorter side of a square fits, and {rows} x {columns} is none; set it to "
                          "cut")  # fmt: skip


class SquareGrid(NonTextEmbedding):
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


@config_class
class PatchEmbedding(NonTextEmbedding):
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
    frame: ImageResize = ImageResize()

    def __post_init__(self) -> None:
        check_minimum(1, size=self.size, image=self.image)
        check_minimum(0, cls=self.cls)
        if self.cls in (0, 1):
            object.__setattr__(self, "cls", bool(self.cls))  # one spelling for each model
        check_channels(self.channels, self.white, mean=self.mean, std=self.std)
        check_image_resize(self.frame, self.image, self.image)
        if self.image % self.size:
            raise ConfigError(f"size: patches of {self.size} pixels do not fill an image of {self.image}")

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


@config_class
class StageEmbedding(SquareGrid):
    """Patches, then trunks that each end by merging every 2 x 2 tokens into one (Swin: Liu et al. 2021).

    What comes out is for the model's own trunk, which is the last stage.
    """

    kind: Literal["stages"] = "stages"
    patches: PatchEmbedding = PatchEmbedding(size=4, cls=False, norm=True)
    trunks: tuple[Trunk, ...] = ()

    def __post_init__(self) -> None:
        if not self.trunks:
            raise ConfigError("trunks: name at least one, or let embed be of kind 'patches'")
        if self.patches.cls:
            raise ConfigError("patches.cls: tokens on a grid merge, a learned one beside them does not; set it to "
                              "false")  # fmt: skip
        if self.patches.side % 2 ** len(self.trunks):
            halves = f"{len(self.trunks)} stages halve it as often"
            raise ConfigError(f"trunks: a grid of {self.patches.side} x {self.patches.side} patches, and {halves}")
        for place, trunk in enumerate(self.trunks):
            if trunk.cross != "none":
                raise ConfigError(f"trunks[{place}].cross: a stage has nobody to look across to")

    @property
    def side(self) -> int:
        side: int = self.patches.side // 2 ** len(self.trunks)
        return side


@config_class
class ConvEmbedding(SquareGrid):
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
        check_minimum(1, image=self.image, blocks=self.blocks)
        check_channels(self.channels, self.white, mean=self.mean, std=self.std)
        if not self.widths or min(self.widths) < 1:
            raise ConfigError(f"widths: {list(self.widths)} is not a width for each stage, such as [64, 128, 256]")
        if self.image % 2 ** (len(self.widths) - 1):
            raise ConfigError(f"widths: {len(self.widths)} stages halve an image of {self.image} pixels "
                             f"{len(self.widths) - 1} times")  # fmt: skip

    @property
    def side(self) -> int:
        side: int = self.image // 2 ** (len(self.widths) - 1)
        return side


@config_class
class PixelEmbedding(NonTextEmbedding):
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
    frame: ImageResize = ImageResize()

    def __post_init__(self) -> None:
        check_minimum(1, palette=self.palette)
        check_grid(self.grid)
        check_image_resize(self.frame, *self.grid)
        check_channels(self.channels, self.white)
        check_palette(self.colours, self.palette, self.channels)
        if self.values == "levels" and (self.colours or not 2 <= self.palette <= 256):
            raise ConfigError(f"palette: {self.palette} levels; there are 2 to 256 from black to white, and no colours")

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
        raise ConfigError(f"colours: {len(colours)} are said, and the palette has {palette}")
    for colour in colours:
        if len(colour) not in (2 * channels, 4 * channels) or not set(colour.lower()) <= HEX:
            wanted = "ff8000" if channels == 3 else "c0" * channels
            raise ConfigError(f"colours: {colour!r} is not {channels} bytes in hexadecimal, such as {wanted!r}")


def parse_color(colour: str, channels: int) -> list[float]:
    """A colour as numbers from 0 to 255."""
    digits = len(colour) // channels
    return [int(colour[at : at + digits], 16) * 255 / (16**digits - 1) for at in range(0, len(colour), digits)]


@config_class
class MaskedConvEmbedding(PixelEmbedding):
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
        check_minimum(1, blocks=self.blocks, width=self.width)
        check_fraction(dropout=self.dropout)
        if self.numbers > 1:
            raise ConfigError("values: a masked convolution has one token a pixel; take colours, or one channel")
