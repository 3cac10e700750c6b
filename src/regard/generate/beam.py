"""Beam search: of every text the few likeliest beginnings go on together, and the best that have ended are kept.

    beginnings ── the model ──► log p of every next token ── + log p so far ──► the likeliest candidates
        ▲                                                                         │           │
        └─── the best that go on, each with the memory of the one it grew from ◄──┘           └──► ended: by score

    score = log p(text) / length^penalty        as `transformers` has it; GNMT divides by ((5 + length)/6)^penalty

All beams of all texts are rows of one cache. A prompt and a source are read once for a text, then shared out to its
beams. What is found for a text does not depend on the others in the batch. W is beams, C candidates, L new tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config.search import Search
from regard.core.cache import Cache, Entry
from regard.core.model import Transformer
from regard.core.tokens import Tokens
from regard.generate.limits import NO_LIMITS, Limits, barred, check_room, check_source, check_texts, window
from regard.generate.session import DAMAGED, heard, still

ROOM = 64  # slots of a cache come in such steps: few sizes, so few graphs


@dataclass(frozen=True)
class Found:
    """A text that a search found: all tokens chosen, the end token included, and its score."""

    ids: tuple[int, ...]
    score: float


def search(
    model: Transformer, texts: list[list[int]], c: Search, limits: Limits = NO_LIMITS, *,
    new: Sequence[int] | None = None, source: Tensor | None = None, source_real: Tensor | None = None,
) -> list[list[Found]]:  # fmt: skip
    """The `c.best` best continuations of each text, the best first; fewer where fewer can be said.

    `new` is the most tokens for each text, where they differ.
    """
    most = new or [c.new] * len(texts)
    check_texts(model, texts)
    check_source(model, source, len(texts))
    check_room(model, limits, texts, most)
    if not texts:
        return []
    device, longest = next(model.parameters()).device, max(map(len, texts))
    given = {} if source is None else {"source": source, "source_real": source_real}
    with still(list(model.modules())):
        cache = model.cache(len(texts), longest)
        logits = heard(model, texts, cache, given)
        rows = torch.arange(len(texts), device=device).repeat_interleave(c.beams)
        cache = shared_out(model, cache, rows, capacity(longest + max(most) - 1, window(model, limits)))
        beams = Beams(c, torch.tensor(most, device=device), barred(model, limits).to(device), limits.ends)
        while beams.step(logits):
            move(cache, beams.rows, longest)
            logits = model(beams.last, cache=cache)[:, -1]
    found = beams.found()
    if not all(found):
        raise config.ConfigError("no text can be said: all tokens are forbidden; use the tokenizer of the training")
    return found


class Beams:
    """The beginnings of B texts that go on, W of each, and the W best of each that have ended.

    A score of -inf means that there is none: at first each text has one beginning, and nothing has ended.
    """

    def __init__(self, c: Search, most: Tensor, barred: Tensor, ends: frozenset[int]) -> None:
        self.c, self.most, self.barred = c, most, barred  # most (B,), barred (V,)
        said = sorted(id for id in ends if id < len(barred))
        self.ends = torch.tensor(said, dtype=torch.long, device=most.device)
        shape, kind = (len(most), c.beams), torch.float32 if most.device.type == "mps" else torch.float64
        self.logs = torch.full(shape, -torch.inf, dtype=kind, device=most.device)  # (B, W) log p of the beginnings
        self.logs[:, 0] = 0
        self.said = torch.zeros(*shape, int(most.max()), dtype=torch.long, device=most.device)  # (B, W, L)
        self.scores, self.ended = torch.full_like(self.logs, -torch.inf), torch.zeros_like(self.said)
        self.lengths = torch.zeros_like(self.logs, dtype=torch.long)  # (B, W) tokens of the ended
        self.open = torch.ones_like(most, dtype=torch.bool)  # (B,) may something better still end?
        self.made = 0
        self.rows, self.last = torch.empty(0), torch.empty(0)  # (B·W,) where each beam grew from; (B·W, 1) its new id

    def step(self, logits: Tensor) -> bool:  # (B·W, V), or (B, V) after the prompts
        """Every beginning grows by its likeliest tokens; False when all searches are over."""
        logs, rows, ids = self.candidates(logits)
        said = pick(self.said, rows)
        said[:, :, self.made] = ids
        self.made += 1
        over = torch.isin(ids, self.ends) | (self.made >= self.most)[:, None]  # (B, C)  #: S110
        self.keep(logs, said, over)
        self.logs, chosen = logs.masked_fill(over, -torch.inf).topk(self.c.beams)
        self.said, rows = pick(said, chosen), rows.gather(1, chosen)
        first = torch.arange(len(rows), device=rows.device)[:, None] * self.c.beams
        self.rows, self.last = (first + rows).flatten(), ids.gather(1, chosen).flatten()[:, None]
        self.open &= self.hopeful()
        going, sound = torch.stack([self.open.any(), logits.amax(-1).isfinite().all()]).tolist()  # the one wait a step
        if not sound:
            raise config.RunError(DAMAGED)
        return bool(going)

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The likeliest longer beginnings: log p, the beam each grew from and its new id, (B, C) each, best first.

        There are so many that enough can go on even if every beam could end with each of the end tokens.
        """
        logs = logits.to(self.logs.dtype).log_softmax(-1).masked_fill(self.barred, -torch.inf)
        if self.made < self.c.shortest:
            logs[:, self.ends] = -torch.inf
        vocab = logs.shape[-1]
        every = (self.logs[..., None] + logs.unflatten(0, (len(self.most), -1))).flatten(1)  # (B, W·V)  #: S108
        logs, places = every.topk(min(max(2, 1 + len(self.ends)) * self.c.beams, every.shape[1]))
        return logs, places // vocab, places % vocab

    def keep(self, logs: Tensor, said: Tensor, over: Tensor) -> None:
        """Candidates that end here and are among the W likeliest join the ended; the W best by score stay."""
        ending = over & self.open[:, None]
        ending[:, self.c.beams :] = False
        scores = (logs / self.made**self.c.length_penalty).masked_fill(~ending, -torch.inf)
        lengths = torch.full_like(over, self.made, dtype=torch.long)
        self.scores, best = torch.cat([self.scores, scores], 1).topk(self.c.beams)
        self.ended = pick(torch.cat([self.ended, said], 1), best)
        self.lengths = torch.cat([self.lengths, lengths], 1).gather(1, best)

    def hopeful(self) -> Tensor:  # (B,)
        """Which searches go on: those that lack ended texts, and those whose likeliest beginning may beat the worst."""
        worst, alive = self.scores.amin(1), self.logs[:, 0] > -torch.inf
        if self.c.early_stopping is True:
            return alive & worst.isinf()
        at_best = self.c.early_stopping == "never" and self.c.length_penalty > 0
        length = self.most if at_best else torch.full_like(self.most, self.made)
        return alive & (self.logs[:, 0] / length.to(self.logs.dtype) ** self.c.length_penalty > worst)

    def found(self) -> list[list[Found]]:
        tables = (self.scores.tolist(), self.lengths.tolist(), self.ended.tolist())
        every = [[Found(tuple(ids[:length]), score) for score, length, ids in zip(*row, strict=True)]
                 for row in zip(*tables, strict=True)]  # fmt: skip
        return [[one for one in row if one.score > -math.inf][: self.c.best] for row in every]


