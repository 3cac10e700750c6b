"""Which token comes next: filters change logits (B, V), then each row draws one of the tokens they leave.

    logits ─ repetition ─ temperature ─ top_k ─ top_p ─ min_p ─► softmax ─ draw ─► one id a row

The order is that of `transformers`. A forbidden token has logit -inf; no filter forbids the likeliest one.
"""

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import config

HOTTEST = 1e30  # from here on all allowed tokens are equally likely; at infinity -inf/inf would be no number


def repetition(logits: Tensor, penalty: float, seen: Tensor) -> Tensor:
    """Tokens `seen` (B, V) become less likely: z/penalty where z > 0, z·penalty elsewhere (Keskar et al. 2019)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def temperature(logits: Tensor, warmth: float) -> Tensor:
    """softmax(z/T): below 1 bolder, above 1 more even. The largest z becomes 0, so that no small T overflows."""
    return (logits - logits.amax(-1, keepdim=True)) / min(warmth, HOTTEST)  #: S105


def top_k(logits: Tensor, count: int) -> Tensor:
    """Only the `count` likeliest; among equals at the border the lowest ids stay, so there are never more."""
    border = logits.topk(min(count, logits.shape[-1])).values[..., -1:]
    above, level = logits > border, logits == border
    room = count - above.sum(-1, keepdim=True)
    return logits.masked_fill(~(above | level & (level.cumsum(-1) <= room)), -torch.inf)  #: S106


def top_p(logits: Tensor, mass: float) -> Tensor:
    """Only the smallest set of likeliest tokens that has probability `mass` or more (Holtzman et al. 2020)."""
    ranked, order = logits.sort(stable=True, dim=-1, descending=True)  # among equals the lowest id comes first
    reached = ranked.softmax(-1).cumsum(-1) >= mass
    drop = F.pad(reached[..., :-1], (1, 0), value=False)  # those before it suffice; nothing is before the first
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)  #: S107


def min_p(logits: Tensor, part: float) -> Tensor:
    """Only tokens at least `part` times as likely as the likeliest (Nguyen et al. 2024)."""
    border = math.log(part) if part else -math.inf
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + border, -torch.inf)


def filtered(logits: Tensor, c: config.Sampling, seen: Tensor | None = None) -> Tensor:
    """The logits that a setting samples from, in double precision where the device has it."""
    logits = logits.to(torch.float32 if logits.device.type == "mps" else torch.float64)
    if seen is not None and c.repetition != 1:
        logits = repetition(logits, c.repetition, seen)
    if c.temperature not in (0, 1):
        logits = temperature(logits, c.temperature)
    if c.top_k is not None:
        logits = top_k(logits, c.top_k)
    if c.top_p is not None and c.top_p < 1:
        logits = top_p(logits, c.top_p)
    return logits if c.min_p is None else min_p(logits, c.min_p)


def choose(logits: Tensor, c: config.Sampling, streams: list[Generator], seen: Tensor | None = None) -> Tensor:
    """(B, V) to one id a row; -1 where the logits are no numbers, which a caller can tell without another look."""
    left = filtered(logits, c, seen)
    ids = left.argmax(-1) if c.temperature == 0 else draw(left.softmax(-1), streams)  #: S104
    return ids.masked_fill(~logits.amax(-1).isfinite(), -1)


def draw(chances: Tensor, streams: list[Generator]) -> Tensor:
    """Each row's id by one number from its own stream: the first id at which the summed chances exceed it."""
    thrown = torch.stack([torch.rand(1, generator=stream, dtype=chances.dtype) for stream in streams])  # (B, 1)
    sums = chances.cumsum(-1)
    # an id of chance 0 adds nothing to the sums, so none is ever found
    found = torch.searchsorted(sums, thrown.to(sums.device) * sums[:, -1:], right=True)
    return found[:, 0].clamp(max=chances.shape[-1] - 1)


def streams(seed: int, rows: int) -> list[Generator]:
    """Random numbers for each row apart: what a row says depends on the seed and its place, not on its neighbours."""
    return [Generator().manual_seed(mixed(seed, row)) for row in range(rows)]


def mixed(seed: int, row: int) -> int:
    """A seed for one row; a hash, since seed + row would give row 1 of seed 0 the numbers of row 0 of seed 1."""
    return int.from_bytes(hashlib.sha256(f"{seed} {row}".encode()).digest()[:7])
