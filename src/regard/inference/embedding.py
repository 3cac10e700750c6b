"""One vector for a text or a picture: nearness of vectors is nearness of meaning, in a model that was trained for it.

    how are you ?  ──►  a vector for each token  ── the mean of them ──►  (D,)  ── divided by its length ──►  |v| = 1

A folder of sentence-transformers says which of the vectors stand for the whole, and whether they are divided. A model
that has one vector for the whole by itself, as each tower of CLIP has, gives that one.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import config
from regard.config import ConfigError
from regard.generate.frames import Reader, Refuse, called, front
from regard.generate.mixtures import shown
from regard.generate.session import still

if TYPE_CHECKING:  # the hub is loaded with the first model that is read
    from regard.hub.pooling import Pooling

SEEN = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TOGETHER = 32  # pictures
Given = dict[str, Tensor]
Some = Iterator[tuple[list[int], Tensor]]  # places, and a vector for each


def embeddings(
    model: Any, things: Sequence[Any], *, raw: bool = False, names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None, refuse: Refuse | None = None,
) -> Tensor:  # fmt: skip
    """(B, D) in fp32 on the CPU: a vector for each text, and for each picture where the model sees.

    In length 1, unless the folder says otherwise or they are wanted `raw`. `names` are what errors call the things. A
    text that cannot be read raises, or has a row of NaN where `refuse` is told of it.
    """
    how, told = way(model), dict[int, Tensor]()
    seen = [place for place, thing in enumerate(things) if pictured(model, thing)]
    read = sorted(set(range(len(things))) - set(seen))
    with still(list(model.modules())):
        for some in (of_pictures(model, things, seen), of_texts(model, things, read, how, names, refuse)):
            for places, vectors in some:
                told |= zip(places, vectors.float().cpu(), strict=True)
                if progress is not None:
                    progress(len(told))
    none = torch.full_like(next(iter(told.values())), torch.nan) if told else torch.empty(0)
    found = torch.stack([told.get(place, none) for place in range(len(things))]) if things else torch.empty(0, 0)
    return F.normalize(found, dim=-1) if how.normal and not raw else found


def way(model: Any) -> "Pooling":
    """How a vector is made: as the folder says, or else the mean over all tokens, in length 1."""
    from regard.hub.pooling import Pooling

    said = None if model.origin is None or isinstance(model.c, config.Towers) else model.origin.pooling
    return said or Pooling(place="mean", normal=True)


def pictured(model: Any, thing: Any) -> bool:
    """Whether a thing is looked at: all that a model is shown that reads no text, and files of pictures."""
    if isinstance(model.c, config.Towers):
        named = isinstance(thing, str) and Path(thing).suffix.lower() in SEEN and len(thing.split()) == 1
        return named or not isinstance(thing, str)
    return not isinstance(front(model.c), config.Embed)


# ---------------------------------------------------------------- texts


def of_texts(
    model: Any, things: Sequence[Any], places: list[int], how: "Pooling", names: Sequence[str] | None,
    refuse: Refuse | None = None,
) -> Some:  # fmt: skip
    if not places:
        return
    reader, tower = Reader.of(model, how.length), model
    if isinstance(model.c, config.Towers):
        tower = next(each for each in model.towers if each.c is reader.c)
    told = None if names is None else [names[place] for place in places]
    refused = None if refuse is None else lambda at, problem: refuse(places[at], problem)
    frames = reader.frames([how.prompt + worded(model, things[place]) for place in places], names=told, refuse=refused)
    for rows, given in reader.batches(frames):
        whole = own(tower, given)
        yield [places[row] for row in rows], pooled(*vectors(tower, given), how.place) if whole is None else whole


def worded(model: Any, text: str) -> str:
    """A text as the towers were shown theirs: where they were lists, a list of one."""
    from regard.tasks.phrases import listed

    return listed(text) if isinstance(model.task, config.Contrast) and model.task.phrases else text


def vectors(model: Any, given: Given) -> tuple[Tensor, Tensor | None]:
    """(B, N, D) what is known of every token, before any head; and which of them are real."""
    if model.encoder is not None:
        memory, _ = model.read(given["source"], given["source_real"], None, None)
        return memory.x, given["source_real"]
    rest = {name: table for name, table in given.items() if name != "ids"}
    made = model.trunk(model.embedded("embed", given["ids"], None, **rest))
    return made.x, made.real


def own(model: Any, given: Given) -> Tensor | None:
    """(B, D) the vector that a model was trained to give for the whole, as towers are; None where it has none."""
    head = model.c.head.pooled if isinstance(model.c.head, config.Both) else model.c.head
    tower = model.where.startswith("towers") or called(model, "WithProjection")
    if not tower and getattr(head, "place", None) != "end":
        return None
    said = model(**given)
    whole: Tensor = said[1] if isinstance(said, tuple) else said
    return whole


def pooled(x: Tensor, real: Tensor | None, place: str) -> Tensor:  # (B, N, D) -> (B, D)
    """One vector of many, where real tokens stand."""
    keep = torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real
    if place == "mean":
        return (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    if place == "max":
        return x.masked_fill(~keep[..., None], -torch.inf).amax(1)
    index = torch.arange(x.shape[1], device=x.device)
    at = keep.int().argmax(-1) if place == "cls" else (index * keep).amax(-1)
    return x.take_along_dim(at[:, None, None], 1)[:, 0]


# ---------------------------------------------------------------- pictures


def of_pictures(model: Any, things: Sequence[Any], places: list[int]) -> Some:
    tower = model
    if isinstance(model.c, config.Towers):
        tower = next(each for each in model.towers if each.c is not model.c.text)
    elif places and model.c.encoder is not None:
        raise ConfigError("this model writes about what it is shown, and gives no vector for it; ask it to caption")
    for start in range(0, len(places), TOGETHER):
        some = places[start : start + TOGETHER]
        given = shown(tower.c.embed, [things[place] for place in some], next(tower.parameters()).device)
        whole = own(tower, given)
        place = tower.c.head.place if isinstance(tower.c.head, config.Pooled) else "mean"
        yield some, pooled(*vectors(tower, given), place) if whole is None else whole
