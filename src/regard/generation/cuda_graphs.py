"""CUDA graphs of the decode step and of prefill: the work of a GPU is captured once and replayed.

    ids (B, 1) ── the model, over one cache ──► logits (B, V) ── argmax ──┬──► ids (B,)
        ▲                                                                │
        └────────────────────────────────────────────────────────────────┘  fed back, so a replay needs no input

The kernels of a small step take longer to launch one by one from Python than to run; a graph is launched in one call. A
graph reads and writes the same memory at each replay, so it owns its cache, and a session borrows both. Blocks run in
the fused kernels of `regard.gpu` where these support them.

Prefill is captured by shape. Prompts have many lengths, and a capture takes longer than a prefill, so a shape is
captured when it comes a second time, as in an evaluation with few-shot prompts. A long prefill is bound by its
arithmetic, not by launches, and gains nothing.
"""

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.cache import KVCache, LayerKV
from regard.core.model import Transformer, Trunk
from regard.generation.cache_ops import cache_bytes
from regard.generation.logits_process import NOT_FINITE, greedy_tokens
from regard.gpu import decode_step
from regard.models.heads import last_token_logits

# With fewer steps left a capture does not pay: it takes some 50 ms (124 M parameters, one H200), and a step that is
# launched from Python takes 5 ms and more, of which a replay saves nearly all.
MIN_STEPS = 16
GRAPH_DEVICES = ["cuda"]  # on others a step could run ahead as well, without a gain
MAX_IDLE_GRAPHS = 2  # idle graphs of a model for the next session; each holds a cache, so they are few
SHARE = 1 / 20  # of the GPU's memory: a graph with a larger cache is freed with its session

FUSED = decode_step.FusedDecodeRunner()  # blocks in the kernels of `regard.gpu`, which also write the cache slots
UNCAPTURABLE: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()  # models whose steps cannot be captured
IDLE_GRAPHS: "weakref.WeakKeyDictionary[nn.Module, list[DecodeGraph]]" = weakref.WeakKeyDictionary()


class DecodeGraph:
    """The decode step of a model over one cache, captured as a CUDA graph after the prefill.

    A graph holds addresses: it is valid as long as weights and cache stay in the same memory.
    """

    def __init__(self, model: Transformer, cache: KVCache) -> None:
        rows, device = len(cache.length), cache.length.device
        make_contiguous(model)  # first: it may change the addresses that are read below
        self.cache, self.weights, self.readings = cache, weight_addresses(model), PrefillGraphs(cache)
        # A replay reads these addresses whatever they hold. References to the parameters keep their memory from being
        # freed and reused when the model gets others; `take_idle_graph` drops such a graph.
        self.kept = list(model.parameters())
        self.ids = torch.zeros(rows, 1, dtype=torch.long, device=device)
        vocab: Any = model.head.out_features
        self.barred = torch.zeros(vocab, dtype=torch.bool, device=device)
        # pinned: a copy from the GPU to pageable memory would block the host until it is done
        self.host_tokens = torch.empty(rows, dtype=torch.long, pin_memory=device.type == "cuda")
        self.logits, self.tokens = torch.empty(0), torch.empty(0)
        self.model = weakref.ref(model)  # weak, since IDLE_GRAPHS of this model may hold this graph
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with self.on_device():
                self.ready, self.graph = torch.cuda.Event(), self.record()

    def record(self) -> torch.cuda.CUDAGraph:
        """Run two steps that leave no trace in the cache: a warm-up, and the capture.

        Compiled kernels and library workspaces are set up at their first use, which a capture does not allow; torch
        requires the warm-up on a side stream. With `thread_local`, CUDA calls of other threads do not end the capture.
        """
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with restore_cache_after(self.cache):
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self.compute()
            torch.cuda.current_stream().wait_stream(aside)
        with restore_cache_after(self.cache), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.compute()
        return graph

    def compute(self) -> None:
        model = self.model()
        assert model is not None
        runner = FUSED if type(model.trunk) is Trunk else None  # a trunk of another class runs its own forward
        self.logits = last_token_logits(model, self.ids, decode_step.decode_linear, cache=self.cache, runner=runner)
        if decode_step.has_kernels(self.logits):
            # the next replay needs no input from the host
            self.tokens = decode_step.greedy_token(self.logits, self.barred, self.ids, NOT_FINITE)
        else:
            self.tokens = greedy_tokens(self.logits, self.barred)
            self.ids.copy_(self.tokens.clamp(min=0)[:, None])  # NOT_FINITE is negative, not a row of the embedding

    def replay(self, ids: Tensor | None = None) -> Tensor:  # (B, 1) -> (B, V), overwritten by the next replay
        """Run one decode step, on these ids or on those that the previous step chose."""
        if ids is not None:
            self.ids.copy_(ids)
        if self.graph is None:
            self.compute()
            return self.logits
        self.cache.used += 1  # counted in Python, which a replay does not run
        with self.on_device():
            self.graph.replay()
        return self.logits

    def read(self, ids: Tensor, real: Tensor | None) -> Tensor:  # (B, N) -> (B, V)
        """Prefill the empty cache with prompts; returns the logits after their last tokens."""
        model = self.model()
        assert model is not None and self.cache.fresh
        with self.on_device() if ids.is_cuda else nullcontext():
            return self.readings.read(model, ids, real)

    def sample_and_replay(self, chosen: Tensor, ids: Tensor | None = None) -> list[int]:
        """The chosen ids (B,) as a list, while the next step already runs.

        The host waits for the event after the copy, not for the stream, which is busy with the next step by then.
        """
        self.host_tokens.copy_(chosen, non_blocking=True)
        if self.graph is None:
            self.replay(ids)
        else:
            with self.on_device():
                self.ready.record()
                self.replay(ids)
                self.ready.synchronize()
        return self.host_tokens.tolist()

    def on_device(self) -> torch.cuda.device:
        """Make the GPU of the model the current device, to which events and graphs belong."""
        return torch.cuda.device(self.ids.device)

    def return_to_pool(self) -> None:
        """Return this graph to the idle graphs of its model, if there is room and its cache is small enough."""
        if (model := self.model()) is None or cache_bytes(self.cache) > device_memory(self.ids.device) * SHARE:
            return
        if len(waiting := IDLE_GRAPHS.setdefault(model, [])) < MAX_IDLE_GRAPHS:
            waiting.append(self)


