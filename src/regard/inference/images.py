"""Image captioning, text-to-image, and sampling from a pixel model.

    caption_images(regard.load("runs/emoji-caption"), ["heart.png"])           ["red heart"]
    generate_images(regard.load("runs/emoji-draw"), ["red heart"], seed=0)     bytes (1, 3, 16, 16)

An image is the name of a file, a PIL image, an array or a tensor (`record_inputs`).

A pixel model samples value by value, row by row, each given all values before it.

    images = sample_images(regard.load("runs/pixels"), 16, temperature=0.9, seed=0)      # bytes (16, C, rows, columns)
    images = sample_images(model, 4, prefix_image=half, prefix_rows=16)                  # the upper 16 rows are given
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.core.cache import KVCache
from regard.core.hooks import Hook
from regard.data.records import Record
from regard.generation.beam_search import beam_search
from regard.generation.limits import GenerationLimits
from regard.generation.params import (
    beam_search_params,
    canonical_settings,
    check_whole_image,
    is_beam_search,
    sampling_params,
)
from regard.generation.session import DecodeSession
from regard.inference.batching import in_chunks, run_batched
from regard.inference.model import Model
from regard.inference.record_inputs import front_end_inputs, input_records
from regard.inference.text_inputs import check_is_list
from regard.inputs import palette
from regard.inputs.processors import build_processor
from regard.tasks.captioning import Captioning, max_image_tokens, vision_front_end
from regard.tasks.collate import RowPadding
from regard.tasks.task import build_task
from regard.tasks.text_to_image import TextToImage

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

BEAMS, NEW = 4, 30  # beams and maximum tokens of a caption
IMAGES_AT_ONCE = 32  # images in one beam search


def require_tokenizer(model: Any) -> "Tokenizer":
    if model.tokenizer is None:
        raise DataError("this model has no tokenizer; put a tokenizer.json beside it")
    found: Tokenizer = model.tokenizer
    return found


def device_of_model(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


# ---------------------------------------------------------------- captions


class ImageConditionedModel:
    """A captioning decoder with an image as its prefix: the image enters with the first tokens.

    It has the members of a model that sessions and beam search use.
    """

    def __init__(self, model: "Model", given: dict[str, Tensor]) -> None:
        self.model, self.given, self.before = model, given, max_image_tokens(model.c)
        self.c, self.trunk, self.head, self.encoder = model.c, model.trunk, model.head, model.encoder

    @property
    def hooks(self) -> tuple[Hook, ...]:
        return self.model.hooks

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def __call__(self, ids: Tensor, *, cache: KVCache, **rest: Any) -> Any:
        return self.model(ids, cache=cache, **(self.given if cache.fresh else {}), **rest)

    def cache(self, batch: int, capacity: int) -> KVCache:
        """A cache with room for the image, which is prefilled in one piece with the first tokens."""
        made = self.model.cache(batch, capacity + self.before)
        made.first = max(0, made.first - self.before)
        return made


def caption_images(model: "Model", pictures: Sequence[Any], **settings: Any) -> list[str]:
    """The caption of each image: by beam search with the settings of `config.BeamSearchParams`, or with a temperature
    sampled with those of `config.SamplingParams`."""
    check_is_list(pictures)
    settings = canonical_settings(settings)
    tokenizer, front = require_tokenizer(model), vision_front_end(model.c)
    if front is None:
        raise ConfigError("this model takes no images; use one of task 'captioning'")
    task = build_task(
        config.Captioning(),
        tokenizer,
        model.c,
        rows=RowPadding(model.context or NEW),
        sense=build_processor(front),
        cross=model.encoder is not None,
    )
    assert isinstance(task, Captioning)
    settings = {"max_new_tokens": min(NEW, model.context or NEW)} | settings
    records, drawn = input_records(front, pictures), "temperature" in settings
    whole = {"num_beams": BEAMS, "length_penalty": 0.0}  # no length normalisation: captions compete by probability
    c = None if drawn else beam_search_params(whole | settings, tokenizer)

    def run(some: list[Record]) -> list[str]:
        given = task.model_inputs(front_end_inputs(front, some, device_of_model(model)))
        begin = [[task.specials.begin()]] * len(some)
        if c is None:
            return sample_captions(model, begin, given, settings, tokenizer)
        return search_captions(model, begin, given, c, tokenizer)

    at_once = max(1, len(records)) if drawn else IMAGES_AT_ONCE  # a sampled caption depends on its row
    return run_batched(model, records, in_chunks(range(len(records)), at_once), run)


def search_captions(
    model: "Model", begin: list[list[int]], given: dict[str, Tensor], c: config.BeamSearchParams,
    tokenizer: "Tokenizer",
) -> list[str]:  # fmt: skip
    limits = model.generation_limits
    if model.encoder is not None:
        found = beam_search(model, begin, c, limits, source=given["source"], source_real=given.get("source_real"))
    else:
        found = beam_search(cast("Model", ImageConditionedModel(model, given)), begin, c, limits)
    return [tokenizer.decode([id for id in one[0].ids if id not in limits.ends]) for one in found]


def sample_captions(
    model: "Model", begin: list[list[int]], given: dict[str, Tensor], settings: dict[str, Any],
    tokenizer: "Tokenizer",
) -> list[str]:  # fmt: skip
    if is_beam_search(settings):
        raise ConfigError("num_beams: beam search does not sample; leave out num_beams, or temperature")
    c = sampling_params(settings, tokenizer)
    rules = model.constraints(c, len(begin))
    if model.encoder is not None:
        session = DecodeSession(
            model,
            begin,
            c,
            model.generation_limits,
            source=given["source"],
            source_real=given.get("source_real"),
            rules=rules,
        )
    else:
        session = DecodeSession(
            cast("Model", ImageConditionedModel(model, given)), begin, c, model.generation_limits, rules=rules
        )
    said = model.collect_ids(session)
    return [tokenizer.decode([id for id in row if id not in model.generation_limits.ends]) for row in said]


# ---------------------------------------------------------------- images


def generate_images(model: "Model", texts: Sequence[str], **settings: Any) -> Tensor:
    """An image for each text, bytes (B, C, rows, columns). The settings are those of `config.SamplingParams`, except
    max_new_tokens and stop."""
    settings = canonical_settings(settings)
    check_whole_image(settings)
    tokenizer, c = require_tokenizer(model), model.task
    if not isinstance(c, config.TextToImage):
        raise ConfigError("this model generates no images from text; use one of task 'text_to_image'")
    task = build_task(c, tokenizer, model.c, rows=RowPadding(model.context or 1), sense=build_processor(c.pixels))
    assert isinstance(task, TextToImage)
    most = task.room - task.around
    told = task.read_ids([prompt_ids(tokenizer, task.read(text), most) for text in texts]).tolist()
    colours = GenerationLimits(known=task.first + c.pixels.palette, never=frozenset(range(task.first)))
    said = model.collect_ids(
        DecodeSession(model, told, sampling_params({**settings, "max_new_tokens": c.pixels.count}), colours)
    )
    return palette.colors_of_ids(torch.tensor(said) - task.first, c.pixels)


def prompt_ids(tokenizer: "Tokenizer", text: str, most: int) -> list[int]:
    found = tokenizer.encode(text)
    if not text.strip() or len(found) > most:
        raise DataError(f"text: {text!r:.60} has {len(found)} tokens; expected 1 to {most}, so change the text")
    return found


GAP = 2  # pixels between the images of a contact sheet


def sample_images(
    model: Model, count: int = 16, prefix_image: Tensor | None = None, prefix_rows: int = 0, **settings: Any
) -> Tensor:
    """Sample images from a pixel model, bytes (count, C, rows, columns), with the settings of `config.SamplingParams`,
    except those of the length.

    `prefix_image`, bytes (C, H, W) of the model's size, fixes the first `prefix_rows`.
    """
    c, known = pixel_config(model), list[int]()
    settings = canonical_settings(settings)
    check_whole_image(settings)
    if prefix_image is not None:
        known = image_prefix(prefix_image, prefix_rows, c)
    asked = sampling_params({**settings, "max_new_tokens": c.count - len(known)})
    session = DecodeSession(
        model, [[c.palette, *known]] * count, asked, GenerationLimits(known=c.palette, context=c.count)
    )
    new = torch.tensor([list(ids) for ids in zip(*session, strict=True)], dtype=torch.long).view(count, -1)
    return palette.colors_of_ids(
        torch.cat([torch.tensor([known] * count, dtype=torch.long).view(count, -1), new], 1), c
    )


def pixel_config(model: Model) -> config.PixelEmbedding:
    """The pixel embedding of a pixel model; refuses any other model."""
    c = model.c.embed
    if not isinstance(c, config.PixelEmbedding) or isinstance(c, config.MaskedConvEmbedding):
        raise ConfigError(f"embed.kind: {c.kind!r} generates no images; a model of 'pixels' does, value by value")
    if c.values == "colors":
        palette.palette_table(c)  # raises for a palette without colours
    return c


def image_prefix(image: Tensor, rows: int, c: config.PixelEmbedding) -> list[int]:
    if tuple(image.shape) != (c.channels, *c.grid):
        raise ConfigError(
            f"prefix_image: an image of {tuple(image.shape)}, expected {(c.channels, *c.grid)} by embed.grid"
        )
    if not 0 <= rows < c.grid[0]:
        raise ConfigError(f"prefix_rows: {rows} rows of {c.grid[0]} are given; leave at least one to generate")
    ids: list[int] = palette.quantize_colors(image[None], c)[0, :rows].flatten().tolist()
    return ids


def contact_sheet(images: Tensor, columns: int | None = None) -> Tensor:
    """Images (B, C, H, W) as one contact sheet (C, H', W'), row by row with white gaps."""
    count, channels, high, wide = images.shape
    columns = columns or max(1, round(count**0.5))
    lines = -(-count // columns)
    out = images.new_full((channels, lines * (high + GAP) - GAP, columns * (wide + GAP) - GAP), 255)
    for place, image in enumerate(images):
        top, left = place // columns * (high + GAP), place % columns * (wide + GAP)
        out[:, top : top + high, left : left + wide] = image
    return out
