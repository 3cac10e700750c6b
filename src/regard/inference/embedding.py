"""Embeddings of texts and images: one vector each, with similar directions for similar meanings.

    how are you ?  ──►  a vector for each token  ── the mean of them ──►  (D,)  ── divided by its length ──►  |v| = 1

A sentence-transformers folder sets the pooling, and whether vectors are normalised. A model with a pooling of its own,
such as each tower of CLIP, gives its own vector.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError
from regard.data.records import Record
from regard.inference.batching import OnBatch, Progress, count_inputs, in_chunks, run_batched
from regard.inference.record_inputs import front_end_inputs, input_records
from regard.inference.text_inputs import (
    OnBadInput,
    TextInputs,
    architecture_ends_with,
    check_is_list,
    check_text,
    reading_front_end,
)

if TYPE_CHECKING:
    from regard.hub.sentence_pooling import SentencePooling

SEEN = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
IMAGES_AT_ONCE = 32
Given = dict[str, Tensor]


def embed_inputs(
    model: Any, things: Sequence[Any], *, normalize: bool = True, names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None, refuse: OnBadInput | None = None,
) -> Tensor:  # fmt: skip
    """Embed inputs, (B, D) in fp32 on the CPU: a vector for each text, and for each image where the model takes images.

    Vectors have length 1, unless the folder says otherwise or not `normalize`. `names` stand in errors. A text that
    cannot be encoded raises, or has a row of NaN where `refuse` handles the error.
    """
    check_is_list(things)
    how, told = pooling_of(model), dict[int, Tensor]()
    seen = [place for place, thing in enumerate(things) if is_image_input(model, thing)]
    read = sorted(set(range(len(things))) - set(seen))
    for places, run in ((seen, embed_images), (read, partial(embed_texts, pooling=how, names=names, refuse=refuse))):
        done = None if progress is None else partial(add_count, progress, len(told))
        found = run(model, things, places, count_inputs(done)) if places else []
        told |= {place: vector for place, vector in zip(places, found, strict=True) if vector is not None}
    none = torch.full_like(next(iter(told.values())), torch.nan) if told else torch.empty(0)
    table = torch.stack([told.get(place, none) for place in range(len(things))]) if things else torch.empty(0, 0)
    return F.normalize(table, dim=-1) if how.normal and normalize else table


def add_count(progress: Progress, before: int, done: int) -> None:
    progress(before + done)


def pooling_of(model: Any) -> "SentencePooling":
    """The pooling of a model's folder, or else the mean over all tokens, normalised."""
    from regard.hub.sentence_pooling import SentencePooling

    said = (
        None if model.source_folder is None or isinstance(model.c, config.DualEncoder) else model.source_folder.pooling
    )
    return said or SentencePooling(place="mean", normal=True)


def is_image_input(model: Any, thing: Any) -> bool:
    """Whether an input is an image: any input of a model without texts, or an image file for a dual encoder."""
    if isinstance(model.c, config.DualEncoder):
        named = isinstance(thing, str) and Path(thing).suffix.lower() in SEEN and len(thing.split()) == 1
        return named or not isinstance(thing, str)
    return not isinstance(reading_front_end(model.c), config.TextEmbedding)


# ---------------------------------------------------------------- texts


def embed_texts(
    model: Any, things: Sequence[Any], places: list[int], on_batch: OnBatch | None, *, pooling: "SentencePooling",
    names: Sequence[str] | None, refuse: OnBadInput | None = None,
) -> list[Any]:  # fmt: skip
    """A vector for each text; None where `refuse` handled an error."""
    reader, tower = TextInputs.of(model, pooling.length), model
    if isinstance(model.c, config.DualEncoder):
        tower = next(each for each in model.towers if each.c is reader.c)
    told = None if names is None else [names[place] for place in places]
    refused = None if refuse is None else lambda at, problem: refuse(places[at], problem)
    for place in places:
        check_text(things[place], names[place] if names else f"text {place + 1}")
    texts = [pooling.prompt + normalize_text(model, things[place]) for place in places]
    frames = reader.frames(texts, names=told, refuse=refused)
    return reader.run(model, frames, lambda given: pooled_vectors(tower, given, pooling.place), on_batch)


def pooled_vectors(tower: Any, given: Given, place: str) -> Tensor:  # (B, D) in fp32 on the CPU
    whole = model_pooled(tower, given)
    return (pool_states(*token_states(tower, given), place) if whole is None else whole).float().cpu()


def normalize_text(model: Any, text: str) -> str:
    """A text in the form of the training texts of a dual encoder, which may have been lists of phrases."""
    from regard.tasks.image_text import normalize_phrases

    return normalize_phrases(text) if isinstance(model.task, config.Contrastive) and model.task.phrase_list else text


def token_states(model: Any, given: Given) -> tuple[Tensor, Tensor | None]:
    """The final states (B, N, D) of all tokens before the head, and the mask of real tokens."""
    if model.encoder is not None:
        memory, _ = model.encode(given["source"], given["source_real"], None, None)
        return memory.x, given["source_real"]
    rest = {name: table for name, table in given.items() if name != "ids"}
    made = model.trunk(model.embed_inputs("embed", given["ids"], None, **rest))
    return made.x, made.is_real


def model_pooled(model: Any, given: Given) -> Tensor | None:
    """The model's own pooled vector (B, D), such as that of a tower; None where it has none."""
    head = model.c.head.pooling if isinstance(model.c.head, config.PretrainingHead) else model.c.head
    tower = model.where.startswith("towers") or architecture_ends_with(model, "WithProjection")
    if not tower and getattr(head, "pooling", None) != "eos":
        return None
    said = model(**given)
    whole: Tensor = said[1] if isinstance(said, tuple) else said
    return whole


def pool_states(x: Tensor, real: Tensor | None, place: str) -> Tensor:  # (B, N, D) -> (B, D)
    """Pool the states of the real tokens to one vector."""
    keep = torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real
    if place == "mean":
        return (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    if place == "max":
        return x.masked_fill(~keep[..., None], -torch.inf).amax(1)
    index = torch.arange(x.shape[1], device=x.device)
    at = keep.int().argmax(-1) if place == "cls" else (index * keep).amax(-1)
    return x.take_along_dim(at[:, None, None], 1)[:, 0]


# ---------------------------------------------------------------- pictures


def embed_images(
    model: Any, things: Sequence[Any], places: list[int], on_batch: OnBatch | None
) -> list[Any]:  # fmt: skip
    tower = model
    if isinstance(model.c, config.DualEncoder):
        tower = next(each for each in model.towers if each.c is not model.c.text)
    elif model.c.encoder is not None:
        raise ConfigError("this model generates captions and gives no embeddings; use caption")
    place = tower.c.head.pooling if isinstance(tower.c.head, config.PoolingHead) else "mean"

    def run(some: list[Record]) -> Tensor:
        return pooled_vectors(tower, front_end_inputs(tower.c.embed, some, next(tower.parameters()).device), place)

    records = input_records(tower.c.embed, [things[place] for place in places])
    return run_batched(model, records, in_chunks(range(len(places)), IMAGES_AT_ONCE), run, on_batch)
