"""Video embedding by tubelets (a few frames by a square of pixels) on a grid of time, rows, columns; its processor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.core.model import FRONT_ENDS
from regard.core.tokens import Tokens, grid_tokens
from regard.data.readers.arrays import read_npz
from regard.data.readers.file_folder import IMAGE_SUFFIXES
from regard.data.readers.images import load_image
from regard.data.records import Record
from regard.inputs.processors import PROCESSORS, TensorExample

MIDDLE = 127.5  # middle of the byte range


class VideoEmbedding(nn.Module):
    """Video front end: videos (B, T, C, H, W) to Tokens by one linear projection of every tubelet."""

    def __init__(self, c: config.VideoEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.map = nn.Linear(c.tubelet_size * c.channels * c.patch_size * c.patch_size, width)

    def forward(self, films: Tensor, **given: Tensor) -> Tokens:
        c, wanted = self.c, (self.c.frames, self.c.channels, self.c.image_size, self.c.image_size)
        if given:
            raise ConfigError(f"{', '.join(given)}: films carry none; leave it out")
        if tuple(films.shape[1:]) != wanted:
            shape = f"(batch, {', '.join(map(str, wanted))})"
            raise ConfigError(f"films must be {shape} by embed.frames, embed.channels and embed.image_size, got a "
                              f"tensor of shape {tuple(films.shape)}")  # fmt: skip
        return grid_tokens(self.map(tubelets(films, c).to(self.map.weight.dtype)), c.grid)  #: S082

    def describe(self) -> str:
        c, (time, rows, columns) = self.c, self.c.grid
        block = f"{c.tubelet_size} frames of {c.patch_size} x {c.patch_size} x {c.channels}"
        return f"{time} x {rows} x {columns} blocks, {block} -> {self.map.out_features}"


def tubelets(films: Tensor, c: config.VideoEmbedding) -> Tensor:  # (B, T, C, H, W) -> (B, N, tube·C·size·size)
    """The pixels of each tubelet, in the order of time, rows and columns."""
    cut = (
        films.unfold(1, c.tubelet_size, c.tubelet_size)
        .unfold(3, c.patch_size, c.patch_size)
        .unfold(4, c.patch_size, c.patch_size)
    )
    return cut.movedim(2, 4).flatten(4).flatten(1, 3)  # (B, t, h, w, C, tube, size, size) before flattening


class VideoProcessor:
    """Video processor: a folder of frames in name order, an .npz of one array, or numbers (frames, rows,
    columns, ...)."""

    column = "film"

    def __init__(self, front: config.VideoEmbedding, augment: Any = None) -> None:
        if augment is not None:
            raise ConfigError("train.augment: it changes images, and films are read as they are; leave it out")
        self.front = front

    @property
    def about(self) -> dict[str, Any]:
        """The settings that examples depend on; the token size is not one."""
        return {"film": 1, **{name: getattr(self.front, name) for name in ("frames", "image_size", "channels")}}

    def example(self, record: Record, name: str) -> TensorExample:
        c, where = self.front, f"{record.where}: column {name!r}"
        found = list_frames(record[name], Path(record.where.rpartition(":")[0]).parent, where)
        if len(found) < c.frames:
            raise DataError(f"{where}: {len(found)} frames, expected {c.frames} or more by model.embed.frames; leave "
                            "it out, or skip it by data.on_bad_record=skip")  # fmt: skip
        some = [found[place * len(found) // c.frames] for place in range(c.frames)]  # evenly spaced, from the first on
        return {
            "film": torch.stack([resize_frame(load_image(frame, c.channels, where), c.image_size) for frame in some])
        }

    def blank(self, context: int) -> TensorExample:
        """An empty example, to count costs."""
        c = self.front
        return {"film": torch.zeros(c.frames, c.channels, c.image_size, c.image_size, dtype=torch.uint8)}

    def length(self, example: TensorExample) -> int:
        return self.front.count

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> dict[str, Tensor]:
        films = torch.stack([example["film"] for example in examples])
        return {"ids": films.float() / MIDDLE - 1}


def list_frames(found: Any, beside: Path, where: str) -> Sequence[Any]:
    """The frames of a video, each an image source; relative paths start at the record's file."""
    if not isinstance(found, str | Path):
        if not hasattr(found, "__len__") or not len(found):
            raise DataError(f"{where} holds {found!r:.60}; expected a folder of frames, an .npz file or an array")
        return found  # type: ignore[no-any-return]
    path = next((each for each in (Path(found), beside / found) if each.exists()), Path(found))
    if path.is_dir():
        return sorted(each for each in path.iterdir() if each.suffix.lower() in IMAGE_SUFFIXES)
    if path.suffix.lower() != ".npz" or not path.is_file():
        raise DataError(f"{where}: no folder of frames and no .npz file {str(found)!r}; correct its name")
    tables = read_npz(path, str(path))
    if len(tables) != 1:
        raise DataError(f"{where}: {path} holds {', '.join(tables) or 'no array'}; a film is one array (frames, rows, "
                        "columns, colours)")  # fmt: skip
    [film] = tables.values()
    return film if film.dim() else []  # type: ignore[return-value]  # as long as a list, and made already


def resize_frame(frame: Tensor, side: int) -> Tensor:  # (C, H, W) -> (C, side, side)
    """The centre square of a frame, resized."""
    rows, columns = frame.shape[1:]
    least = min(rows, columns)
    top, left = (rows - least) // 2, (columns - least) // 2
    square = frame[:, top : top + least, left : left + least]
    if least == side:
        return square.contiguous()
    made = F.interpolate(square[None].float(), size=(side, side), mode="bilinear", antialias=True)[0]
    return made.round().clamp(0, 255).to(torch.uint8)


FRONT_ENDS["video"] = VideoEmbedding
PROCESSORS["video"] = VideoProcessor
