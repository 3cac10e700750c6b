"""Image reader: decodes and checks images to uint8 tensors (C, H, W); errors are one sentence.

    a path, a pathlib.Path           PNG, JPEG, WebP, BMP, GIF, TIFF, PPM: by file contents, not by name
    bytes, {"bytes": ..., "path"}    the same in a record, as in Parquet files and hub datasets
    lists, arrays, tensors           (rows, columns), (rows, columns, colours) or (colours, rows, columns)

The image size is read from the header, and more than MAX_PIXELS are refused before decoding.
"""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError, unwritable_error
from regard.files.compression import require_package
from regard.files.paths import check_regular_file

MAX_PIXELS = 1 << 26  # pixels: 8,192 x 8,192
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
DEEP = 65_535  # white in 16 bits


def load_image(found: Any, channels: int, where: str, white: float = 255.0) -> Tensor:
    """Load an image of any supported type as uint8 (channels, H, W); `white` is the largest value of arrays and
    lists."""
    if isinstance(found, dict):  # format of hub datasets: the bytes, or else a path
        found = found.get("bytes") or found.get("path") or b""
    if isinstance(found, str | Path):
        return load_image_file(Path(found), channels, where)
    if isinstance(found, bytes | bytearray | memoryview):
        if not found:
            raise DataError(f"{where}: no bytes, where an image should be; remove this record")
        return to_channels(lambda: open_image(io.BytesIO(found), where), channels, where)
    if hasattr(found, "getbands"):  # a PIL image, as `datasets` decodes them
        return to_channels(lambda: check_image_size(found, where), channels, where)
    return image_from_numbers(found, channels, where, white)


# ---------------------------------------------------------------- files


def load_image_file(path: Path, channels: int, where: str) -> Tensor:
    where = where if str(path) in where else f"{where}: {path}"
    check_regular_file(path, "name an image that can be read")
    try:
        with path.open("rb") as file:
            if not path.is_file() or not path.stat().st_size:
                raise DataError(f"{where}: an empty file, where an image should be; remove it")
            return to_channels(lambda: open_image(file, where), channels, where)
    except OSError as problem:
        raise DataError(f"{where}: {(problem.strerror or str(problem)).lower()}; name an image that can be read"
                        ) from None  # fmt: skip


def open_image(file: IO[bytes], where: str) -> Any:
    """Open an image and read only its header."""
    return check_image_size(import_pillow("Image", where).open(file, formats=FORMATS), where)


def import_pillow(part: str, where: str) -> Any:
    return require_package(f"PIL.{part}", f"{where}: an image file", "or give arrays")


def check_image_size(image: Any, where: str) -> Any:
    columns, rows = image.size
    if columns * rows > MAX_PIXELS:
        raise too_large_error(where, f"{columns:,} x {rows:,}")
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # MPO: a photograph with its preview
        raise DataError(f"{where}: a picture of {frames} frames; save the one that is meant")
    return image


def too_large_error(where: str, size: str) -> DataError:
    return DataError(f"{where}: {size} pixels are more than {MAX_PIXELS:,}; make it smaller")


def to_channels(open: Callable[[], Any], channels: int, where: str) -> Tensor:
    """The image in upright orientation with so many channels; transparent parts become white."""
    if channels not in (1, 3):
        raise DataError(f"{where}: a picture, which has 1 or 3 colours, and embed.channels is {channels}; give arrays")
    with image_errors(where):
        image = to_8bit(import_pillow("ImageOps", where).exif_transpose(open()), where)
        return to_tensor(image.convert("L" if channels == 1 else "RGB"), channels)


def to_8bit(image: Any, where: str) -> Any:
    """Convert to 8 bits per channel without transparency."""
    if image.mode.startswith("I"):
        return reduce_depth(image, where)
    if image.mode == "F":
        raise DataError(f"{where}: a float picture (mode F) has no defined maximum; save it with 8 bits")
    if "A" not in image.getbands() and "a" not in image.getbands() and "transparency" not in image.info:
        return image
    ground = import_pillow("Image", where).new("RGBA", image.size, "white")
    ground.alpha_composite(image.convert("RGBA"))
    return ground


