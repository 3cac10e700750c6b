"""Image preprocessor config: reads and writes preprocessor_config.json, the normalisation and resizing of images.

    {"size": {"height": 224, "width": 224}, "resample": 2,                        embed.resize
     "rescale_factor": 1/255, "image_mean": [0.5, ...], "image_std": [0.5, ...],  embed.mean, embed.std
     "clusters": [[-1, 1, 0.2], ...]}                                             embed.colors, of a pixel model

The input is (byte·rescale_factor - mean) / std in `transformers`, and (byte/255 - mean) / std here: another factor is
absorbed by mean and std. Class names are in config.json, under id2label.
"""

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import DataError
from regard.config.inputs.image import parse_color
from regard.files.content_cache import read_json_object
from regard.files.manifest import write_json_plain
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import FamilyClass
from regard.hub.validate import own_file

PREPROCESSOR_FILE = "preprocessor_config.json"
Front = config.PatchEmbedding | config.PixelEmbedding
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # the numbers are those of pillow
TYPES = {
    "vit": "ViTImageProcessor", "deit": "DeiTImageProcessor", "swin": "ViTImageProcessor",
    "clip": "CLIPImageProcessor", "clip_vision_model": "CLIPImageProcessor", "imagegpt": "ImageGPTImageProcessor",
}  # fmt: skip


def image_front_end(c: config.Model) -> Front | None:
    """The image front end of a model, if it has one."""
    sees = c.towers[0] if isinstance(c, config.DualEncoder) else c
    embed = sees.embed.patches if isinstance(sees.embed, config.StageEmbedding) else sees.embed
    return embed if isinstance(embed, config.PatchEmbedding) or type(embed) is config.PixelEmbedding else None


def with_front_end(c: config.Model, seen: Front) -> config.Model:
    """The config with another image front end."""
    if isinstance(c, config.DualEncoder):
        return replace(c, towers=(replace(c.towers[0], embed=seen), *c.towers[1:]))
    if isinstance(c.embed, config.StageEmbedding) and isinstance(seen, config.PatchEmbedding):
        return replace(c, embed=replace(c.embed, patches=seen))
    return replace(c, embed=seen)


# ---------------------------------------------------------------- reading


def read_preprocessor(c: config.Model, folder: Path, known: FamilyClass | None) -> config.Model:
    """The config with the image preprocessing of the folder; without such a file, that of the family."""
    before, path = image_front_end(c), folder / PREPROCESSOR_FILE
    if known is None or before is None or not path.is_file():
        return c
    said = read_json_object(own_file(folder, PREPROCESSOR_FILE))
    if said == preprocessor_to_hf(c, known):
        return c  # written by us: our own config has more detail
    try:
        return with_front_end(c, front_end_from_hf(before, HFConfig(said, str(path))))
    except DataError:
        raise
    except ValueError as problem:
        raise DataError(f"{path}: {problem}; correct it, or remove it to use the family's defaults") from None


def front_end_from_hf(c: Front, hf: HFConfig) -> Front:
    frame = resize_from_hf(c, hf)
    factor = 255 * hf.get_float("rescale_factor", 1 / 255) if hf.get_bool("do_rescale", True) else 255.0
    if not 1e-9 < factor < 1e9:
        raise hf.error("rescale_factor", "expected more than zero, such as 0.00392156862745098")
    normal = hf.get_bool("do_normalize", True)
    mean = channel_values(hf, "image_mean", getattr(c, "mean", (0.5,))) if normal else (0.0,)
    std = channel_values(hf, "image_std", getattr(c, "std", (0.5,))) if normal else (1.0,)
    mean, std = (tuple(one / factor for one in each) for each in (mean, std))
    if isinstance(c, config.PatchEmbedding):
        return replace(c, mean=mean, std=std, resize=frame)
    rows, columns = image_size(hf, "size") or c.grid
    grid = (rows, columns) if rows * columns == c.count else c.grid
    return replace(c, grid=grid, resize=frame, colors=palette_from_hf(c, hf, mean, std))