def pick(table: Tensor, rows: Tensor) -> Tensor:
    """Some beams of each text, in this order: (B, W, L) and (B, C) -> (B, C, L)."""
    return table.take_along_dim(rows[..., None], 1)


# ---------------------------------------------------------------- the cache of many beams


def capacity(need: int, most: int | None) -> int:
    room = -(-need // ROOM) * ROOM
    return room if most is None else max(need, min(room, most))


def shared_out(model: Transformer, cache: Cache, rows: Tensor, capacity: int) -> Cache:
    """A larger cache whose row i remembers what row rows[i] of this one does, the source included."""
    wide = model.cache(len(rows), capacity)
    for entry, narrow in zip(wide.entries, cache.entries, strict=True):
        for table, held in zip(entry.tables(), narrow.tables(), strict=True):
            (table[:, :, : cache.capacity] if isinstance(entry, Entry) else table).copy_(held[rows])
    wide.order[:, : cache.capacity], wide.real[:, : cache.capacity] = cache.order[rows], cache.real[rows]
    wide.length, wide.next, wide.used, wide.fresh = cache.length[rows], cache.next[rows], cache.used, cache.fresh
    if cache.memory is not None:
        wide.remember(chosen(cache.memory, rows), cache.layers and [layer[rows] for layer in cache.layers])
        for across, source in zip(wide.across, cache.across, strict=True):
            if source.k is not None and source.v is not None:
                across.k, across.v = source.k[rows], source.v[rows]
    return wide


def chosen(tokens: Tokens, rows: Tensor) -> Tokens:
    """Some rows of Tokens, of every table that they carry."""
    every = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    tables: dict[str, Any] = {name: table[rows] for name, table in every.items() if isinstance(table, Tensor)}
    return replace(tokens, **tables)


def move(cache: Cache, rows: Tensor, start: int) -> None:
    """Each beam takes over the keys and values of the one it grew from: from `start` on, since a prompt is shared; or
    its whole state, where a layer has one."""
    for entry in cache.entries:
        for table in entry.tables():
            part = table[:, :, start : cache.used] if isinstance(entry, Entry) else table
            part.copy_(part[rows])
