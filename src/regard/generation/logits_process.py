"""Logits processors: penalties, temperature, top-k, top-p, min-p and typical on logits (B, V), then sampling.

    logits ─ bias ─ repetition ─ frequency ─ presence ─ what is forbidden ─┐
      ┌────────────────────────────────────────────────────────────────────┘
      └─ temperature ─ top_k ─ top_p ─ min_p ─ typical ─► softmax ─ draw ─► one id a row

The order is that of `transformers`, which has no frequency and presence (those are OpenAI's). A forbidden token has
logit -inf. The first line depends on the token history; the second is for sampling alone, and greedy decoding skips it.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import config

HOTTEST = 1e30  # from here on all allowed tokens are equally likely; at infinity -inf/inf would be no number
Filter = Callable[[Tensor], Tensor]
NOT_FINITE, NO_TOKEN = -1, -2  # instead of an id: the logits are no numbers; no token may be said


@dataclass(frozen=True, kw_only=True)
class TokenHistory:
    """What filters ask of the past: tokens `seen` (B, V) at all, `counts` (B, V) of those said after the prompt, what
    is `added` (V,), and what is `forbidden` (B, V) or (V,), by the setting that forbids it."""

    seen: Tensor | None = None
    counts: Tensor | None = None
    added: Tensor | None = None
    forbidden: dict[str, Tensor] = field(default_factory=dict)


NO_HISTORY = TokenHistory()


def repetition_penalty(logits: Tensor, penalty: float, seen: Tensor) -> Tensor:
    """Tokens `seen` (B, V) become less likely: z/penalty where z > 0, z·penalty elsewhere (Keskar et al. 2019)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def frequency_penalty(logits: Tensor, penalty: float, counts: Tensor) -> Tensor:
    """Every time that a token was said costs it `penalty` (OpenAI)."""
    return logits - penalty * counts


def presence_penalty(logits: Tensor, penalty: float, counts: Tensor) -> Tensor:
    """Having been said costs a token `penalty`, once (OpenAI)."""
    return logits - penalty * (counts > 0)


def repeated_ngrams(texts: Tensor, size: int, vocab: int) -> Tensor:
    """(R, V) True for tokens that would end a run of `size` that stands in the text (R, N) already.

        size 3    a b c d a b ?    the last two, a b, were followed by c: it is not said again

    Before its beginning a text has -1.
    """
    forbidden = torch.zeros(len(texts), vocab + 1, dtype=torch.bool, device=texts.device)
    if texts.shape[1] < size:
        return forbidden[:, :vocab]
    runs, last = texts.unfold(1, size, 1), texts[:, texts.shape[1] + 1 - size :]  # (R, M, size), (R, size - 1)
    again = (runs[..., :-1] == last[:, None]).all(-1) & (runs >= 0).all(-1)
    new = torch.where(again, runs[..., -1], vocab).clamp(max=vocab)  # all others go to a spare column
    return forbidden.scatter_(1, new, True)[:, :vocab]


def seen_tokens(texts: Tensor, vocab: int) -> Tensor:
    """(R, V) True for the tokens of each text (R, N), which has -1 before its beginning."""
    marks = torch.zeros(len(texts), vocab + 1, dtype=torch.bool, device=texts.device)
    return marks.scatter_(1, texts.masked_fill(texts < 0, vocab).clamp(max=vocab), True)[:, :vocab]


def apply_temperature(logits: Tensor, warmth: float) -> Tensor:
    """softmax(z/T): below 1 bolder, above 1 more even. The largest z becomes 0, so that no small T overflows."""
    largest = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)  # -inf less itself is no number
    return (logits - largest) / min(warmth, HOTTEST)  #: S105


def filter_top_k(logits: Tensor, count: int) -> Tensor:
    """Only the `count` likeliest; among equals at the border the lowest ids stay, so there are never more."""
    border = logits.topk(min(count, logits.shape[-1])).values[..., -1:]
    above, level = logits > border, logits == border
    room = count - above.sum(-1, keepdim=True)
    return logits.masked_fill(~(above | level & (level.cumsum(-1) <= room)), -torch.inf)  #: S106


def filter_top_p(logits: Tensor, mass: float) -> Tensor:
    """Only the smallest set of likeliest tokens that has probability `mass` or more (Holtzman et al. 2020)."""
    ranked, order = logits.sort(stable=True, dim=-1, descending=True)  # among equals the lowest id comes first
    reached = ranked.softmax(-1).cumsum(-1) >= mass
    drop = F.pad(reached[..., :-1], (1, 0), value=False)  # those before it suffice; nothing is before the first
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)  #: S107


def filter_min_p(logits: Tensor, part: float) -> Tensor:
    """Only tokens at least `part` times as likely as the likeliest (Nguyen et al. 2024)."""
    border = math.log(part) if part else -math.inf
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + border, -torch.inf)


