"""A session: texts that grow by one token a step, and the cache that remembers them.

    texts ── read ──► logits ── choose ──► one id a row ──► out
               ▲         ▲                      │
               │         └──── feed it ◄────────┤  while the cache has room
               └── read all again ◄─────────────┘  into a larger cache, or only the newest half of the window

Rows are padded on the left, so that they all go on together. Each says what it would say alone: it has random numbers
of its own and slides when it is full itself. Rows that have ended are carried along, and nobody listens.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import randbits

import torch
from torch import Tensor, nn

from regard import config
from regard.core.cache import Cache
from regard.core.model import Transformer
from regard.generate.filters import choose, streams
from regard.generate.limits import NO_LIMITS, Limits, barred, check_source, check_texts, least, window

SMALLEST, GROWTH = 256, 4  # slots of a cache: 256, 1024, 4096, ...; few sizes, so few graphs
DAMAGED = "the model's logits are not finite; its weights are damaged or its training diverged"
PIECE = 512  # tokens read at a time: the logits of a long prompt over a large vocabulary would fill the memory


class Session:
    """Iterate it: each step gives one id for each row, and None for rows that have ended."""

    def __init__(
        self, model: Transformer, texts: Sequence[Sequence[int]], c: config.Sampling, limits: Limits = NO_LIMITS,
        *, source: Tensor | None = None, source_real: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.model, self.c, self.ends = model, c, limits.ends
        self.texts = [[id for id in text if id != model.c.embed.pad] for text in texts]
        check_texts(model, self.texts)
        check_source(model, source, len(texts))
        self.source: dict[str, Tensor | None] = {} if source is None else {"source": source, "source_real": source_real}
        self.live = [True] * len(texts)
        self.seed = randbits(32) if c.seed is None else c.seed
        self.streams = streams(self.seed, len(texts))
        self.window, self.least = window(model, limits), least(model)
        self.modules, self.device = list(model.modules()), next(model.parameters()).device
        self.barred = barred(model, limits).to(self.device)
        self.seen = None if c.repetition == 1 else written(self.texts, len(self.barred)).to(self.device)
        self.cache: Cache | None = None
        self.used, self.last, self.warned = 0, torch.empty(0), False

    def __iter__(self) -> Iterator[list[int | None]]:
        for _ in range(self.c.new):
            if not any(self.live):
                return
            yield self.step()

    def end(self, row: int) -> None:
        """Listen no more to this row."""
        self.live[row] = False

    def step(self) -> list[int | None]:
        with still(self.modules):
            logits = self.read() if self.cache is None or self.used == self.cache.capacity else self.feed(self.cache)
            chosen = choose(logits.masked_fill(self.barred, -torch.inf), self.c, self.streams, self.seen)
            self.last = chosen[:, None].clamp(min=0)
            if self.seen is not None:
                self.seen.scatter_(1, self.last, True)
        said = [id if live else None for id, live in zip(chosen.tolist(), self.live, strict=True)]
        for row, id in enumerate(said):
            if id is not None:
                self.append(row, id)
        return said

    def append(self, row: int, id: int) -> None:
        if id < 0:
            raise config.RunError(DAMAGED)
        self.texts[row].append(id)
        self.live[row] = id not in self.ends  #: S110

    def feed(self, cache: Cache) -> Tensor:  # (B, V)
        self.used += 1
        logits: Tensor = self.model(self.last, cache=cache)
        return logits[:, -1]  #: S086

    def read(self) -> Tensor:  # (B, V)
        """The logits after all texts, through a new cache with room for more."""
        self.forget()
        longest = max(map(len, self.texts))
        room = bucket(longest) if self.window is None else min(bucket(longest), self.window)
        cache, given = self.model.cache(len(self.texts), room), self.source
        if self.cache is not None and self.cache.memory is not None:
            cache.remember(self.cache.memory, self.cache.layers)  # the encoder has read it before
            given = {}
        logits = heard(self.model, self.texts, cache, given)
        self.cache, self.used = cache, longest
        return logits

    def forget(self) -> None:
        """Beyond the window, a prompt keeps its end; a text that has grown keeps the newest half of the window."""
        for row, text in enumerate(self.texts):
            if not self.live[row]:
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
            warnings.warn(f"new: the text has more tokens than {most}; it goes on from the newest {keep}, and does so "
                          "again whenever it is full", stacklevel=2)  # fmt: skip


def heard(
    model: Transformer, texts: list[list[int]], cache: Cache, source: dict[str, Tensor | None]
) -> Tensor:  # (B, V)
    """The logits after all texts, which an empty cache holds from now on."""
    ids, real = padded(texts, cache.length.device)
    if real is None and model.c.embed.pad is not None:
        real = torch.ones_like(ids, dtype=torch.bool)  # a target may begin with the pad token
    size = ids.shape[1] if cache.first else PIECE  # a prefix comes in one piece
    for part in (slice(start, start + size) for start in range(0, ids.shape[1], size)):
        there = None if real is None else real[:, part]
        logits: Tensor = model(ids[:, part], real=there, cache=cache, **source)
        source = {}
    return logits[:, -1]


def written(texts: list[list[int]], vocab: int) -> Tensor:
    """(B, V) True for the tokens of each text."""
    seen = torch.zeros(len(texts), vocab, dtype=torch.bool)
    for row, text in enumerate(texts):
        seen[row, text] = True
    return seen


def bucket(length: int) -> int:
    """The smallest size of a cache with room for more than `length` tokens."""
    size = SMALLEST
    while size <= length:
        size *= GROWTH
    return size


def padded(texts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """(B, N) ids with padding on the left, and which are real: None if all are."""
    lengths = [len(text) for text in texts]
    longest = max(lengths)
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts], device=device)
    if min(lengths) == longest:
        return ids, None
    missing = longest - torch.tensor(lengths, device=device)
    return ids, torch.arange(longest, device=device) >= missing[:, None]


@contextmanager
def still(modules: list[nn.Module]) -> Iterator[None]:
    """No dropout and no gradients, for one step: between steps the model may be trained, and is as it was."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
