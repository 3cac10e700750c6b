"""Config of image and video embeddings: patches, stages, convolutions, pixels of a palette, tubelets, and resizing.

Images are bytes, normalised to (byte / 255 - `mean`) / `std`, with one value for all channels or one each, so that the
normalisation is part of the checkpoint. `white` is the value in arrays and lists that corresponds to byte 255.
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_fraction, check_minimum, config_class
from regard.config.trunk import Trunk


@config_class
class VideoEmbedding(NonTextEmbedding):
    """Video embedding: `frames` images of `image_size` pixels a side; a token is a tubelet of `tubelet_size` frames and
    `patch_size` pixels a side.

    Tokens lie on a grid of time, rows and columns: positions have three axes (Arnab et al. 2021).
    """

    kind: Literal["video"] = "video"
    frames: int = 16
    image_size: int = 64
    channels: int = 3
    tubelet_size: int = 2
    patch_size: int = 16

    def __post_init__(self) -> None:
        check_minimum(
            1,
            frames=self.frames,
            image_size=self.image_size,
            tubelet_size=self.tubelet_size,
            patch_size=self.patch_size,
        )
        if self.channels not in (1, 3):
            raise ConfigError(f"channels: {self.channels}; 1 is grey and 3 is colour")
        if self.frames % self.tubelet_size:
            raise ConfigError(f"tubelet_size: blocks of {self.tubelet_size} frames do not fill {self.frames}")
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"patch_size: blocks of {self.patch_size} pixels do not fill an image of {self.image_size}"
            )

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tubelets in time, in a column and in a row."""
        return self.frames // self.tubelet_size, self.image_size // self.patch_size, self.image_size // self.patch_size

    @property
    def count(self) -> int:
        """The tokens of a video."""
        time, rows, columns = self.grid
        return time * rows * columns


HEX = set("0123456789abcdef")


def check_channels(channels: int, max_value: float, **numbers: tuple[float, ...]) -> None:
    check_minimum(1, channels=channels)
    for name, each in numbers.items():
        if len(each) not in (1, channels):
            raise ConfigError(f"{name}: {list(each)} for {channels} channels; give one number, or one for each")
    if min(numbers.get("std", (1.0,))) <= 0:
        raise ConfigError(f"std: {list(numbers['std'])}; it is a divisor and must be more than zero")
    if max_value <= 0:
        raise ConfigError(f"max_value: {max_value} is not more than black, which is 0")


def check_grid(grid: tuple[int, ...]) -> None:
    if len(grid) != 2:
        raise ConfigError(f"grid: {list(grid)} is not rows and columns, such as [32, 32]")
    check_minimum(1, rows=grid[0], columns=grid[1])


@config_class
class ImageResize:
    """How images of another size are resized to the model's.

    `mode` handles other aspect ratios: "crop" resizes a centre crop of the right ratio; "stretch" distorts the whole
    image; "shortest_edge" fits the shorter side and cuts off the excess. With `size_before_crop` the image is first
    resized to so many pixels a side, and its centre is used (DeiT: 224 of 256).
    """

    mode: Literal["crop", "stretch", "shortest_edge"] = "crop"
    size_before_crop: int | None = None
    resample: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        check_minimum(1, size_before_crop=self.size_before_crop)
        if self.size_before_crop is not None and self.mode == "crop":
            raise ConfigError("size_before_crop: with mode 'crop' an image is cut to its proportions first; leave it "
                              "out, or set mode to stretch or shortest_edge")  # fmt: skip


def check_image_resize(resize: ImageResize, rows: int, columns: int) -> None:
    if resize.size_before_crop is not None and resize.size_before_crop < max(rows, columns):
        raise ConfigError(
            f"resize.size_before_crop: {resize.size_before_crop} pixels a side are less than the crop of {rows} x "
            f"{columns}"
        )
    if resize.mode == "shortest_edge" and rows != columns:
        raise ConfigError(f"resize.mode: the shorter side of a square fits, and {rows} x {columns} is none; set it to "
                          "crop")  # fmt: skip