def can_capture(model: Transformer, cache: KVCache | None = None) -> bool:
    """Whether a decode step of this model can be captured: the same work in the same memory each time.

    Hooks are Python code, which a replay would skip. A cache must hold keys and values alone: the trial steps of a
    capture can be undone there (`restore_cache_after`), but a recurrent state cannot forget a token.
    """
    if next(model.parameters()).device.type not in GRAPH_DEVICES or model.encoder is not None or model.hooks:
        return False
    if model in UNCAPTURABLE or any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
        return False
    return cache is None or all(isinstance(entry, LayerKV) for entry in cache.entries)


def capture_decode(model: Transformer, cache: KVCache) -> DecodeGraph | None:
    """The captured decode step over this cache; None, with a warning, if some operation cannot be captured."""
    try:
        return DecodeGraph(model, cache)
    except RuntimeError as problem:
        UNCAPTURABLE.add(model)
        warn_not_captured("step", problem)
        return None


def undo_last_token(cache: KVCache) -> None:
    """Remove the newest token from the cache: it will be fed again, into the same slot."""
    cache.length -= 1
    cache.next -= 1
    slot = cache.length % cache.capacity if cache.reach else cache.length
    cache.real.scatter_(1, slot[:, None], False)
    cache.used -= 1


def take_idle_graph(model: Transformer, rows: int, capacity: int, reach: int) -> DecodeGraph | None:
    """An idle graph that fits this cache shape, with its cache emptied. Graphs of replaced or moved weights are
    dropped."""
    waiting, now = IDLE_GRAPHS.get(model, []), weight_addresses(model)
    # an optimizer writes weights in place, so the addresses stay valid; load_state_dict(assign=True),
    # .to() and adapters allocate new ones
    waiting[:] = [one for one in waiting if one.weights == now]
    for one in waiting:
        cache = one.cache
        if (len(cache.length), cache.capacity, cache.reach) == (rows, capacity, reach):
            waiting.remove(one)
            for table in cache.tables():  # zeroed in place: a new tensor would have another address
                table.zero_()
            cache.used, cache.fresh = 0, True
            return one
    return None


@torch.no_grad()
def make_contiguous(model: nn.Module) -> None:
    """Make every weight contiguous, as the kernels read it: a weight stored transposed for the CPU is not."""
    for each in model.parameters():
        if not each.is_contiguous():
            each.data = each.data.contiguous()  # the Parameter object stays: ties, optimizers and hooks refer to it


