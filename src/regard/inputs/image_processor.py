"""Images of records: read, framed, kept as bytes, and changed a little on their way into a training batch.

    {"image": "cats/1.jpg", "label": "cat"}  ──►  {"image": uint8 (3, 32, 32)}  ──►  {"ids": uint8 (B, 3, 32, 32)}

An image of other proportions is cut at its middle to those that the model sees, then made as large, unless the `frame`
of the model says otherwise. Pixel models get ids of their palette: (B, 32, 32), or (B, 32, 32, 3) where every number is
told.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import config
from regard.config import ConfigError
from regard.data import Record
from regard.data.folders import file_in
from regard.data.pictures import picture
from regard.inputs import palette
from regard.inputs.augment import augmented, mixed
from regard.inputs.senses import SENSES, Example

CUT = config.Frame()
STRIP = 8  # times as long as it is high: nobody sees more of an image than its middle


class Images:
    """Pictures, arrays or lists of numbers as bytes of one size."""

    column = "image"

    def __init__(self, front: Any, augment: config.Augment | None = None) -> None:
        self.front, self.augment = front, augment
        self.look: Any = front.patches if isinstance(front, config.Stages) else front
        self.size = front.grid if isinstance(front, config.Pixels) else (self.look.image, self.look.image)
        self.frame: config.Frame = getattr(self.look, "frame", CUT)

    @property
    def about(self) -> dict[str, Any]:
        """What examples depend on; how they are normed or cut into patches comes later."""
        other = {} if self.frame == CUT else {"frame": config.tree(self.frame)}
        return {"images": 1, "size": list(self.size), "channels": self.look.channels, "white": self.look.white, **other}

    def example(self, record: Record, name: str) -> Example:
        found = record[name]
        if isinstance(found, str | Path):
            found = file_in(record, name)
        made = picture(found, self.look.channels, f"{record.where}: column {name!r}", self.look.white)
        rows, columns = self.size
        return {"image": framed(made, rows, columns, self.frame)}

    def length(self, example: Example) -> int:
        return int(self.front.count)

    def batch(self, examples: Sequence[Example], chance: torch.Generator | None) -> dict[str, Tensor]:
        images, more = torch.stack([example["image"] for example in examples]), dict[str, Tensor]()
        if self.augment is not None and chance is not None:
            images = augmented(images, self.augment, chance)
            if self.augment.mixup or self.augment.cutmix:
                images, more = mixed(images, self.augment, chance)
        return {"ids": images, **more}


def framed(image: Tensor, rows: int, columns: int, frame: config.Frame = CUT) -> Tensor:
    """An image (C, H, W) as one of so many rows and columns, in the way that the frame says."""
    high, wide = image.shape[1:]
    if (high, wide) == (rows, columns) and frame.whole is None:
        return image
    if frame.fit == "cut":
        scale = min(high / rows, wide / columns)
        image = middle(image, max(1, round(rows * scale)), max(1, round(columns * scale)))
        resized = sized(image.float(), rows, columns, frame.resample)
        return resized.round().clamp(0, 255).to(torch.uint8)
    tall, broad = frame.whole or rows, frame.whole or columns
    if frame.fit == "shorter":
        short = min(high, wide)
        image = middle(image, min(high, STRIP * short), min(wide, STRIP * short))
        tall, broad = (tall * side // short for side in image.shape[1:])
    return middle(sized(image, tall, broad, frame.resample), rows, columns)  # in bytes, as the others' libraries do


def middle(image: Tensor, rows: int, columns: int) -> Tensor:
    top, left = (image.shape[1] - rows) // 2, (image.shape[2] - columns) // 2
    return image[:, top : top + rows, left : left + columns]


def sized(image: Tensor, rows: int, columns: int, resample: str) -> Tensor:
    """The whole image, larger or smaller, in the numbers that it has."""
    return F.interpolate(image[None], (rows, columns), mode=resample, antialias=True, align_corners=False)[0]


class Painted(Images):
    """Images told in the colours of a palette."""

    def __init__(self, front: config.Pixels, augment: config.Augment | None = None) -> None:
        if augment is not None and (augment.mixup or augment.cutmix):
            raise ConfigError("train.augment: mixup and cutmix mix the answers too, here pixels; leave them out")
        super().__init__(front, augment)

    def batch(self, examples: Sequence[Example], chance: torch.Generator | None) -> dict[str, Tensor]:
        return {"ids": palette.ids(super().batch(examples, chance)["ids"], self.front)}


SENSES.update(patches=Images, stages=Images, convolutions=Images, pixels=Painted, masked_pixels=Painted)