def channel_values(hf: HFConfig, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """One value for all channels, or one for each."""
    if hf.get(key) is None:
        return default
    found = hf.numbers(key) if isinstance(hf.get(key), list) else (hf.get_float(key),)
    if not all(map(math.isfinite, found)):
        raise hf.error(key, "expected finite numbers")
    return found


def palette_from_hf(
    c: config.PixelEmbedding, hf: HFConfig, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[str, ...]:
    """The clusters, which are normalised values, as colours."""
    found = hf.get("clusters")
    if found is None:
        return c.colors
    try:
        means, stds = (each if len(each) > 1 else each * c.channels for each in (mean, std))
        shares = [[v * s + m for v, m, s in zip(each, means, stds, strict=True)] for each in found]
        whole = all(abs(255 * share - round(255 * share)) < 1e-4 for each in shares for share in each)
        return tuple("".join(hex_digits(share, 2 if whole else 4) for share in each) for each in shares)
    except (TypeError, ValueError, OverflowError):
        raise hf.error("clusters", f"expected {c.palette} colours of {c.channels} numbers each") from None


def hex_digits(share: float, count: int) -> str:
    """A value from 0 to 1 in `count` hexadecimal digits."""
    most = 16**count - 1
    return f"{min(most, max(0, round(most * share))):0{count}x}"


def resize_from_hf(c: Front, hf: HFConfig) -> config.ImageResize:
    """The resize settings of the preprocessor."""
    way: Any = c.resize.resample
    if (said := hf.get("resample")) is not None:
        if type(said) is not int or said not in RESAMPLE:
            told = f"{hf.path}: resample is {said}, where 2 (bilinear) and 3 (bicubic) are supported"
            warnings.warn(f"{told}; images are resized by {way} interpolation", stacklevel=6)
        way = RESAMPLE.get(said, way) if type(said) is int else way
    if not hf.get_bool("do_resize", True):
        return replace(c.resize, resample=way)
    edge, wanted = shortest_edge(hf), c.image_size if isinstance(c, config.PatchEmbedding) else max(c.grid)
    high, wide = (edge, edge) if edge else image_size(hf, "size") or (wanted, wanted)
    cut = hf.get_bool("do_center_crop", False) and high == wide > wanted
    return config.ImageResize(
        mode="shortest_edge" if edge else "stretch", size_before_crop=high if cut else None, resample=way
    )


def shortest_edge(hf: HFConfig) -> int | None:
    """The target length of the shorter side, if the aspect ratio is kept; old CLIP files have a plain number."""
    kind = str(hf.get("image_processor_type") or hf.get("feature_extractor_type"))
    match hf.get("size"):
        case {"shortest_edge": int()}:
            return hf.table("size").get_int("shortest_edge")
        case int() if kind.startswith("CLIP"):
            return hf.get_int("size")
    return None


def image_size(hf: HFConfig, key: str) -> tuple[int, int] | None:
    """Rows and columns, in any of the accepted forms."""
    match hf.get(key):
        case None | {"shortest_edge": _}:
            return None
        case {"height": int(), "width": int()}:
            return hf.table(key).get_int("height"), hf.table(key).get_int("width")
        case int():
            return hf.get_int(key), hf.get_int(key)
    raise hf.error(key, 'expected {"height": ..., "width": ...}, {"shortest_edge": ...} or a whole number')


# ---------------------------------------------------------------- writing


def write_preprocessor(c: config.Model, folder: Path, known: FamilyClass | None) -> None:
    """Write the preprocessor config, unless the folder already has that of its origin."""
    if not (folder / PREPROCESSOR_FILE).exists() and (said := preprocessor_to_hf(c, known)) is not None:
        write_json_plain(folder / PREPROCESSOR_FILE, said)


def preprocessor_to_hf(c: config.Model, known: FamilyClass | None) -> dict[str, Any] | None:
    """Our preprocessing as preprocessor_config.json, which has no crop before the resize: the shorter side is resized
    instead."""
    sees = image_front_end(c)
    if known is None or sees is None or known.family.name not in TYPES:
        return None
    if isinstance(sees, config.PixelEmbedding) and not (sees.colors and sees.channels == 3):
        return None  # the processor needs the palette
    rows, columns = sees.grid if isinstance(sees, config.PixelEmbedding) else (sees.image_size, sees.image_size)
    whole = sees.resize.size_before_crop
    edge = {"height": whole or rows, "width": whole or columns}
    said = {
        "image_processor_type": TYPES[known.family.name],
        "do_resize": True,
        "size": edge if sees.resize.mode == "stretch" else {"shortest_edge": whole or max(rows, columns)},
        "resample": next(number for number, way in RESAMPLE.items() if way == sees.resize.resample),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": per_channel(getattr(sees, "mean", (0.5,)), sees.channels),
        "image_std": per_channel(getattr(sees, "std", (0.5,)), sees.channels),
    }
    if sees.resize.mode != "stretch" or whole:
        said |= {"do_center_crop": True, "crop_size": {"height": rows, "width": columns}}
    if isinstance(sees, config.PixelEmbedding):
        clusters = [[byte / 127.5 - 1 for byte in parse_color(colour, 3)] for colour in sees.colors]
        said |= {"do_color_quantize": True, "clusters": clusters}
    return said


def per_channel(numbers: tuple[float, ...], channels: int) -> list[float]:
    return list(numbers if len(numbers) > 1 else numbers * channels)


# ---------------------------------------------------------------- class names


def classification_task(c: config.Model, raw: Mapping[str, Any]) -> config.Task | None:
    """The classification task of a published image model, with the class names of its config.json."""
    many = c.head.out if isinstance(c, config.Transformer) and isinstance(c.head, config.PoolingHead) else None
    if image_front_end(c) is None or many is None or many < 2 or not isinstance(names := raw.get("id2label"), dict):
        return None
    told = [str(names.get(str(place), place)) for place in range(many)]
    times = Counter(told)
    return config.Classification(classes=tuple(f"{n} ({place})" if times[n] > 1 else n for place, n in enumerate(told)))
