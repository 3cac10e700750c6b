"""A session in a file: its texts, its settings, its random numbers and its cache, so that it goes on with the same ids.

    session.safetensors    said: what can be written in words, as JSON
                           chance.0, chance.1, ...: where the random numbers of each row are
                           cache.order, cache.0.0, ...: what was read, as it was computed; source, source_real

The cache is kept and not computed again: another order of the same sums would give other last digits, and now and then
another token.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard import config
from regard.core.cache import Cache
from regard.generate.limits import Limits
from regard.generate.session import Session, still

if TYPE_CHECKING:
    from regard.generate.model import Transformer

FORMAT = 1
SOURCES = ("source", "source_real")
BROKEN = (KeyError, TypeError, AttributeError, ValueError, RuntimeError, IndexError, config.DataError)


def save(session: Session, path: str | Path) -> None:
    """Write a session to a file, which is there as a whole or not at all."""
    from regard.hub.weights import tensors_to

    path, chooser, cache = Path(path), session.chooser, session.cache
    said = {
        "format": FORMAT, "model": print_of(session.model.c), "settings": config.tree(session.c), "seed": session.seed,
        "texts": session.texts, "whole": chooser.texts, "said": chooser.made, "live": session.live,
        "made": session.made, "used": session.used, "warned": session.warned,
        "last": session.last, "cache": None if cache is None else facts(cache),
    }  # fmt: skip
    tensors = {"said": torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)}
    tensors |= {f"chance.{row}": stream.get_state() for row, stream in enumerate(chooser.streams)}
    tensors |= {name: table for name, table in session.source.items() if table is not None}
    tensors |= {} if cache is None else dict(tables(cache))
    tensors |= {} if session.ahead is None else {"ahead": session.ahead}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        tensors_to(beside, tensors)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def load(model: "Transformer", path: str | Path, limits: Limits | None = None) -> Session:
    """The session in a file, to go on with the model that it was saved with."""
    from regard.hub.weights import tensors_from

    tensors = tensors_from(path)
    try:
        said = json.loads(bytes(tensors.pop("said").tolist()))
        known, ours = said["format"], said["model"] == print_of(model.c)
    except BROKEN as problem:
        raise damaged(path, problem) from None
    if known != FORMAT:
        raise config.DataError(f"{path}: a session of format {known!r:.20}; this version reads {FORMAT}")
    if not ours:
        raise config.DataError(f"{path}: this session is of another model; load the one that it was saved with")
    try:
        return again(model, said, tensors, model.limits if limits is None else limits)
    except BROKEN as problem:
        raise damaged(path, problem) from None


def damaged(path: str | Path, problem: Exception) -> config.DataError:
    why = " ".join(str(problem).split())[:80]
    return config.DataError(f"{path}: this is no whole session ({why}); begin a new one")


def again(model: "Transformer", said: dict[str, Any], tensors: dict[str, Tensor], limits: Limits) -> Session:
    c = config.make(config.Sampling, said["settings"])
    device = next(model.parameters()).device
    sources: dict[str, Any] = {name: tensors[name].to(device) for name in SOURCES if name in tensors}
    prompts = [text[: len(text) - made] for text, made in zip(said["whole"], said["said"], strict=True)]
    rules = model.rules(c, len(prompts))
    session = Session(model, prompts, replace(c, seed=said["seed"]), limits, **sources, rules=rules)
    session.c, session.texts, session.live = c, [list(text) for text in said["texts"]], list(said["live"])
    session.made, session.used, session.warned = said["made"], said["used"], said["warned"]
    hear(session, said)
    for row, stream in enumerate(session.chooser.streams):
        stream.set_state(tensors[f"chance.{row}"])
    if said["cache"] is not None:
        with still(session.modules):
            session.cache = filled(model, said["cache"], tensors, sources)
            session.last = [int(id) for _, id in zip(session.texts, said["last"], strict=True)]
            session.ahead = tensors["ahead"].to(device) if "ahead" in tensors else None
    return session


def hear(session: Session, said: dict[str, Any]) -> None:
    """Tell the chooser all that was said, as it heard it."""
    new = [text[len(text) - made :] for text, made in zip(said["whole"], said["said"], strict=True)]
    for place in range(max(map(len, new), default=0)):
        session.chooser.tell([row[place] if place < len(row) else None for row in new])


# ---------------------------------------------------------------- the cache


def facts(cache: Cache) -> dict[str, int]:
    return {"rows": len(cache.length), "capacity": cache.capacity, "used": cache.used, "reach": cache.reach}


def tables(cache: Cache) -> Iterator[tuple[str, Tensor]]:
    """All that a cache holds, by name."""
    for name in ("order", "real", "length", "next"):
        yield f"cache.{name}", getattr(cache, name)
    for layer, entry in enumerate(cache.entries):
        yield from ((f"cache.{layer}.{part}", table) for part, table in enumerate(entry.tables()))
    for layer, across in enumerate(cache.across):
        yield from ((f"across.{layer}.{side}", getattr(across, side)) for side in "kv")


def filled(model: "Transformer", said: dict[str, int], tensors: dict[str, Tensor], sources: dict[str, Tensor]) -> Cache:
    cache = model.cache(said["rows"], said["capacity"])
    if sources:  # the encoder reads again; its keys and values are those of the file
        cache.remember(*model.read(sources["source"], sources.get("source_real"), None, None))  # type: ignore[arg-type]
        for layer, across in enumerate(cache.across):
            across.k, across.v = (tensors[f"across.{layer}.{side}"].to(cache.order.device) for side in "kv")
    for name, table in tables(cache):
        if table.shape != tensors[name].shape:
            raise ValueError(f"{name} has another shape")
        table.copy_(tensors[name])
    cache.used, cache.reach, cache.fresh = said["used"], said["reach"], False
    return cache


def print_of(c: config.Transformer) -> str:
    """A model's sentence in few letters."""
    return hashlib.sha256(json.dumps(config.tree(c), sort_keys=True).encode()).hexdigest()[:16]
