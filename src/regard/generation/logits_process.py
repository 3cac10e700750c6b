"""Logits processors: penalties, temperature, top-k, top-p, min-p and typical on logits (B, V), then sampling.

    logits ─ bias ─ repetition ─ frequency ─ presence ─ forbidden tokens ──┐
      ┌────────────────────────────────────────────────────────────────────┘
      └─ temperature ─ top_k ─ top_p ─ min_p ─ typical ─► softmax ─ draw ─► one id a row

The order is that of `transformers`, which lacks the frequency and presence penalties (these are OpenAI's). A forbidden
token has logit -inf. The first line depends on the token history; the second is for sampling alone, and greedy decoding
skips it.
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

HOTTEST = 1e30  # from here on all allowed tokens are equally likely; at infinity -inf/inf would be NaN
Filter = Callable[[Tensor], Tensor]
NOT_FINITE, NO_TOKEN = -1, -2  # returned in place of an id: the logits are not finite; every token is forbidden


@dataclass(frozen=True, kw_only=True)
class TokenHistory:
    """Token history that the logits processors read: tokens `seen` (B, V) at all, `counts` (B, V) of those generated,
    the bias `added` (V,), and `forbidden` (B, V) or (V,), by the setting that forbids it."""

    seen: Tensor | None = None
    counts: Tensor | None = None
    added: Tensor | None = None
    forbidden: dict[str, Tensor] = field(default_factory=dict)


NO_HISTORY = TokenHistory()


def repetition_penalty(logits: Tensor, penalty: float, seen: Tensor) -> Tensor:
    """Tokens `seen` (B, V) become less likely: z/penalty where z > 0, z·penalty elsewhere (Keskar et al. 2019)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def frequency_penalty(logits: Tensor, penalty: float, counts: Tensor) -> Tensor:
    """Subtract `penalty` from a token's logit for each time it was generated (OpenAI)."""
    return logits - penalty * counts


def presence_penalty(logits: Tensor, penalty: float, counts: Tensor) -> Tensor:
    """Subtract `penalty` once from the logit of every generated token (OpenAI)."""
    return logits - penalty * (counts > 0)


def repeated_ngrams(texts: Tensor, size: int, vocab: int) -> Tensor:
    """Mask (R, V) of the tokens that would repeat an n-gram of `size` that the text (R, N) already contains.

        size 3    a b c d a b ?    the last two, a b, were followed by c: c is forbidden

    Texts are padded on the left with -1.
    """
    forbidden = torch.zeros(len(texts), vocab + 1, dtype=torch.bool, device=texts.device)
    if texts.shape[1] < size:
        return forbidden[:, :vocab]
    runs, last = texts.unfold(1, size, 1), texts[:, texts.shape[1] + 1 - size :]  # (R, M, size), (R, size - 1)
    again = (runs[..., :-1] == last[:, None]).all(-1) & (runs >= 0).all(-1)
    new = torch.where(again, runs[..., -1], vocab).clamp(max=vocab)  # all others go to a spare column
    return forbidden.scatter_(1, new, True)[:, :vocab]


def seen_tokens(texts: Tensor, vocab: int) -> Tensor:
    """Mask (R, V) of the tokens in each text (R, N), which is padded on the left with -1."""
    marks = torch.zeros(len(texts), vocab + 1, dtype=torch.bool, device=texts.device)
    return marks.scatter_(1, texts.masked_fill(texts < 0, vocab).clamp(max=vocab), True)[:, :vocab]


def apply_temperature(logits: Tensor, warmth: float) -> Tensor:
    """Temperature, softmax(z/T): below 1 sharper, above 1 flatter. The largest z becomes 0, so no small T overflows."""
    largest = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)  # -inf - -inf is NaN
    return (logits - largest) / min(warmth, HOTTEST)  #: S105


def filter_top_k(logits: Tensor, count: int) -> Tensor:
    """Top-k: only the `count` most probable tokens; of equal logits at the border the lowest ids stay."""
    border = logits.topk(min(count, logits.shape[-1])).values[..., -1:]
    above, level = logits > border, logits == border
    room = count - above.sum(-1, keepdim=True)
    return logits.masked_fill(~(above | level & (level.cumsum(-1) <= room)), -torch.inf)  #: S106