class SquareGrid(NonTextEmbedding):
    """Base of square token grids."""

    @property
    def side(self) -> int:
        """Tokens in a row of the last grid."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """The number of tokens of an image."""
        return self.side * self.side

    @property
    def raster(self) -> tuple[int, int]:
        """Rows and columns of the tokens."""
        return self.side, self.side


@config_class
class PatchEmbedding(NonTextEmbedding):
    """Patch embedding: square patches of `patch_size` pixels, each one token (Dosovitskiy et al. 2021); `cls_tokens`
    puts a learned token first.

    With `cls_tokens` tokens are a sequence, the learned one at position 0; without it they lie on a grid. A number puts
    as many learned tokens first (DeiT has 2: Touvron et al. 2021).
    """

    kind: Literal["patches"] = "patches"
    patch_size: int = 16
    image_size: int = 224
    channels: int = 3
    cls_tokens: bool | int = True
    bias: bool = True
    norm: bool = False
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    max_value: float = 255.0
    resize: ImageResize = ImageResize()

    def __post_init__(self) -> None:
        check_minimum(1, patch_size=self.patch_size, image_size=self.image_size)
        check_minimum(0, cls_tokens=self.cls_tokens)
        if self.cls_tokens in (0, 1):
            object.__setattr__(self, "cls_tokens", bool(self.cls_tokens))  # equal models, equal configs
        check_channels(self.channels, self.max_value, mean=self.mean, std=self.std)
        check_image_resize(self.resize, self.image_size, self.image_size)
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"patch_size: patches of {self.patch_size} pixels do not fill an image of {self.image_size}"
            )

    @property
    def side(self) -> int:
        """Patches in a row of the image."""
        return self.image_size // self.patch_size

    @property
    def count(self) -> int:
        """The number of tokens of an image."""
        return self.side * self.side + self.cls_tokens

    @property
    def raster(self) -> tuple[int, int] | None:
        """Rows and columns of the tokens; None if they are a sequence after a learned token."""
        return None if self.cls_tokens else (self.side, self.side)


@config_class
class StageEmbedding(SquareGrid):
    """Hierarchical stages: patches, then trunks that each end by merging 2 x 2 tokens into one (Swin: Liu et al. 2021).

    The model's own trunk is the last stage.
    """

    kind: Literal["stages"] = "stages"
    patches: PatchEmbedding = PatchEmbedding(patch_size=4, cls_tokens=False, norm=True)
    trunks: tuple[Trunk, ...] = ()

    def __post_init__(self) -> None:
        if not self.trunks:
            raise ConfigError("trunks: name at least one, or let embed be of kind 'patches'")
        if self.patches.cls_tokens:
            raise ConfigError("patches.cls_tokens: tokens on a grid merge, a learned one beside them does not; set it "
                              "to false")  # fmt: skip
        if self.patches.side % 2 ** len(self.trunks):
            halves = f"{len(self.trunks)} stages halve it as often"
            raise ConfigError(f"trunks: a grid of {self.patches.side} x {self.patches.side} patches, and {halves}")
        for place, trunk in enumerate(self.trunks):
            if trunk.cross != "none":
                raise ConfigError(f"trunks[{place}].cross: a stage has no memory for cross-attention; set it to none")

    @property
    def side(self) -> int:
        side: int = self.patches.side // 2 ** len(self.trunks)
        return side


@config_class
class ConvEmbedding(SquareGrid):
    """Residual convolutions of 3 x 3 pixels in stages, each of half the side of the previous one (He et al. 2016).

    `widths` are the channels of the stages, `blocks_per_stage` the residual blocks in each. Tokens lie on the last
    grid. Norms are group norms (Wu and He 2018), which do not depend on other images in the batch.
    """

    kind: Literal["conv"] = "conv"
    image_size: int = 32
    channels: int = 3
    widths: tuple[int, ...] = (64, 128, 256)
    blocks_per_stage: int = 2
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    max_value: float = 255.0

    def __post_init__(self) -> None:
        check_minimum(1, image_size=self.image_size, blocks_per_stage=self.blocks_per_stage)
        check_channels(self.channels, self.max_value, mean=self.mean, std=self.std)
        if not self.widths or min(self.widths) < 1:
            raise ConfigError(f"widths: {list(self.widths)} is not a width for each stage, such as [64, 128, 256]")
        if self.image_size % 2 ** (len(self.widths) - 1):
            raise ConfigError(f"widths: {len(self.widths)} stages halve an image of {self.image_size} pixels "
                             f"{len(self.widths) - 1} times")  # fmt: skip

    @property
    def side(self) -> int:
        side: int = self.image_size // 2 ** (len(self.widths) - 1)
        return side


@config_class
class PixelEmbedding(NonTextEmbedding):
    """Pixel embedding: images as ids of a `palette`, row by row after a start token (ImageGPT: Chen et al. 2020).

    The start token is the id after the last colour: the model reads it and all pixels but the last, and predicts every
    pixel. With `values` of "colors" a pixel is the nearest of them: `colors` in hexadecimal, such as "ff8000" or "c0"
    for a grey, or four digits per channel for values between bytes; without `colors` they are learned from the training
    data. With "levels" every channel value is a token, the nearest of so many from black to white (Image Transformer:
    Parmar et al. 2018).
    """

    kind: Literal["pixels"] = "pixels"
    palette: int = 512
    grid: tuple[int, ...] = (32, 32)
    channels: int = 3
    values: Literal["colors", "levels"] = "colors"
    colors: tuple[str, ...] = ()
    max_value: float = 255.0
    resize: ImageResize = ImageResize()

    def __post_init__(self) -> None:
        check_minimum(1, palette=self.palette)
        check_grid(self.grid)
        check_image_resize(self.resize, *self.grid)
        check_channels(self.channels, self.max_value)
        check_palette(self.colors, self.palette, self.channels)
        if self.values == "levels" and (self.colors or not 2 <= self.palette <= 256):
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
        """The number of tokens of an image."""
        return self.grid[0] * self.grid[1] * self.numbers


def check_palette(colours: tuple[str, ...], palette: int, channels: int) -> None:
    if colours and len(colours) != palette:
        raise ConfigError(f"colors: {len(colours)} are given, and the palette has {palette}")
    for colour in colours:
        if len(colour) not in (2 * channels, 4 * channels) or not set(colour.lower()) <= HEX:
            wanted = "ff8000" if channels == 3 else "c0" * channels
            raise ConfigError(f"colors: {colour!r} is not {channels} bytes in hexadecimal, such as {wanted!r}")


def parse_color(colour: str, channels: int) -> list[float]:
    """A colour as numbers from 0 to 255."""
    digits = len(colour) // channels
    return [int(colour[at : at + digits], 16) * 255 / (16**digits - 1) for at in range(0, len(colour), digits)]


@config_class
class MaskedConvEmbedding(PixelEmbedding):
    """PixelCNN embedding: convolutions over the pixels above and to the left (van den Oord et al. 2016).

    One layer of 7 x 7 without the pixel itself, then `blocks` residual ones of 3 x 3 with it, `width` wide, with
    `dropout` inside (Salimans et al. 2017).
    """

    kind: Literal["masked_conv"] = "masked_conv"  # type: ignore[assignment]
    blocks: int = 5
    width: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(1, blocks=self.blocks, width=self.width)
        check_fraction(dropout=self.dropout)
        if self.numbers > 1:
            raise ConfigError("values: a masked convolution has one token a pixel; take colors, or one channel")