def device_memory(device: torch.device) -> float:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else float("inf")


def weight_addresses(model: nn.Module) -> tuple[int, ...]:
    """The data pointers of the weights, by which the validity of a graph is checked."""
    return tuple(each.data_ptr() for each in model.parameters())


@contextmanager
def restore_cache_after(cache: KVCache) -> Iterator[None]:
    """Restore the bookkeeping of a cache after the block.

    Keys and values are not restored: the next slot is overwritten before it becomes visible.
    """
    tables = [cache.order, cache.real, cache.length, cache.next]
    before, used = [table.clone() for table in tables], cache.used
    try:
        yield
    finally:
        for table, was in zip(tables, before, strict=True):
            table.copy_(was)
        cache.used = used


MOST = 8192  # tokens in all rows: a longer prefill is bound by its arithmetic, which hides the launches
MAX_PREFILL_SHAPES = 8  # the most recently used; each graph keeps the activations of its prompts in the pool

Shape = tuple[int, bool]  # tokens in a row, and whether there may be padding


class PrefillGraphs:
    """The captured prefills of one cache, by shape."""

    def __init__(self, cache: KVCache) -> None:
        self.cache, self.able = cache, True
        self.known: dict[Shape, PrefillGraph | None] = {}  # None: seen once; in order of use, the oldest first
        self.pool: Any = None  # memory pool shared by all graphs, since one is replayed at a time

    def read(self, model: Transformer, ids: Tensor, real: Tensor | None) -> Tensor:  # (B, N) -> (B, V)
        """Prefill the cache, through a graph if there is one; returns the logits after the last tokens."""
        found = self.find(model, ids, real) if self.able and ids.numel() <= MOST and not model.hooks else None
        return (
            last_token_logits(model, ids, real=real, cache=self.cache)
            if found is None
            else found.play(model, ids, real)
        )

    def find(self, model: Transformer, ids: Tensor, real: Tensor | None) -> "PrefillGraph | None":
        """The graph of this shape, captured at its second use; the shape becomes the most recently used."""
        shape = ids.shape[1], real is not None
        again, found = shape in self.known, self.known.pop(shape, None)
        self.known[shape] = found or (self.record(model, ids, real) if again else None)
        while len(self.known) > MAX_PREFILL_SHAPES:
            del self.known[next(iter(self.known))]
        return self.known[shape]

    def record(self, model: Transformer, ids: Tensor, real: Tensor | None) -> "PrefillGraph | None":
        """Capture the prefill of this shape; None, with a warning, if some operation cannot be captured."""
        if self.pool is None and ids.is_cuda:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            return PrefillGraph(model, self.cache, ids, real, self.pool)
        except RuntimeError as problem:
            self.able = False
            warn_not_captured("prompt", problem)
            return None
        finally:
            # a capture runs the Python of the model, which counts tokens, and no kernel, which would store them
            self.cache.used, self.cache.fresh = 0, True


class PrefillGraph:
    """The captured prefill of one shape: ids (B, N), and which of them are real.

    It needs no warm-up: the first prefill of this shape ran without a graph.
    """

    def __init__(self, model: Transformer, cache: KVCache, ids: Tensor, real: Tensor | None, pool: Any) -> None:
        self.cache, self.ids, self.real = cache, ids.clone(), None if real is None else real.clone()
        self.graph: torch.cuda.CUDAGraph | None = None
        if ids.is_cuda:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.logits = last_token_logits(model, self.ids, real=self.real, cache=cache)

    def play(self, model: Transformer, ids: Tensor, real: Tensor | None) -> Tensor:  # overwritten by the next call
        self.ids.copy_(ids)
        if self.real is not None and real is not None:
            self.real.copy_(real)
        if self.graph is None:
            return last_token_logits(model, self.ids, real=self.real, cache=self.cache)
        self.graph.replay()
        self.cache.used, self.cache.fresh = ids.shape[1], False
        return self.logits


def warn_not_captured(what: str, problem: RuntimeError) -> None:
    """Warn that kernels are launched one by one: the result is the same, and slower."""
    why = str(problem).splitlines()[0]
    warnings.warn(f"a {what} of this model cannot be captured ({why}); its kernels are launched one by one, which is "
                  "slower", stacklevel=6)  # fmt: skip