def filter_typical(logits: Tensor, mass: float) -> Tensor:
    """Only the tokens whose surprise -log p is nearest to the expected one (the entropy), the smallest set with
    probability `mass` or more (Meister et al. 2023). It may leave out the likeliest token."""
    logs = logits.log_softmax(-1)
    entropy = -(logs * logs.exp()).nansum(-1, keepdim=True)
    order = (-logs - entropy).abs().sort(stable=True, dim=-1).indices
    reached = logits.gather(-1, order).softmax(-1).cumsum(-1) >= mass
    drop = F.pad(reached[..., :-1], (1, 0), value=False)
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def process_logits_steps(
    logits: Tensor, c: config.SamplingParams, memory: TokenHistory = NO_HISTORY
) -> Iterator[tuple[str, Tensor]]:
    """The logits after each filter that a setting asks for, under its name; in double precision where there is one."""
    logits = to_double(logits)
    for name, changed in (*history_processors(c, memory), *(sampling_processors(c) if c.temperature != 0 else ())):
        logits = changed(logits)
        yield name, logits


def history_processors(c: config.SamplingParams, memory: TokenHistory) -> Iterator[tuple[str, Filter]]:
    """What depends on the tokens before."""
    if memory.added is not None:
        yield "logit_bias", partial(Tensor.add, other=memory.added)
    if memory.seen is not None and c.repetition_penalty != 1:
        yield "repetition_penalty", partial(repetition_penalty, penalty=c.repetition_penalty, seen=memory.seen)
    if memory.counts is not None and c.frequency_penalty:
        yield "frequency_penalty", partial(frequency_penalty, penalty=c.frequency_penalty, counts=memory.counts)
    if memory.counts is not None and c.presence_penalty:
        yield "presence_penalty", partial(presence_penalty, penalty=c.presence_penalty, counts=memory.counts)
    for name, barred in memory.forbidden.items():
        yield name, partial(Tensor.masked_fill, mask=barred, value=-torch.inf)


def sampling_processors(c: config.SamplingParams) -> Iterator[tuple[str, Filter]]:
    """What makes a draw bolder or more careful."""
    if c.temperature != 1:
        yield "temperature", partial(apply_temperature, warmth=c.temperature)
    if c.top_k is not None:
        yield "top_k", partial(filter_top_k, count=c.top_k)
    if c.top_p is not None and c.top_p < 1:
        yield "top_p", partial(filter_top_p, mass=c.top_p)
    if c.min_p is not None:
        yield "min_p", partial(filter_min_p, part=c.min_p)
    if c.typical_p is not None and c.typical_p < 1:
        yield "typical_p", partial(filter_typical, mass=c.typical_p)


def process_logits(logits: Tensor, c: config.SamplingParams, memory: TokenHistory = NO_HISTORY) -> Tensor:
    """The logits that a setting samples from."""
    left = to_double(logits)
    for _, after in process_logits_steps(logits, c, memory):
        left = after
    return left


def to_double(logits: Tensor) -> Tensor:
    return logits.to(torch.float32 if logits.device.type == "mps" else torch.float64)


def sample_tokens(
    logits: Tensor, c: config.SamplingParams, streams: list[Generator], memory: TokenHistory = NO_HISTORY
) -> Tensor:
    """(B, V) to one id a row; a number below 0 where there is none, which a caller can tell without another look."""
    left = process_logits(logits, c, memory)
    ids = left.argmax(-1) if c.temperature == 0 else sample_from(left.softmax(-1), streams)  #: S104
    ids = ids.masked_fill(left.amax(-1) == -torch.inf, NO_TOKEN)
    return ids.masked_fill(~logits.amax(-1).isfinite(), NOT_FINITE)


def greedy_tokens(logits: Tensor, barred: Tensor) -> Tensor:
    """(B, V) and (V,) to the likeliest id of each row that is not barred, the first of equals; NOT_FINITE where there
    is no finite one."""
    top, ids = logits.masked_fill(barred, -torch.inf).max(-1)
    return ids.masked_fill(~top.isfinite(), NOT_FINITE)


def sample_from(chances: Tensor, streams: list[Generator]) -> Tensor:
    """Each row's id by one number from its own stream: the first id at which the summed chances exceed it."""
    thrown = torch.stack([torch.rand(1, generator=stream, dtype=chances.dtype) for stream in streams])  # (B, 1)
    sums = chances.cumsum(-1)
    # an id of chance 0 adds nothing to the sums, so none is ever found
    found = torch.searchsorted(sums, thrown.to(sums.device) * sums[:, -1:], right=True)
    return found[:, 0].clamp(max=chances.shape[-1] - 1)


def row_generators(seed: int, rows: int) -> list[Generator]:
    """Random numbers for each row apart: what a row says depends on the seed and its place, not on its neighbours."""
    return [Generator().manual_seed(row_seed(seed, row)) for row in range(rows)]


def row_seed(seed: int, row: int) -> int:
    """A seed for one row; a hash, since seed + row would give row 1 of seed 0 the numbers of row 0 of seed 1."""
    return int.from_bytes(hashlib.sha256(f"{seed} {row}".encode()).digest()[:7])
