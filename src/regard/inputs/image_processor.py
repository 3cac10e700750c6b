"""ImageProcessor and PixelProcessor: read, resize and crop the images of records, store bytes, augment in training.

    {"image": "cats/1.jpg", "label": "cat"}  ──►  {"image": uint8 (3, 32, 32)}  ──►  {"ids": uint8 (B, 3, 32, 32)}

An image of another aspect ratio is centre-cropped to that of the model, then resized, unless the model's `frame` says
otherwise. Pixel models get palette ids: (B, 32, 32), or (B, 32, 32, 3) where every channel is an id.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError
from regard.data.readers.file_folder import path_in_record
from regard.data.readers.images import load_image
from regard.data.records import Record
from regard.inputs import palette
from regard.inputs.image_augment import augment_images, mixup_or_cutmix
from regard.inputs.processors import PROCESSORS, TensorExample

CUT = config.ImageResize()
STRIP = 8  # aspect ratio above which only the middle of an image is read


class ImageProcessor:
    """Image processor: pictures, arrays or lists of numbers as bytes of one size."""

    column = "image"

    def __init__(self, front: Any, augment: config.ImageAugment | None = None) -> None:
        self.front, self.augment = front, augment
        self.look: Any = front.patches if isinstance(front, config.StageEmbedding) else front
        self.size = (
            front.grid if isinstance(front, config.PixelEmbedding) else (self.look.image_size, self.look.image_size)
        )
        self.frame: config.ImageResize = getattr(self.look, "resize", CUT)

    @property
    def about(self) -> dict[str, Any]:
        """The settings that examples depend on; normalisation and patches come later."""
        other = {} if self.frame == CUT else {"frame": config.to_dict(self.frame)}
        return {
            "images": 1,
            "size": list(self.size),
            "channels": self.look.channels,
            "max_value": self.look.max_value,
            **other,
        }

    def example(self, record: Record, name: str) -> TensorExample:
        found = record[name]
        if isinstance(found, str | Path):
            found = path_in_record(record, name)
        made = load_image(found, self.look.channels, f"{record.where}: column {name!r}", self.look.max_value)
        rows, columns = self.size
        return {"image": resize_image(made, rows, columns, self.frame)}

    def length(self, example: TensorExample) -> int:
        return int(self.front.count)

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> dict[str, Tensor]:
        images, more = torch.stack([example["image"] for example in examples]), dict[str, Tensor]()
        if self.augment is not None and chance is not None:
            images = augment_images(images, self.augment, chance)
            if self.augment.mixup or self.augment.cutmix:
                images, more = mixup_or_cutmix(images, self.augment, chance)
        return {"ids": images, **more}


def resize_image(image: Tensor, rows: int, columns: int, frame: config.ImageResize = CUT) -> Tensor:
    """Resize an image (C, H, W) to so many rows and columns, in the way of the frame."""
    high, wide = image.shape[1:]
    if (high, wide) == (rows, columns) and frame.size_before_crop is None:
        return image
    if frame.mode == "crop":
        scale = min(high / rows, wide / columns)
        image = center_crop(image, max(1, round(rows * scale)), max(1, round(columns * scale)))
        resized = interpolate_image(image.float(), rows, columns, frame.resample)
        return resized.round().clamp(0, 255).to(torch.uint8)
    tall, broad = frame.size_before_crop or rows, frame.size_before_crop or columns
    if frame.mode == "shortest_edge":
        short = min(high, wide)
        image = center_crop(image, min(high, STRIP * short), min(wide, STRIP * short))
        tall, broad = (tall * side // short for side in image.shape[1:])
    return center_crop(
        interpolate_image(image, tall, broad, frame.resample), rows, columns
    )  # in bytes, as torchvision and transformers do


def center_crop(image: Tensor, rows: int, columns: int) -> Tensor:
    top, left = (image.shape[1] - rows) // 2, (image.shape[2] - columns) // 2
    return image[:, top : top + rows, left : left + columns]


def interpolate_image(image: Tensor, rows: int, columns: int, resample: str) -> Tensor:
    """Resize the whole image by interpolation, without changing its dtype."""
    return F.interpolate(image[None], (rows, columns), mode=resample, antialias=True, align_corners=False)[0]


class PixelProcessor(ImageProcessor):
    """Pixel processor: images as ids of a palette."""

    def __init__(self, front: config.PixelEmbedding, augment: config.ImageAugment | None = None) -> None:
        if augment is not None and (augment.mixup or augment.cutmix):
            raise ConfigError("train.augment: mixup and cutmix mix the labels too, here pixels; leave them out")
        super().__init__(front, augment)

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> dict[str, Tensor]:
        return {"ids": palette.quantize_colors(super().collate(examples, chance)["ids"], self.front)}


PROCESSORS.update(
    patches=ImageProcessor,
    stages=ImageProcessor,
    conv=ImageProcessor,
    pixels=PixelProcessor,
    masked_conv=PixelProcessor,
)
