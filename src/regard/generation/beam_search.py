"""Beam search: the most probable partial texts are extended in parallel, and the best finished ones are returned.

    beams ── the model ──► log p of every next token ── + log p so far ──► the C best candidates
      ▲                                                                         │           │
      └─── the best unfinished, each with the cache of its parent beam ◄────────┘           └──► finished: by score

    score = log p(text) / length^penalty        as in `transformers`; GNMT divides by ((5 + length)/6)^penalty

All beams of all texts are rows of one cache. The prompt and the source of a text are prefilled once and shared by its
beams. The result for a text does not depend on the others in the batch. W is beams, C candidates, L new tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import config
from regard.config.generation import BeamSearchParams
from regard.core.cache import KVCache, LayerKV
from regard.core.model import Transformer, Trunk
from regard.generation.cache_ops import expand_cache
from regard.generation.limits import (
    NO_LIMITS,
    GenerationLimits,
    barred_tokens,
    check_fits_context,
    check_prompts,
    check_source,
    context_window,
)
from regard.generation.logits_process import repeated_ngrams, repetition_penalty, seen_tokens
from regard.generation.sampler import NOTHING_ALLOWED, bias_vector, pad_left
from regard.generation.session import DAMAGED_LOGITS, inference_mode, prefill
from regard.models.heads import last_token_logits
from regard.native.library import copy_slots, is_loaded, is_readable, logsumexp_rows, topk_rows
from regard.native.quantize import linear_into

BLOCK = 64  # rows into which `largest_columns` folds a long row of logits
ROOM = 32  # the capacity of a cache is a multiple of it: few sizes, so few graphs


@dataclass(frozen=True)
class BeamHypothesis:
    """A finished beam: all its token ids, the end token included, and its score."""

    ids: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class BeamStep:
    """One step of beam search: the candidates (B, C), the most probable first, and the indices of the W that continue.

    `logs` is their log p, `rows` their parent beams, `ids` their new tokens; `over` marks those that end here.
    """

    logs: Tensor
    rows: Tensor
    ids: Tensor
    over: Tensor
    chosen: Tensor


Look = Callable[[BeamStep], None]


def beam_search(
    model: Transformer, texts: list[list[int]], c: BeamSearchParams, limits: GenerationLimits = NO_LIMITS, *,
    max_new_tokens: Sequence[int] | None = None, source: Tensor | None = None, source_real: Tensor | None = None,
    look: Look | None = None,
) -> list[list[BeamHypothesis]]:  # fmt: skip
    """The `c.num_return_sequences` best continuations of each text, the best first; fewer where fewer exist.

    `max_new_tokens` sets the limit of each text, where they differ. `look` is called with the candidates of each step.
    """
    most = max_new_tokens or [c.max_new_tokens] * len(texts)
    check_prompts(model, texts)
    check_source(model, source, len(texts))
    check_fits_context(model, limits, texts, most)
    if not texts:
        return []
    device, longest = next(model.parameters()).device, max(map(len, texts))
    given = {} if source is None else {"source": source, "source_real": source_real}
    with inference_mode(list(model.modules())):
        cache = model.cache(len(texts), longest)
        logits = prefill(model, texts, cache, given)
        rows = torch.arange(len(texts), device=device).repeat_interleave(c.num_beams)
        room = cache_capacity(longest + max(most) - 1, context_window(model, limits))
        together = (
            is_loaded() and isinstance(model.trunk, Trunk) and device.type == "cpu" and logits.dtype == torch.float32
        )
        cache = expand_cache(model, cache, rows, room, apart=not together)  # the native kernels share one source
        beams = BeamSearch(c, torch.tensor(most, device=device), barred_tokens(model, limits).to(device), limits, texts)
        while beams.step(logits, look):
            reorder_cache(cache, beams.rows, longest, beams.alike)
            logits = last_token_logits(model, beams.last, linear_into(logits), cache=cache)
    found = beams.hypotheses()
    if not all(found):
        raise config.ConfigError(NOTHING_ALLOWED)
    return found


class BeamSearch:
    """Beam search state of B texts: W unfinished beams of each, and its W best finished ones.

    A score of -inf marks an empty place: at first each text has one beam, and nothing is finished.
    """

    def __init__(
        self, c: BeamSearchParams, most: Tensor, barred: Tensor, limits: GenerationLimits, texts: list[list[int]]
    ) -> None:
        self.c, self.most, self.limits = c, most, limits  # most (B,)
        self.shut, self.lasts = barred.nonzero()[:, 0], set(most.tolist())  # ids barred in (V,)
        self.prompts = pad_left(texts, most.device)  # (B, P)
        self.added = bias_vector(c.logit_bias, len(barred)).to(most.device) if c.logit_bias else None  # (V,)
        self.unfit = torch.tensor(sorted(limits.begin), dtype=torch.long, device=most.device)  # not the first token
        said = sorted(id for id in limits.ends if id < len(barred))
        self.ends = torch.tensor(said, dtype=torch.long, device=most.device)
        shape, kind = (len(most), c.num_beams), torch.float32 if most.device.type == "mps" else torch.float64
        self.logs = torch.full(shape, -torch.inf, dtype=kind, device=most.device)  # (B, W) log p of the beams
        self.logs[:, 0] = 0
        self.said = torch.zeros(*shape, int(most.max()), dtype=torch.long, device=most.device)  # (B, W, L)
        self.scores, self.ended = torch.full_like(self.logs, -torch.inf), torch.zeros_like(self.said)
        self.lengths = torch.zeros_like(self.logs, dtype=torch.long)  # (B, W) tokens of the finished
        self.open = torch.ones_like(most, dtype=torch.bool)  # (B,) can a better hypothesis still finish?
        self.sound = torch.ones((), dtype=torch.bool, device=most.device)  # are all logits finite?
        self.made = 0
        self.rows, self.last = torch.empty(0), torch.empty(0)  # the parent of each beam; (B·W, 1) its new id
        self.alike = torch.empty(0)  # new tokens in common with the beam that had this row before

    def step(self, logits: Tensor, look: Look | None = None) -> bool:  # (B·W, V), or (B, V) after the prompts
        """Extend every beam by its most probable tokens; False when all searches are over."""
        logs, rows, ids = self.candidates(logits)
        said = gather_beams(self.said, rows)
        said[:, :, self.made] = ids
        self.made += 1
        over = torch.isin(ids, self.ends) | (self.made >= self.most)[:, None]  # (B, C)  #: S110
        self.keep(logs, said, over)
        self.logs, chosen = logs.masked_fill(over, -torch.inf).topk(self.c.num_beams)
        if look is not None:
            look(BeamStep(logs, rows, ids, over, chosen))
        before, self.said, rows = self.said, gather_beams(said, chosen), rows.gather(1, chosen)
        self.alike = (before == self.said)[..., : self.made - 1].cumprod(-1).sum(-1).flatten()
        first = torch.arange(len(rows), device=rows.device)[:, None] * self.c.num_beams
        self.rows, self.last = (first + rows).flatten(), ids.gather(1, chosen).flatten()[:, None]
        self.open &= self.hopeful()
        going, sound = torch.stack([self.open.any(), self.sound]).tolist()  # the one device synchronisation of a step
        if not sound:
            raise config.RunError(DAMAGED_LOGITS)
        return bool(going)

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The C most probable extensions of each text: log p, parent beam and new id, (B, C) each, the best first.

        C is large enough that W can continue even if every beam could end with each of the end tokens. Only the C best
        extensions of each beam are compared, since no other can be among the C best of the text.
        """
        texts, count = len(self.most), max(2, 1 + len(self.ends)) * self.c.num_beams
        logits, total = self.sayable(logits)
        best, ids = largest_columns(logits, min(count, logits.shape[1]))  # (B·W, C), or (B, C) after the prompts
        logs = (best.to(self.logs.dtype) - total).unflatten(0, (texts, -1))
        if (
            self.c.no_repeat_ngram_size is not None and self.made
        ):  # a beam that no token may follow is finished as it is
            self.keep(self.logs, self.said, logs[..., 0] == -torch.inf)
        every = self.logs[..., None] + logs  # (B, W, C)  #: S108
        ids = ids.unflatten(0, (texts, -1)).expand_as(every).flatten(1)
        logs, places = every.flatten(1).topk(min(count, ids.shape[1]))
        return logs, places // every.shape[2], ids.gather(1, places)

    def sayable(self, logits: Tensor) -> tuple[Tensor, Tensor]:  # (B·W, V), or (B, V) after the prompts
        """Logits with barred tokens at -inf, and what to subtract for log p: (B·W, V) is not written twice."""
        total = logsumexp_rows(logits)
        self.sound &= total.isfinite().all()
        if self.c.repetition_penalty != 1 or self.c.no_repeat_ngram_size is not None or self.added is not None:
            logits, total = self.adjust_log_probs(logits - total), torch.zeros_like(total)
        logits.index_fill_(1, self.shut, -torch.inf)
        if self.made == 0:
            logits.index_fill_(1, self.unfit, -torch.inf)
        if self.made < self.c.min_new_tokens:
            logits.index_fill_(1, self.ends, -torch.inf)
        return self.force_tokens(logits, total.to(self.logs.dtype))

    def adjust_log_probs(self, logs: Tensor) -> Tensor:  # (B·W, V), or (B, V) after the prompts
        """Apply the bias and the penalties to log p, not to the logits, as `transformers` does in beam search."""
        logs = logs if self.added is None else logs + self.added
        alive = len(logs) // len(self.most)
        prompts = self.prompts[:, None].expand(-1, alive, -1)
        texts = torch.cat([prompts, self.said[:, :alive, : self.made]], 2).flatten(0, 1)  # (B·W, P + made)
        if self.c.repetition_penalty != 1:
            logs = repetition_penalty(logs, self.c.repetition_penalty, seen_tokens(texts, logs.shape[1]))
        if self.c.no_repeat_ngram_size is not None:
            logs = logs.masked_fill(repeated_ngrams(texts, self.c.no_repeat_ngram_size, logs.shape[1]), -torch.inf)
        return logs

    def force_tokens(self, logits: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Force the first token of a text, and the last one at its token limit, where the limits name one."""
        first, last = self.limits.first, self.limits.last
        if first is not None and self.made == 0:
            return force_token(logits, first), torch.zeros_like(total)
        if last is None or self.made + 1 not in self.lasts:
            return logits, total
        full = (self.most == self.made + 1).repeat_interleave(len(logits) // len(self.most))[:, None]
        return torch.where(full, force_token(logits, last), logits), total.masked_fill(full, 0)

    def keep(self, logs: Tensor, texts: Tensor, over: Tensor) -> None:
        """Add the candidates that end here, of the W most probable, to the finished; keep the W best by score."""
        ending = over & self.open[:, None]
        ending[:, self.c.num_beams :] = False
        scores = (logs / self.made**self.c.length_penalty).masked_fill(~ending, -torch.inf)
        lengths = torch.full_like(over, self.made, dtype=torch.long)
        self.scores, best = torch.cat([self.scores, scores], 1).topk(self.c.num_beams)
        self.ended = gather_beams(torch.cat([self.ended, texts], 1), best)
        self.lengths = torch.cat([self.lengths, lengths], 1).gather(1, best)

    def hopeful(self) -> Tensor:  # (B,)
        """Which searches continue: those with too few finished texts, or whose best beam may still be better."""
        worst, alive = self.scores.amin(1), self.logs[:, 0] > -torch.inf
        if self.c.early_stopping is True:
            return alive & worst.isinf()
        at_best = self.c.early_stopping == "never" and self.c.length_penalty > 0
        length = self.most if at_best else torch.full_like(self.most, self.made)
        return alive & (self.logs[:, 0] / length.to(self.logs.dtype) ** self.c.length_penalty > worst)

    def hypotheses(self) -> list[list[BeamHypothesis]]:
        tables = (self.scores.tolist(), self.lengths.tolist(), self.ended.tolist())
        every = [[BeamHypothesis(tuple(ids[:length]), score) for score, length, ids in zip(*row, strict=True)]
                 for row in zip(*tables, strict=True)]  # fmt: skip
        return [[one for one in row if one.score > -math.inf][: self.c.num_return_sequences] for row in every]


def largest_columns(table: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers of each row, (R, count), and their places: a faster top-k over a large vocabulary.

    A row is folded into BLOCK rows of columns; each of the largest numbers is in one of the columns with the highest
    maxima, so only those are searched. The native kernel reads a row once and keeps a short sorted list instead.
    """
    if is_readable(table) and count <= BLOCK:
        return topk_rows(table, count)
    columns = table.shape[1] // BLOCK
    if table.device.type != "cpu" or columns < 2 * count:
        return table.topk(count)
    heights = table[:, : columns * BLOCK].unflatten(1, (BLOCK, columns)).amax(1)
    highest, steps = heights.topk(count).indices, torch.arange(BLOCK)[:, None] * columns
    rest = torch.arange(columns * BLOCK, table.shape[1]).expand(len(table), -1)
    places = torch.cat([(highest[:, None] + steps).flatten(1), rest], 1)
    best, found = table.gather(1, places).topk(count)
    return best, places.gather(1, found)


def force_token(logs: Tensor, id: int) -> Tensor:
    """Logits that allow one token alone, with log p 0, as in `transformers`."""
    return torch.full_like(logs, -torch.inf).index_fill(1, torch.tensor([id], device=logs.device), 0.0)


def gather_beams(table: Tensor, rows: Tensor) -> Tensor:
    """Select beams of each text, in this order: (B, W, L) and (B, C) -> (B, C, L)."""
    return table.take_along_dim(rows[..., None], 1)


# ---------------------------------------------------------------- the cache of many beams


def cache_capacity(need: int, most: int | None) -> int:
    room = -(-need // ROOM) * ROOM
    return room if most is None else max(need, min(room, most))


def reorder_cache(cache: KVCache, rows: Tensor, start: int, alike: Tensor) -> None:
    """Copy the keys and values of each beam's parent into its row, or the whole state of a recurrent layer.

    Slots before `start` hold the prompt, which the beams share, and the first `alike` new tokens are equal in both
    rows: the beams of a text have a recent common ancestor.
    """
    for entry in cache.entries:
        for table in entry.tables():
            if isinstance(entry, LayerKV):
                copy_slots(table, rows, start, cache.used, alike)
            else:
                table.copy_(table[rows])