def filter_top_p(logits: Tensor, mass: float) -> Tensor:
    """Top-p: only the smallest set of most probable tokens with probability `mass` or more (Holtzman et al. 2020)."""
    ranked, order = logits.sort(stable=True, dim=-1, descending=True)  # among equals the lowest id comes first
    reached = ranked.softmax(-1).cumsum(-1) >= mass
    drop = F.pad(reached[..., :-1], (1, 0), value=False)  # those before it suffice; the first is never dropped
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)  #: S107


def filter_min_p(logits: Tensor, part: float) -> Tensor:
    """Min-p: only tokens at least `part` times as probable as the most probable one (Nguyen et al. 2024)."""
    border = math.log(part) if part else -math.inf
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + border, -torch.inf)


def filter_typical(logits: Tensor, mass: float) -> Tensor:
    """Typical sampling: only the tokens whose surprise -log p is nearest to the entropy, the smallest set with
    probability `mass` or more (Meister et al. 2023). It may leave out the most probable token."""
    logs = logits.log_softmax(-1)
    entropy = -(logs * logs.exp()).nansum(-1, keepdim=True)
    order = (-logs - entropy).abs().sort(stable=True, dim=-1).indices
    reached = logits.gather(-1, order).softmax(-1).cumsum(-1) >= mass
    drop = F.pad(reached[..., :-1], (1, 0), value=False)
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def process_logits_steps(
    logits: Tensor, c: config.SamplingParams, memory: TokenHistory = NO_HISTORY
) -> Iterator[tuple[str, Tensor]]:
    """The logits after each active processor, under its setting's name; in double precision where the device has it."""
    logits = to_double(logits)
    for name, changed in (*history_processors(c, memory), *(sampling_processors(c) if c.temperature != 0 else ())):
        logits = changed(logits)
        yield name, logits


def history_processors(c: config.SamplingParams, memory: TokenHistory) -> Iterator[tuple[str, Filter]]:
    """The processors that depend on the token history."""
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
    """The processors that shape the distribution: temperature and truncation."""
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
    """The processed logits, whose softmax is sampled."""
    left = to_double(logits)
    for _, after in process_logits_steps(logits, c, memory):
        left = after
    return left


def to_double(logits: Tensor) -> Tensor:
    return logits.to(torch.float32 if logits.device.type == "mps" else torch.float64)


def sample_tokens(
    logits: Tensor, c: config.SamplingParams, streams: list[Generator], memory: TokenHistory = NO_HISTORY
) -> Tensor:
    """Sample one id a row from (B, V); negative where there is none, so the caller need not see the logits."""
    left = process_logits(logits, c, memory)
    ids = left.argmax(-1) if c.temperature == 0 else sample_from(left.softmax(-1), streams)  #: S104
    ids = ids.masked_fill(left.amax(-1) == -torch.inf, NO_TOKEN)
    return ids.masked_fill(~logits.amax(-1).isfinite(), NOT_FINITE)


def greedy_tokens(logits: Tensor, barred: Tensor) -> Tensor:
    """The most probable id of each row (B, V) that is not barred (V,), the first of equals; NOT_FINITE where none is
    finite."""
    top, ids = logits.masked_fill(barred, -torch.inf).max(-1)
    return ids.masked_fill(~top.isfinite(), NOT_FINITE)


def sample_from(chances: Tensor, streams: list[Generator]) -> Tensor:
    """Sample one id a row by a number from its own generator: the first id whose cumulative probability exceeds it."""
    thrown = torch.stack([torch.rand(1, generator=stream, dtype=chances.dtype) for stream in streams])  # (B, 1)
    sums = chances.cumsum(-1)
    # an id of probability 0 adds nothing to the sums, so it is never chosen
    found = torch.searchsorted(sums, thrown.to(sums.device) * sums[:, -1:], right=True)
    return found[:, 0].clamp(max=chances.shape[-1] - 1)


def row_generators(seed: int, rows: int) -> list[Generator]:
    """One random generator a row: its tokens depend on the seed and the row, not on its neighbours."""
    return [Generator().manual_seed(row_seed(seed, row)) for row in range(rows)]


def row_seed(seed: int, row: int) -> int:
    """The seed of one row: a hash, since seed + row would give row 1 of seed 0 the numbers of row 0 of seed 1."""
    return int.from_bytes(hashlib.sha256(f"{seed} {row}".encode()).digest()[:7])
