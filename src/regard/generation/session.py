"""A session: texts that grow by one token a step, and the cache that remembers them.

    texts ── read ──► logits ── choose ──► one id a row ──► out
               ▲         ▲                      │
               │         └──── feed it ◄────────┤  while the cache has room
               └── read all again ◄─────────────┘  into a larger cache, or only the newest half of the window

Where every layer looks back no farther than a window, the cache is a ring: nothing is ever read again.

Rows are padded on the left, so that they all go on together. Each says what it would say alone: it has random numbers
of its own and slides when it is full itself. Rows that have ended are carried along, and nobody listens.
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
from regard.core.cache import Cache
from regard.core.model import Transformer
from regard.generate.caches import shared_out
from regard.generate.choosing import Chooser, Rule
from regard.generate.filters import BROKEN
from regard.generate.limits import NO_LIMITS, Limits, barred, check_source, check_texts, ring, smallest, window
from regard.generate.recorded import KINDS, WORTH, Recorded, borrowed, can_record, record, step_back
from regard.heads import last

SMALLEST, GROWTH = 256, 4  # slots of a cache: 256, 1024, 4096, ...; few sizes, so few graphs
DAMAGED = "the model's logits are not finite; its weights are damaged or its training diverged"
PIECE = 512  # tokens read at a time: the logits of a long prompt over a large vocabulary would fill the memory


class Session:
    """Iterate it: each step gives one id for each row, and None for rows that have ended."""

    rings = True  # may its cache write over what nobody sees any more?

    def __init__(
        self, model: Transformer, texts: Sequence[Sequence[int]], c: config.Sampling, limits: Limits = NO_LIMITS,
        *, source: Tensor | None = None, source_real: Tensor | None = None, rules: Sequence[Rule | None] = (),
    ) -> None:  # fmt: skip
        self.model, self.c, self.ends = model, c, limits.ends
        self.texts = [[id for id in text if id != model.c.embed.pad] for text in texts]
        empty = smallest(model)  # made once: on a GPU that takes a millisecond
        self.least = max(empty.first, 1)
        check_texts(model, self.texts, self.least)
        check_source(model, source, len(texts))
        self.source: dict[str, Tensor | None] = {} if source is None else {"source": source, "source_real": source_real}
        self.live = [True] * len(texts)
        self.seed = randbits(32) if c.seed is None else c.seed
        self.reach = ring(model, limits, empty) if self.rings else 0
        self.window = None if self.reach else window(model, limits)
        self.modules, self.device = list(model.modules()), next(model.parameters()).device
        self.chooser = Chooser(c, self.texts, barred(model, limits).to(self.device), ends=limits.ends, seed=self.seed,
                               rules=rules, begin=limits.begin)  # fmt: skip
        self.cache: Cache | None = None
        self.used, self.made, self.warned = 0, 0, False
        self.last: list[int] = []  # what each row said last, to be read next
        self.look: Callable[[Tensor], None] | None = None  # is shown the logits (B, V) before one is chosen
        self.ahead: Tensor | None = None  # (B, V) the logits after all that was said, where they are there already
        self.recorded: Recorded | None = None  # a step over this cache that can be played
        self.resting: Callable[[], object] = nothing

    def __iter__(self) -> Iterator[list[int | None]]:
        while self.made < self.c.new and any(self.live):
            self.made += 1
            yield self.step()

    def copy(self) -> Self:
        """Another session in the same place: it says what this one would."""
        return self.branch(range(len(self.texts)))

    def branch(self, rows: Sequence[int]) -> Self:
        """Another session whose row i goes on from where row rows[i] of this one is; one row may branch many times.

        Each says what that row would; `chooser.reseed` gives them random numbers of their own.
        """
        other, index = copy(self), torch.tensor(list(rows), dtype=torch.long, device=self.device)
        other.texts, other.live = [list(self.texts[row]) for row in rows], [self.live[row] for row in rows]
        other.last = [self.last[row] for row in rows if self.last]
        other.source = {name: None if table is None else table[index] for name, table in self.source.items()}
        other.chooser, other.recorded, other.resting = self.chooser.branch(rows), None, nothing
        if self.cache is not None:
            with torch.inference_mode():
                other.cache = shared_out(self.model, self.cache, index, self.cache.capacity)
                other.ahead = None if self.ahead is None else self.ahead[index]
        return other

    def save(self, path: str | Path) -> None:
        """Write all of it to a file; `model.resume` goes on from there with the same ids."""
        from regard.generate.keeping import save

        save(self, path)

    def end(self, row: int) -> None:
        """Listen no more to this row."""
        self.live[row] = False

    def step(self) -> list[int | None]:
        with still(self.modules):
            ids = self.choose(self.logits())
        said = [self.said(row, id) if self.live[row] else None for row, id in enumerate(ids)]
        self.chooser.tell(said)
        return said

    def logits(self) -> Tensor:  # (B, V)
        """The logits after all texts."""
        if self.ahead is None or self.cache is None:
            return self.read() if self.cache is None or self.full(self.cache) else self.feed(self.cache)
        logits, self.ahead = self.ahead, None
        if not self.model.lookers:
            return logits
        step_back(self.cache)  # whoever is looking wants to see it done
        self.used -= 1
        return self.feed(self.cache)

    def choose(self, logits: Tensor) -> list[int]:
        """One id a row. Where choosing needs the logits alone, a recorded step goes on before the ids are here."""
        if self.look is not None:
            self.look(logits)
        one, plain = self.recorded, self.chooser.plain and self.look is None and not self.model.lookers
        if one is None or not plain or self.made >= self.c.new or self.full(one.cache):
            ids: list[int] = self.chooser.choose(logits).tolist()
        else:
            chosen = one.said if logits is one.logits else self.chooser.choose(logits)
            ids = one.overheard(chosen, None if chosen is one.said else chosen[:, None].clamp(min=0))
            self.used, self.ahead = self.used + 1, one.logits
        self.last = [max(id, 0) for id in ids]
        return ids

    def said(self, row: int, id: int) -> int | None:
        """What a row says: an id, or nothing if nothing may be said, and then it has ended."""
        if id == BROKEN:
            raise config.RunError(DAMAGED)
        self.live[row] = id >= 0 and id not in self.ends  #: S110
        if id < 0:
            return None
        self.texts[row].append(id)
        return id

    def full(self, cache: Cache) -> bool:
        return not cache.reach and self.used >= cache.capacity

    def feed(self, cache: Cache) -> Tensor:  # (B, V)
        self.used += 1
        if self.recorded is None and self.worth and can_record(self.model, cache):
            self.adopt(record(self.model, cache))
        if self.recorded is not None and not self.model.lookers:
            return self.recorded.play(self.newest)
        logits: Tensor = self.model(self.newest, cache=cache)
        return logits[:, -1]  #: S086

    @property
    def newest(self) -> Tensor:  # (B, 1)
        return torch.tensor(self.last, device=self.device)[:, None]

    @property
    def worth(self) -> bool:
        """Whether enough is to come for a step to be recorded, on a device that can."""
        return self.device.type in KINDS and self.c.new - self.made >= WORTH

    def read(self) -> Tensor:  # (B, V)
        """The logits after all texts, through a new cache with room for more."""
        self.forget()
        longest = max(map(len, self.texts))
        cache, given = self.room(longest), self.source
        if self.cache is not None and self.cache.memory is not None:
            cache.remember(self.cache.memory, self.cache.layers)  # the encoder has read it before
            given = {}
        logits = heard(self.model, self.texts, cache, given, self.recorded)
        self.cache, self.used = cache, longest
        return logits

    def room(self, longest: int) -> Cache:
        """A new cache with room for more than so many tokens; or a ring, once that is smaller."""
        worth, coming = self.worth and can_record(self.model), min(self.c.new - self.made, SMALLEST * GROWTH)
        size, around = bucket(longest + coming * worth), self.reach - 1 + min(PIECE, max(self.reach, SMALLEST))
        size = size if self.window is None else min(size, self.window)
        reach, size = self.reach if size >= around else 0, min(size, around) if self.reach else size
        self.adopt(None)
        if worth and (one := borrowed(self.model, len(self.texts), size, reach)) is not None:
            self.adopt(one)
            return one.cache
        cache = self.model.cache(len(self.texts), size)
        cache.reach = reach
        return cache

    def adopt(self, one: Recorded | None) -> None:
        """Play this recording from now on; the one before is free, and so will this one be when the session is gone."""
        self.resting()
        self.recorded, self.resting = one, nothing
        if one is not None:
            one.barred.copy_(self.chooser.barred)
            self.resting = weakref.finalize(self, one.rest)
            self.resting.atexit = False

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


def nothing() -> None:
    """Nobody has to be told."""


def heard(
    model: Transformer, texts: list[list[int]], cache: Cache, source: dict[str, Tensor | None],
    recorded: Recorded | None = None,
) -> Tensor:  # (B, V)  # fmt: skip
    """The logits after all texts, which an empty cache holds from now on: that of a recording, if there is one."""
    ids, real = padded(texts, cache.length.device)
    if real is None and model.c.embed.pad is not None:
        real = torch.ones_like(ids, dtype=torch.bool)  # a target may begin with the pad token
    parts = list(pieces(cache, ids.shape[1]))
    if recorded is not None and len(parts) == 1 and all(table is None for table in source.values()):
        return recorded.read(ids, real)
    for part in parts:
        logits = last(model, ids[:, part], real=None if real is None else real[:, part], cache=cache, **source)
        source = {}
    return logits


def pieces(cache: Cache, count: int) -> Iterator[slice]:
    """How so many tokens are read into a cache: a prefix in one piece, and what is still seen stays in a ring."""
    size = max(count, 1) if cache.first else PIECE
    size = min(size, cache.capacity - cache.reach + 1) if cache.reach else size
    return (slice(start, start + size) for start in range(0, count, size))


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
    """No dropout and no gradients, for one step: between steps the model may be trained, and is as it was.

    A model that is not being trained multiplies by the packed copy of its weights, if it has one (`Layout`).
    """
    layout = None if modules[0].training else vars(modules[0]).get("layout")
    training = [vars(module) for module in modules if module.training]
    for each in training:  # set the plain way, nn.Module looks each time whether it may be a parameter
        each["training"] = False
    try:
        with torch.inference_mode(), nullcontext() if layout is None else layout.used(modules):
            yield
    finally:
        for each in training:
            each["training"] = True
