"""A prompt, recorded: reading so many tokens into an empty cache is written down once, and played as a step is.

Prompts are of every length, and to record one takes longer than to read it. So a shape is recorded when it comes again,
as the questions of a test do. Where there is much to read a GPU is behind Python anyway, and nothing would be gained.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from regard.core.cache import Cache
from regard.core.model import Transformer
from regard.heads import last

MOST = 8192  # tokens in all rows that are worth it: of more, reading takes longer than starting
KEPT = 8  # shapes, the newest

Shape = tuple[int, bool]  # tokens of a row, and whether some may be padding


class Readings:
    """The shapes that came before, over one cache."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.able = cache, True
        self.known: dict[Shape, Reading | None] = {}  # None: it came once
        self.pool: Any = None  # memory that all share, since one is played at a time

    def read(self, model: Transformer, ids: Tensor, real: Tensor | None) -> Tensor:  # (B, N) -> (B, V)
        """The logits after the prompts, which the cache holds from now on."""
        found = self.find(model, ids, real) if self.able and ids.numel() <= MOST and not model.lookers else None
        return last(model, ids, real=real, cache=self.cache) if found is None else found.play(model, ids, real)

    def find(self, model: Transformer, ids: Tensor, real: Tensor | None) -> "Reading | None":
        """What is known of this shape; now it is the newest."""
        shape = ids.shape[1], real is not None
        again, found = shape in self.known, self.known.pop(shape, None)
        self.known[shape] = found or (self.record(model, ids, real) if again else None)
        while len(self.known) > KEPT:
            del self.known[next(iter(self.known))]
        return self.known[shape]

    def record(self, model: Transformer, ids: Tensor, real: Tensor | None) -> "Reading | None":
        """None, and a warning, where something in it cannot be recorded."""
        if self.pool is None and ids.is_cuda:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            return Reading(model, self.cache, ids, real, self.pool)
        except RuntimeError as problem:
            self.able = False
            cannot("prompt", problem)
            return None
        finally:
            self.cache.used, self.cache.fresh = 0, True  # it was written down and not done


class Reading:
    """One shape: ids (B, N), and which are real."""

    def __init__(self, model: Transformer, cache: Cache, ids: Tensor, real: Tensor | None, pool: Any) -> None:
        self.cache, self.ids, self.real = cache, ids.clone(), None if real is None else real.clone()
        self.graph: torch.cuda.CUDAGraph | None = None
        if ids.is_cuda:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.logits = last(model, self.ids, real=self.real, cache=cache)

    def play(self, model: Transformer, ids: Tensor, real: Tensor | None) -> Tensor:  # which the next one writes over
        self.ids.copy_(ids)
        if self.real is not None and real is not None:
            self.real.copy_(real)
        if self.graph is None:
            return last(model, self.ids, real=self.real, cache=self.cache)
        self.graph.replay()
        self.cache.used, self.cache.fresh = ids.shape[1], False
        return self.logits


def cannot(what: str, problem: RuntimeError) -> None:
    """Say so, once: what cannot be recorded is done all the same."""
    why = str(problem).splitlines()[0]
    warnings.warn(f"a {what} of this model cannot be recorded ({why}); it runs loop by loop, which is slower",
                  stacklevel=6)  # fmt: skip
