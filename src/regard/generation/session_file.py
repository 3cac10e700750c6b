"""Session files: texts, settings, random generators and KV cache of a decode session, so that it resumes exactly.

    session.safetensors    said: the fields that are no tensors, as JSON
                           chance.0, chance.1, ...: the state of each row's random generator
                           cache.order, cache.0.0, ...: the cache as it was computed; source, source_real

The cache is stored rather than recomputed: another order of summation would change the last bits, and now and then a
token.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.core.cache import KVCache
from regard.core.model import Transformer
from regard.files.atomic import atomic_path
from regard.generation.limits import GenerationLimits
from regard.generation.session import DecodeSession, inference_mode

FORMAT = 1
SOURCES = ("source", "source_real")
BROKEN = (KeyError, TypeError, AttributeError, ValueError, RuntimeError, IndexError, config.DataError)


def save_session(session: DecodeSession, path: str | Path) -> None:
    """Write a session to a file, atomically."""
    from regard.hub.weights import save_tensors

    path, chooser, cache = Path(path), session.sampler, session.cache
    said = {
        "format": FORMAT,
        "model": config_fingerprint(session.model.c),
        "settings": config.to_dict(session.c),
        "seed": session.seed,
        "texts": session.texts,
        "whole": chooser.texts,
        "said": chooser.generated_count,
        "live": session.active,
        "made": session.made,
        "used": session.used,
        "warned": session.warned,
        "last": session.last,
        "cache": None if cache is None else cache_facts(cache),
    }
    tensors = {"said": torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)}
    tensors |= {f"chance.{row}": stream.get_state() for row, stream in enumerate(chooser.generators)}
    tensors |= {name: table for name, table in session.source.items() if table is not None}
    tensors |= {} if cache is None else dict(cache_tensors(cache))
    tensors |= {} if session.next_logits is None else {"ahead": session.next_logits}
    with atomic_path(path) as aside:
        save_tensors(aside, tensors)


def load_session(model: Transformer, path: str | Path, limits: GenerationLimits) -> DecodeSession:
    """Load a session from a file, for the model that it was saved with."""
    from regard.hub.weights import load_tensors_lazy

    tensors = load_tensors_lazy(path)
    try:
        said = json.loads(bytes(tensors.pop("said").tolist()))
        known, ours = said["format"], said["model"] == config_fingerprint(model.c)
    except BROKEN as problem:
        raise damaged_error(path, problem) from None
    if known != FORMAT:
        raise config.DataError(f"{path}: a session of format {known!r:.20}; this version reads {FORMAT}")
    if not ours:
        raise config.DataError(f"{path}: this session is of another model; load the one that it was saved with")
    try:
        return restore_session(model, said, tensors, limits)
    except BROKEN as problem:
        raise damaged_error(path, problem) from None


def damaged_error(path: str | Path, problem: Exception) -> config.DataError:
    why = " ".join(str(problem).split())[:80]
    return config.DataError(f"{path}: incomplete or damaged session file ({why}); begin a new one")


def restore_session(
    model: Any, saved: dict[str, Any], tensors: dict[str, Tensor], limits: GenerationLimits
) -> DecodeSession:
    c = config.from_dict(config.SamplingParams, saved["settings"])
    device = next(model.parameters()).device
    sources: dict[str, Any] = {name: tensors[name].to(device) for name in SOURCES if name in tensors}
    prompts = [text[: len(text) - made] for text, made in zip(saved["whole"], saved["said"], strict=True)]
    rules = model.constraints(c, len(prompts))
    session = DecodeSession(model, prompts, replace(c, seed=saved["seed"]), limits, **sources, rules=rules)
    session.c, session.texts, session.active = c, [list(text) for text in saved["texts"]], list(saved["live"])
    session.made, session.used, session.warned = saved["made"], saved["used"], saved["warned"]
    replay_tokens(session, saved)
    for row, stream in enumerate(session.sampler.generators):
        stream.set_state(tensors[f"chance.{row}"])
    if saved["cache"] is not None:
        with inference_mode(session.modules):
            session.cache = restore_cache(model, saved["cache"], tensors, sources)
            session.last = [int(id) for _, id in zip(session.texts, saved["last"], strict=True)]
            session.next_logits = tensors["ahead"].to(device) if "ahead" in tensors else None
    return session


def replay_tokens(session: DecodeSession, saved: dict[str, Any]) -> None:
    """Update the sampler with every generated token, in the original order."""
    new = [text[len(text) - made :] for text, made in zip(saved["whole"], saved["said"], strict=True)]
    for place in range(max(map(len, new), default=0)):
        session.sampler.update([row[place] if place < len(row) else None for row in new])


# ---------------------------------------------------------------- the cache


def cache_facts(cache: KVCache) -> dict[str, int]:
    return {"rows": len(cache.length), "capacity": cache.capacity, "used": cache.used, "reach": cache.reach}


def cache_tensors(cache: KVCache) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a cache, by name."""
    for name in ("order", "real", "length", "next"):
        yield f"cache.{name}", getattr(cache, name)
    for layer, entry in enumerate(cache.entries):
        yield from ((f"cache.{layer}.{part}", table) for part, table in enumerate(entry.tables()))
    for layer, across in enumerate(cache.across):
        yield from ((f"across.{layer}.{side}", getattr(across, side)) for side in "kv")


def restore_cache(
    model: Transformer, saved: dict[str, int], tensors: dict[str, Tensor], sources: dict[str, Tensor]
) -> KVCache:
    cache = model.cache(saved["rows"], saved["capacity"])
    if sources:  # the encoder runs again; its keys and values are those of the file
        cache.set_memory(*model.encode(sources["source"], sources.get("source_real"), None, None))  # type: ignore[arg-type]
        for layer, across in enumerate(cache.across):
            across.k, across.v = (tensors[f"across.{layer}.{side}"].to(cache.order.device) for side in "kv")
    for name, table in cache_tensors(cache):
        if table.shape != tensors[name].shape:
            raise ValueError(f"{name} has another shape")
        table.copy_(tensors[name])
    cache.used, cache.reach, cache.fresh = saved["used"], saved["reach"], False
    return cache


def config_fingerprint(c: config.Transformer) -> str:
    """A short hash of a model's config."""
    return hashlib.sha256(json.dumps(config.to_dict(c), sort_keys=True).encode()).hexdigest()[:16]
