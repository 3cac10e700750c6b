"""A step, recorded: what a GPU does to say one more token is written down once, and then played again and again.

    ids (B, 1) ── the model, over one cache ──► logits (B, V) ── the likeliest ──┬──► said (B,)
        ▲                                                                       │
        └───────────────────────────────────────────────────────────────────────┘  so it may be played on and on

Started one by one from Python, the loops of a small step take longer to start than to run. A recording starts as a
whole. It reads and writes the same memory each time: the cache is its own, and whoever needs one borrows both. Blocks
are walked by the loops of `regard.gpu` where those can do it.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.cache import Cache, Entry
from regard.core.model import Transformer, Trunk
from regard.generate.caches import size
from regard.generate.filters import BROKEN, likeliest
from regard.generate.readings import Readings, cannot
from regard.gpu import walk
from regard.heads import last

WORTH = 16  # tokens to come, for fewer of which nothing is recorded
KINDS = ["cuda"]  # devices that record; elsewhere a step may be taken ahead as well, but nothing is gained
KEPT, SHARE = 2, 1 / 20  # recordings of a model that wait for the next session; what a cache may be of all memory

unfit: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()  # models whose steps cannot be recorded
idle: "weakref.WeakKeyDictionary[nn.Module, list[Recorded]]" = weakref.WeakKeyDictionary()


class Recorded:
    """One step of a model over one cache that was read into already, for as long as the weights stay where they are."""

    def __init__(self, model: Transformer, cache: Cache) -> None:
        rows, device = len(cache.length), cache.length.device
        lay_out(model)
        self.cache, self.weights, self.readings = cache, addresses(model), Readings(cache)
        self.kept = list(model.parameters())  # what is played reads them, whoever puts others in their place
        self.ids = torch.zeros(rows, 1, dtype=torch.long, device=device)
        vocab: Any = model.head.out_features
        self.barred = torch.zeros(vocab, dtype=torch.bool, device=device)
        self.heard = torch.empty(rows, dtype=torch.long, pin_memory=device.type == "cuda")
        self.logits, self.said = torch.empty(0), torch.empty(0)
        self.model = weakref.ref(model)  # whose idle recordings we may be among
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with self.there():
                self.ready, self.graph = torch.cuda.Event(), self.record()

    def record(self) -> torch.cuda.CUDAGraph:
        """Two steps that leave no trace: the first finds its loops and its memory, the second is written down."""
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with untouched(self.cache):
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self.compute()
            torch.cuda.current_stream().wait_stream(aside)
        with untouched(self.cache), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.compute()
        return graph

    def compute(self) -> None:
        model = self.model()
        assert model is not None
        with walking(model, self.cache):
            self.logits = last(model, self.ids, walk.linear, cache=self.cache)
        if walk.ready(self.logits):
            self.said = walk.said(self.logits, self.barred, self.ids, BROKEN)
        else:
            self.said = likeliest(self.logits, self.barred)
            self.ids.copy_(self.said.clamp(min=0)[:, None])

    def play(self, ids: Tensor | None = None) -> Tensor:  # (B, 1) -> (B, V), which the next one writes over
        """One step on: from these ids, or from those it said itself."""
        if ids is not None:
            self.ids.copy_(ids)
        if self.graph is None:
            self.compute()
            return self.logits
        self.cache.used += 1
        with self.there():
            self.graph.replay()
        return self.logits

    def read(self, ids: Tensor, real: Tensor | None) -> Tensor:  # (B, N) -> (B, V)
        """The logits after prompts, read into the cache, which is empty."""
        model = self.model()
        assert model is not None and self.cache.fresh
        with self.there() if ids.is_cuda else nullcontext():
            return self.readings.read(model, ids, real)

    def overheard(self, chosen: Tensor, ids: Tensor | None = None) -> list[int]:
        """What was chosen (B,), while the next step runs already."""
        self.heard.copy_(chosen, non_blocking=True)
        if self.graph is None:
            self.play(ids)
        else:
            with self.there():
                self.ready.record()
                self.play(ids)
                self.ready.synchronize()
        return self.heard.tolist()

    def there(self) -> torch.cuda.device:
        """On the GPU where the model is, whichever is the usual one."""
        return torch.cuda.device(self.ids.device)

    def rest(self) -> None:
        """Back among the idle ones of its model, if there is room and its cache is small enough to be kept."""
        if (model := self.model()) is None or size(self.cache) > memory_of(self.ids.device) * SHARE:
            return
        if len(waiting := idle.setdefault(model, [])) < KEPT:
            waiting.append(self)


def can_record(model: Transformer, cache: Cache | None = None) -> bool:
    """Whether a step of this model is always the same work in the same memory."""
    if next(model.parameters()).device.type not in KINDS or model.encoder is not None or model.lookers:
        return False
    if model in unfit or any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
        return False
    return cache is None or all(isinstance(entry, Entry) for entry in cache.entries)


def record(model: Transformer, cache: Cache) -> Recorded | None:
    """A step over this cache; None, and a warning, where something in it cannot be recorded."""
    try:
        return Recorded(model, cache)
    except RuntimeError as problem:
        unfit.add(model)
        cannot("step", problem)
        return None


def step_back(cache: Cache) -> None:
    """As if the newest token had not been read: it will be, into the same slot."""
    cache.length -= 1
    cache.next -= 1
    slot = cache.length % cache.capacity if cache.reach else cache.length
    cache.real.scatter_(1, slot[:, None], False)
    cache.used -= 1


def borrowed(model: Transformer, rows: int, capacity: int, reach: int) -> Recorded | None:
    """A recording for such a cache that nobody uses, its cache as good as new."""
    waiting, now = idle.get(model, []), addresses(model)
    waiting[:] = [one for one in waiting if one.weights == now]
    for one in waiting:
        cache = one.cache
        if (len(cache.length), cache.capacity, cache.reach) == (rows, capacity, reach):
            waiting.remove(one)
            for table in cache.tables():
                table.zero_()
            cache.used, cache.fresh = 0, True
            return one
    return None


@torch.no_grad()
def lay_out(model: nn.Module) -> None:
    """Every weight row after row, as loops read it: one that came from a CPU may lie flipped, as it was stored."""
    for each in model.parameters():
        if not each.is_contiguous():
            each.data = each.data.contiguous()


def memory_of(device: torch.device) -> float:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else float("inf")


def addresses(model: nn.Module) -> tuple[int, ...]:
    """Where the weights lie."""
    return tuple(each.data_ptr() for each in model.parameters())


@contextmanager
def walking(model: Transformer, cache: Cache) -> Iterator[None]:
    """Blocks are walked by the loops of a GPU, and slots taken; a stack that has its own way keeps it."""
    trunk = model.trunk
    if type(trunk) is not Trunk:
        yield
        return
    trunk.walk, trunk.plan = walk.walk, partial(walk.plan, trunk)  # type: ignore[method-assign]
    cache.begin = partial(walk.begun, cache)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del trunk.walk, trunk.plan, cache.begin


@contextmanager
def untouched(cache: Cache) -> Iterator[None]:
    """What is done to a cache here is forgotten: a key in the next slot is written over, and nobody looks there."""
    tables = [cache.order, cache.real, cache.length, cache.next]
    before, used = [table.clone() for table in tables], cache.used
    try:
        yield
    finally:
        for table, was in zip(tables, before, strict=True):
            table.copy_(was)
        cache.used = used