def reduce_depth(image: Any, where: str) -> Any:
    """Reduce 16-bit greys to 8 bits."""
    low, high = image.convert("I").getextrema()
    if low < 0 or high > DEEP:
        raise DataError(f"{where}: greys from {low:,} to {high:,}; a picture has 8 or 16 bits, so save it with 8")
    return image.convert("I").point(lambda value: value * (255 / DEEP) + 0.5).convert("L")


def to_tensor(image: Any, channels: int) -> Tensor:
    columns, rows = image.size
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(rows, columns, channels).movedim(-1, 0).contiguous()


@contextmanager
def image_errors(where: str) -> Iterator[None]:
    """Context that turns the errors of broken or hostile images into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata, and sizes that are checked here
            yield
    except DataError:
        raise
    except Exception as problem:  # decoders raise almost anything: OSError, SyntaxError, struct.error, ...
        if type(problem).__name__ == "DecompressionBombError":
            raise too_large_error(where, "its") from None
        reason = "its format is unknown" if "cannot identify" in str(problem) else str(problem).rstrip(".")
        raise DataError(f"{where}: not a whole image ({reason or type(problem).__name__}); there are "
                        f"{', '.join(FORMATS)}") from None  # fmt: skip


# ---------------------------------------------------------------- numbers


def image_from_numbers(found: Any, channels: int, where: str, white: float) -> Tensor:
    """An image from numbers between 0 and `white`."""
    values = numbers_as_tensor(found, where)
    if values.dim() == 1 and channels == 1 and (side := round(len(values) ** 0.5)) ** 2 == len(values):
        values = values.view(side, side)  # a flat row of greys, as in tables of digits
    values = values[None] if values.dim() == 2 else values
    if values.dim() != 3 or not values.numel() or values.numel() > MAX_PIXELS:
        raise DataError(f"{where}: an array of {tuple(values.shape)}, expected (rows, columns), (rows, columns, "
                        f"colours) or (colours, rows, columns) of at most {MAX_PIXELS:,} numbers")  # fmt: skip
    if values.shape[0] != channels and values.shape[-1] in (1, channels):
        values = values.movedim(-1, 0)
    if values.shape[0] == 1:
        values = values.expand(channels, *values.shape[1:])
    if values.shape[0] != channels:
        raise DataError(f"{where}: an array of {tuple(values.shape)}, and embed.channels is {channels}")
    return scale_to_bytes(values, where, white).contiguous()


def numbers_as_tensor(found: Any, where: str) -> Tensor:
    try:
        values = found if isinstance(found, Tensor) else torch.tensor(found)
        return values if values.dtype == torch.uint8 else values.to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{where}: {found!r:.60} is no image; expected a path, bytes, or rows of numbers all of one "
                        "length") from None  # fmt: skip


def scale_to_bytes(values: Tensor, where: str, white: float) -> Tensor:
    if values.dtype == torch.uint8 and white == 255:
        return values
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= white):  # also catches NaN
        raise DataError(f"{where}: numbers from {low:g} to {high:g}, expected 0 to {white:g}; set "
                        "model.embed.max_value to the number that is white")  # fmt: skip
    return (values.double() * (255 / white)).round().to(torch.uint8)


# ---------------------------------------------------------------- writing


def save_image(image: Tensor, path: Path) -> None:
    """Save a uint8 image (C, H, W) with 1 or 3 channels; the suffix selects the format."""
    mode, (rows, columns) = {1: "L", 3: "RGB"}[image.shape[0]], image.shape[1:]
    made = import_pillow("Image", str(path)).frombytes(
        mode, (columns, rows), bytes(image.movedim(0, -1).flatten().tolist())
    )
    try:
        made.save(path)
    except ValueError:
        raise ConfigError(f"{path}: unknown image suffix; call it .png") from None
    except OSError as problem:
        raise unwritable_error(path, problem) from None
