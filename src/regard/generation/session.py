"""Decode session: a batch of texts that grow by one token a step, over a growing or ring KV cache.

    texts ─ prefill ► logits ── choose ──► one id a row ──► out
               ▲         ▲                      │
               │         └─ decode step ◄───────┤  while the cache has room
               └── prefill again ◄──────────────┘  into a larger cache, or only the newest half of the window

Where every layer has a sliding window, the cache is a ring, and there is never a second prefill.

Rows are padded on the left, so that all take their next token in the same slot. Each gives the output it would give
alone: it has its own random generator, and its window slides when the row itself is full. Finished rows are computed
and ignored.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from pathlib import Path
from secrets import randbits
from typing import Self

import torch
from torch import Tensor, nn

from regard import config
from regard.core.cache import KVCache
from regard.core.model import Transformer
from regard.generation.cache_ops import expand_cache
from regard.generation.cuda_graphs import (
    GRAPH_DEVICES,
    MIN_STEPS,
    DecodeGraph,
    can_capture,
    capture_decode,
    take_idle_graph,
    undo_last_token,
)
from regard.generation.limits import (
    NO_LIMITS,
    GenerationLimits,
    barred_tokens,
    check_prompts,
    check_source,
    context_window,
    probe_cache,
    ring_length,
)
from regard.generation.logits_process import NOT_FINITE
from regard.generation.sampler import Sampler, TokenConstraint
from regard.models.heads import last_token_logits

SMALLEST, GROWTH = 256, 4  # slots of a cache: 256, 1024, 4096, ...; few sizes, so few graphs
DAMAGED_LOGITS = "the model's logits are not finite; its weights are damaged or its training diverged"
PREFILL_CHUNK = 512  # tokens of a chunk: the logits of a long prompt over a large vocabulary would fill the memory


class DecodeSession:
    """Autoregressive decoding of a batch. Each iteration gives one id for each row, None for finished rows."""

    rings = True  # may the cache be a ring, which overwrites slots that are no longer visible?

    def __init__(
        self,
        model: Transformer,
        texts: Sequence[Sequence[int]],
        c: config.SamplingParams,
        limits: GenerationLimits = NO_LIMITS,
        *,
        source: Tensor | None = None,
        source_real: Tensor | None = None,
        rules: Sequence[TokenConstraint | None] = (),
    ) -> None:
        self.model, self.c, self.ends = model, c, limits.ends
        self.texts = [[id for id in text if id != model.c.embed.pad_id] for text in texts]
        empty = probe_cache(model)  # allocated once: on a GPU it takes a millisecond
        self.least = max(empty.first, 1)
        check_prompts(model, self.texts, self.least)
        check_source(model, source, len(texts))
        self.source: dict[str, Tensor | None] = {} if source is None else {"source": source, "source_real": source_real}
        self.active = [True] * len(texts)
        self.seed = randbits(32) if c.seed is None else c.seed
        self.reach = ring_length(model, limits, empty) if self.rings else 0
        self.window = None if self.reach else context_window(model, limits)
        self.modules, self.device = list(model.modules()), next(model.parameters()).device
        self.sampler = Sampler(
            c,
            self.texts,
            barred_tokens(model, limits).to(self.device),
            ends=limits.ends,
            seed=self.seed,
            rules=rules,
            begin=limits.begin,
        )
        self.cache: KVCache | None = None
        self.used, self.made, self.warned = 0, 0, False
        self.last: list[int] = []  # the newest token of each row, to be fed next
        self.logits_hook: Callable[[Tensor], None] | None = None  # called with the logits (B, V) before the choice
        self.next_logits: Tensor | None = None  # (B, V) the next logits, if the step was computed ahead
        self.decode_graph: DecodeGraph | None = None  # the captured decode step over this cache
        self.release_graph: Callable[[], object] = no_op

    def __iter__(self) -> Iterator[list[int | None]]:
        while self.made < self.c.max_new_tokens and any(self.active):
            self.made += 1
            yield self.step()

    def copy(self) -> Self:
        """A copy of the session that continues with the same tokens."""
        return self.branch(range(len(self.texts)))

    def branch(self, rows: Sequence[int]) -> Self:
        """A session whose row i continues row rows[i] of this one; a row may branch several times.

        Each branch continues with the tokens of its origin; `sampler.reseed` gives the branches their own random
        numbers.
        """
        other, index = copy(self), torch.tensor(list(rows), dtype=torch.long, device=self.device)
        other.texts, other.active = [list(self.texts[row]) for row in rows], [self.active[row] for row in rows]
        other.last = [self.last[row] for row in rows if self.last]
        other.source = {name: None if table is None else table[index] for name, table in self.source.items()}
        other.sampler, other.decode_graph, other.release_graph = self.sampler.branch(rows), None, no_op
        if self.cache is not None:
            with torch.inference_mode():
                other.cache = expand_cache(self.model, self.cache, index, self.cache.capacity)
                other.next_logits = None if self.next_logits is None else self.next_logits[index]
        return other

    def save(self, path: str | Path) -> None:
        """Write the whole state to a file; `model.resume` continues from there with the same ids."""
        from regard.generation.session_file import save_session

        save_session(self, path)

    def stop_row(self, row: int) -> None:
        """End this row: its further tokens are ignored."""
        self.active[row] = False

    def step(self) -> list[int | None]:
        with inference_mode(self.modules):
            ids = self.choose(self.logits())
        said = [self.accept_token(row, id) if self.active[row] else None for row, id in enumerate(ids)]
        self.sampler.update(said)
        return said

    def logits(self) -> Tensor:  # (B, V)
        """The logits after the newest token of every row."""
        if self.next_logits is None or self.cache is None:
            return self.prefill() if self.cache is None or self.full(self.cache) else self.decode_step(self.cache)
        logits, self.next_logits = self.next_logits, None
        if not self.model.hooks:
            return logits
        undo_last_token(self.cache)  # a hook was attached since: it must see the computation of this token
        self.used -= 1
        return self.decode_step(self.cache)

    def choose(self, logits: Tensor) -> list[int]:
        """One id a row. For greedy decoding, the captured next step is launched before the ids reach the host."""
        if self.logits_hook is not None:
            self.logits_hook(logits)
        one, plain = self.decode_graph, self.sampler.is_greedy and self.logits_hook is None and not self.model.hooks
        if one is None or not plain or self.made >= self.c.max_new_tokens or self.full(one.cache):
            ids: list[int] = self.sampler.choose(logits).tolist()
        else:
            chosen = one.tokens if logits is one.logits else self.sampler.choose(logits)
            ids = one.sample_and_replay(chosen, None if chosen is one.tokens else chosen[:, None].clamp(min=0))
            self.used, self.next_logits = self.used + 1, one.logits
        self.last = [max(id, 0) for id in ids]
        return ids

    def accept_token(self, row: int, id: int) -> int | None:
        """Append the chosen id to a row; None if every token is forbidden, which ends the row."""
        if id == NOT_FINITE:
            raise config.RunError(DAMAGED_LOGITS)
        self.active[row] = id >= 0 and id not in self.ends  #: S110
        if id < 0:
            return None
        self.texts[row].append(id)
        return id

    def full(self, cache: KVCache) -> bool:
        return not cache.reach and self.used >= cache.capacity

    def decode_step(self, cache: KVCache) -> Tensor:  # (B, V)
        self.used += 1
        if self.decode_graph is None and self.is_graph_worthwhile and can_capture(self.model, cache):
            self.use_graph(capture_decode(self.model, cache))
        if self.decode_graph is not None and not self.model.hooks:
            return self.decode_graph.replay(self.newest)
        logits: Tensor = self.model(self.newest, cache=cache)
        return logits[:, -1]  #: S086

    @property
    def newest(self) -> Tensor:  # (B, 1)
        return torch.tensor(self.last, device=self.device)[:, None]

    @property
    def is_graph_worthwhile(self) -> bool:
        """Whether enough tokens are left for a capture to pay, on a device that has graphs."""
        return self.device.type in GRAPH_DEVICES and self.c.max_new_tokens - self.made >= MIN_STEPS

    def prefill(self) -> Tensor:  # (B, V)
        """Prefill a new cache, with room for more tokens; returns the logits after all texts."""
        self.trim_to_window()
        longest = max(map(len, self.texts))
        cache, given = self.new_cache(longest), self.source
        if self.cache is not None and self.cache.memory is not None:
            cache.set_memory(self.cache.memory, self.cache.layers)  # the encoder has run before
            given = {}
        logits = prefill(self.model, self.texts, cache, given, self.decode_graph)
        self.cache, self.used = cache, longest
        return logits

    def new_cache(self, longest: int) -> KVCache:
        """A new cache with room for more than `longest` tokens, or a ring where that is smaller."""
        worth, coming = (
            self.is_graph_worthwhile and can_capture(self.model),
            min(self.c.max_new_tokens - self.made, SMALLEST * GROWTH),
        )
        size, around = (
            cache_bucket(longest + coming * worth),
            self.reach - 1 + min(PREFILL_CHUNK, max(self.reach, SMALLEST)),
        )
        size = size if self.window is None else min(size, self.window)
        reach, size = self.reach if size >= around else 0, min(size, around) if self.reach else size
        self.use_graph(None)
        if worth and (one := take_idle_graph(self.model, len(self.texts), size, reach)) is not None:
            self.use_graph(one)
            return one.cache
        cache = self.model.cache(len(self.texts), size)
        cache.reach = reach
        return cache

    def use_graph(self, one: DecodeGraph | None) -> None:
        """Replay this graph from now on; the previous one returns to the pool, as this one does when the session is
        freed."""
        self.release_graph()
        self.decode_graph, self.release_graph = one, no_op
        if one is not None:
            one.barred.copy_(self.sampler.barred)
            self.release_graph = weakref.finalize(self, one.return_to_pool)
            self.release_graph.atexit = False

    def trim_to_window(self) -> None:
        """Cut texts to the context window: a prompt keeps its end, a text that has grown keeps the newest half of the
        window."""
        for row, text in enumerate(self.texts):
            if not self.active[row]:
                self.texts[row] = text[: self.least]
            elif self.window is not None and len(text) > self.window:
                keep = self.window if self.cache is None else max(self.window // 2, self.least)
                self.texts[row] = text[-keep:]
                self.warn(len(text), keep)

    def warn(self, length: int, keep: int) -> None:
        if self.warned:
            return
        self.warned = True
        most = f"the {self.window} that this model reads at once"
        if self.cache is None:
            warnings.warn(f"prompt: {length} tokens are more than {most}; it begins from the last {keep}", stacklevel=2)
        else:
            warnings.warn(f"max_new_tokens: the text has more tokens than {most}; it continues from the newest {keep}, "
                          "and does so again whenever it is full", stacklevel=2)  # fmt: skip


def no_op() -> None:
    """The default of `release_graph`: no graph is in use."""


def prefill(
    model: Transformer, texts: list[list[int]], cache: KVCache, source: dict[str, Tensor | None],
    recorded: DecodeGraph | None = None,
) -> Tensor:  # (B, V)  # fmt: skip
    """Prefill an empty cache with all texts, through a captured graph if there is one; returns the logits."""
    ids, real = pad_prompts(texts, cache.length.device)
    if real is None and model.c.embed.pad_id is not None:
        real = torch.ones_like(ids, dtype=torch.bool)  # the decoder start token may be the pad token
    parts = list(prefill_chunks(cache, ids.shape[1]))
    if recorded is not None and len(parts) == 1 and all(table is None for table in source.values()):
        return recorded.read(ids, real)
    for part in parts:
        logits = last_token_logits(
            model, ids[:, part], real=None if real is None else real[:, part], cache=cache, **source
        )
        source = {}
    return logits


def prefill_chunks(cache: KVCache, count: int) -> Iterator[slice]:
    """The slices of a chunked prefill: a prefix mask needs one chunk, and a ring must keep every slot still visible."""
    size = max(count, 1) if cache.first else PREFILL_CHUNK
    size = min(size, cache.capacity - cache.reach + 1) if cache.reach else size
    return (slice(start, start + size) for start in range(0, count, size))


def cache_bucket(length: int) -> int:
    """The smallest cache size with room for more than `length` tokens."""
    size = SMALLEST
    while size <= length:
        size *= GROWTH
    return size


def pad_prompts(texts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Pad prompts on the left: ids (B, N), and the mask of real tokens, None if all are."""
    lengths = [len(text) for text in texts]
    longest = max(lengths)
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts], device=device)
    if min(lengths) == longest:
        return ids, None
    missing = longest - torch.tensor(lengths, device=device)
    return ids, torch.arange(longest, device=device) >= missing[:, None]


@contextmanager
def inference_mode(modules: list[nn.Module]) -> Iterator[None]:
    """Inference mode for one step: no dropout and no gradients. Between steps the model may be trained, so its mode is
    restored.

    A model in eval mode uses the packed copy of its weights, if it has one (`PackedWeights`).
    """
    layout = None if modules[0].training else vars(modules[0]).get("layout")
    training = [vars(module) for module in modules if module.training]
    for each in training:  # nn.Module.__setattr__ would check each time whether the value is a parameter
        each["training"] = False
    try:
        with torch.inference_mode(), nullcontext() if layout is None else layout.use(modules):
            yield
    finally:
        for each in training:
            each["training"] = True
