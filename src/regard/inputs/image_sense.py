"""Images of records: read, framed, kept as bytes, and changed a little on their way into a training batch.

    {"image": "cats/1.jpg", "label": "cat"}  ──►  {"image": uint8 (3, 32, 32)}  ──►  {"ids": uint8 (B, 3, 32, 32)}

An image of other proportions is cut at its middle to those that the model sees, then made as large. Pixel models get
ids of their palette: (B, 32, 32), or (B, 32, 32, 3) where every number is told.
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


class Images:
    """Pictures, arrays or lists of numbers as bytes of one size."""

    column = "image"

    def __init__(self, front: Any, augment: config.Augment | None = None) -> None:
        self.front, self.augment = front, augment
        self.look: Any = front.patches if isinstance(front, config.Stages) else front
        self.size = front.grid if isinstance(front, config.Pixels) else (self.look.image, self.look.image)

    @property
    def about(self) -> dict[str, Any]:
        """What examples depend on; how they are normed or cut into patches comes later."""
        return {"images": 1, "size": list(self.size), "channels": self.look.channels, "white": self.look.white}

    def example(self, record: Record, name: str) -> Example:
        found = record[name]
        if isinstance(found, str | Path):
            found = file_in(record, name)
        made = picture(found, self.look.channels, f"{record.where}: column {name!r}", self.look.white)
        return {"image": framed(made, *self.size)}

    def length(self, example: Example) -> int:
        return int(self.front.count)

    def batch(self, examples: Sequence[Example], chance: torch.Generator | None) -> dict[str, Tensor]:
        images, more = torch.stack([example["image"] for example in examples]), dict[str, Tensor]()
        if self.augment is not None and chance is not None:
            images = augmented(images, self.augment, chance)
            if self.augment.mixup or self.augment.cutmix:
                images, more = mixed(images, self.augment, chance)
        return {"ids": images, **more}


def framed(image: Tensor, rows: int, columns: int) -> Tensor:
    """The middle of an image (C, H, W), of the proportions of rows and columns, and as large."""
    high, wide = image.shape[1:]
    if (high, wide) == (rows, columns):
        return image
    scale = min(high / rows, wide / columns)
    tall, broad = max(1, round(rows * scale)), max(1, round(columns * scale))
    top, left = (high - tall) // 2, (wide - broad) // 2
    middle = image[None, :, top : top + tall, left : left + broad].float()
    resized = F.interpolate(middle, (rows, columns), mode="bilinear", antialias=True, align_corners=False)
    return resized[0].round().clamp(0, 255).to(torch.uint8)


class Painted(Images):
    """Images told in the colours of a palette."""

    def __init__(self, front: config.Pixels, augment: config.Augment | None = None) -> None:
        if augment is not None and (augment.mixup or augment.cutmix):
            raise ConfigError("train.augment: mixup and cutmix mix the answers too, here pixels; leave them out")
        super().__init__(front, augment)

    def batch(self, examples: Sequence[Example], chance: torch.Generator | None) -> dict[str, Tensor]:
        return {"ids": palette.ids(super().batch(examples, chance)["ids"], self.front)}


SENSES.update(patches=Images, stages=Images, convolutions=Images, pixels=Painted, masked_pixels=Painted)
