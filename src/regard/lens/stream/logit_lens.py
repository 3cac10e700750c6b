"""Logit lens: every place of the residual stream through the model's own final norm and head (nostalgebraist 2020).

    embed ─► 0.attn ─► 0.mlp ─► 1.attn ─► … ─► final        the residual stream
      │        │         │        │              │
      └────────┴─ final norm and head ───────────┴─► words, or classes: what would be predicted if the stream ended here

The last place is the model's own prediction. In a post-norm model the vectors of a place are those that came out of its
norm, and there is no final norm. The lens shows what the model's own reader finds at a place. It does not show what the
model knows there: early vectors may be written in another basis, and the answer is then nonsense or the token itself
(Belrose et al. 2023, whose tuned lens fits a map for each place); and what can be read need not be what is used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import Place, Recording, Unembedding, logit_count, recording, residual_places
from regard.lens.result import LensResult, Picture, Table, Value
from regard.lens.stream.predictions import (
    log_probabilities,
    model_log_probs,
    position_labels,
    position_slices,
    prediction_id,
    prediction_label,
    real_positions,
)
from regard.lens.stream.tuned_lens import TunedLens

NOTE = ("What the final norm and head read at a place, not what the model knows or uses there: early vectors may be "
        "written in another basis (Belrose et al. 2023).")  # fmt: skip

TABLE = 1 << 19  # numbers of one table of logits, which is read several times: what a cache holds
TOGETHER = 16  # tables made by one product: of more rows it is faster


@dataclass(frozen=True, eq=False)
class LogitLens(LensResult):
    """What is predicted at each place. P places, B rows, N positions (one for a head that pools), T tokens of the
    trunk, K top predictions, W watched ones. Entropy and KL divergence are in bits.
    """

    places: tuple[str, ...]
    positions: tuple[str, ...]  # what is read there, in the first row
    watched: tuple[str, ...]
    names: dict[int, str]  # of every id among the top ones
    top_ids: Tensor  # (P, B, N, K)
    top_probs: Tensor  # (P, B, N, K)
    watch_probs: Tensor  # (P, B, N, W)
    watch_ranks: Tensor  # (P, B, N, W) 1 is the top one; equals share the better rank
    entropy: Tensor  # (P, B, N)
    kl: Tensor  # (P, B, N) of the place from the model's own prediction: sum p log2 (p / p at the place)
    norm: Tensor  # (P, B, T) length of the vectors; at `final` after the final norm
    real: Tensor  # (B, N) False at padding
    position: int  # of the first row, that `table` is about unless said: the first mask, or the last token

    def top_words(self, row: int = 0) -> list[list[str]]:
        """The likeliest prediction at each place and position."""
        return [[self.names[best] for best in place] for place in self.top_ids[:, row, :, 0].tolist()]

    def mean_kl(self) -> Tensor:  # (P,)
        """The KL divergence of each place, over all positions that are not padding."""
        return self.kl[:, self.real].mean(1)

    def table(self, position: int | None = None, row: int = 0) -> Table:
        """The places at one position: the top predictions, entropy, divergence, length, and what is watched."""
        at = self.position if position is None else position
        if not (-len(self.positions) <= at < len(self.positions) and -len(self.real) <= row < len(self.real)):
            raise ConfigError(f"position: {at} in row {row} is not there; there are {len(self.positions)} positions in "
                              f"{len(self.real)} rows")  # fmt: skip
        label = f"{self.positions[at]!r}" if row == 0 else f"position {at} of row {row}"
        watched = (name for word in self.watched for name in (f"p({word})", f"rank({word})"))
        columns = ("place", "top", "probability", "next", "entropy (bits)", "KL to final (bits)", "norm", *watched)
        rows = tuple(self.table_row(place, row, at) for place in range(len(self.places)))
        return Table(f"What would be predicted at {label} if the model ended at each place?", columns, rows, NOTE)

    def table_row(self, place: int, row: int, at: int) -> tuple[Value, ...]:
        here = (place, row, at)
        ids, probs = self.top_ids[here].tolist(), self.top_probs[here].tolist()
        rest = ", ".join(f"{self.names[best]} {share:.2g}" for best, share in zip(ids[1:], probs[1:], strict=True))
        norms = self.norm[place, row]
        norm = norms[at] if len(norms) == len(self.positions) else norms.mean()  # a head that pools: of all tokens
        watched = zip(self.watch_probs[here].tolist(), self.watch_ranks[here].tolist(), strict=True)
        return (self.places[place], self.names[ids[0]], probs[0], rest, float(self.entropy[here]),
                float(self.kl[here]), float(norm), *(value for pair in watched for value in pair))  # fmt: skip

    def picture(self) -> Picture:
        """Places by positions of the first row: the top prediction and its probability."""
        title = "What would be predicted if the model ended at each place?"
        values, cells = self.top_probs[:, 0, :, 0], self.top_words()
        return Picture("grid", title, values, self.places, self.positions, "probability of the top prediction", cells)


def logit_lens(  #: S153
    model: Any, prompt: str | Tensor | Sequence[int] | Prompt, *, source: str | Tensor | None = None,
    pair: str | None = None, top_k: int = 5, watch: Sequence[str | int] = (), halves: bool = True,
    lens: TunedLens | None = None,
) -> LogitLens:  # fmt: skip
    """Logit lens (nostalgebraist 2020): what each place of the residual stream says through final norm and head.

    `watch` names words or classes whose probability and rank are followed; `halves` adds the places between the
    sublayers of a block. With a `lens` of `tune_lens` each place goes through its fitted map first (Belrose et al.
    2023). An encoder-decoder is read on its decoder's side, a head that pools once for the whole input. It shows what
    can be read with the model's own head, not what the model uses.
    """
    model = unwrap_model(model)
    places = [*residual_places(model, halves), Place("final", "trunk.final", model.c.trunk.depth - 1, "final")]
    check_lens_settings(model, watch, top_k, lens)
    prompt = read_prompt(model, prompt, source=source, pair=pair)
    ids = [prediction_id(model, word) for word in watch]
    with recording(model, prompt, *(place.address for place in places), deferred=True) as run:
        decode = Unembedding(model, run.tokens)
        read = read_places(decode, run, places, lens, (min(top_k, logit_count(model)), ids))
        norm = torch.stack([run.seen[place.address].norm(dim=-1).float() for place in places]).cpu()
        real = real_positions(decode).cpu()
    return LogitLens(
        places=tuple(place.name for place in places), positions=position_labels(model, prompt, real.shape[1]),
        watched=tuple(prediction_label(model, ident) for ident in ids), norm=norm, real=real,
        names={best: prediction_label(model, best) for best in read["top_ids"].unique().tolist()},
        position=usual_position(model, prompt, real), **read,
    )  # fmt: skip


def check_lens_settings(model: Any, watch: Sequence[str | int], top_k: int, lens: TunedLens | None) -> None:
    if logit_count(model) < 2:
        raise ConfigError("head: this model predicts one number, and there is no distribution to decode")
    if isinstance(watch, str):
        raise ConfigError(f"watch: {watch!r} is one word; give a list of them")
    if top_k < 1:
        raise ConfigError(f"top_k: {top_k} returns no token; choose one or more")
    if lens is not None:
        lens.check(model)


def read_places(
    decode: Unembedding, run: Recording, places: list[Place], lens: TunedLens | None, wanted: tuple[int, list[int]]
) -> dict[str, Tensor]:
    """The numbers of LogitLens by name (P, B, N, …); a few positions of logits at a time."""
    parts, buffer = list[dict[str, Tensor]](), list[Tensor]()
    for part in position_slices(decode, TABLE):
        final = model_log_probs(run, part)
        tables = decode_places(decode, run, places[:-1], lens, part, buffer)
        own = final.exp()
        found = [describe_prediction(here, final, own, *wanted) for here in chain(tables, [final])]
        parts.append({name: torch.stack([each[name] for each in found]) for name in found[0]})
    return {name: torch.cat([each[name] for each in parts], 2).cpu() for name in parts[0]}


def decode_places(
    decode: Unembedding, run: Recording, places: list[Place], lens: TunedLens | None, part: slice, buffer: list[Tensor]
) -> Iterator[Tensor]:
    """Log-probabilities (B, n, V) at some positions of each place; several places in one matrix product."""
    together = 1 if decode.pools else TOGETHER
    for start in range(0, len(places), together):
        some = [(place.name, run.seen[place.address][:, part]) for place in places[start : start + together]]
        x = torch.cat([vectors if lens is None else lens.translate(name, vectors) for name, vectors in some])
        for logits in decode_into(buffer, decode, x).chunk(len(some)):
            yield log_probabilities(logits)


def decode_into(buffer: list[Tensor], decode: Unembedding, x: Tensor) -> Tensor:  # (B, n, V)
    """Logits over words in a table that is written again and again: it is large, and new memory is slow."""
    factors = decode.factors(x)
    if factors is None:
        return decode(x)
    rows = factors.x.flatten(0, 1)
    if not buffer or len(buffer[0]) < len(rows):
        buffer[:] = [rows.new_empty(len(rows), len(factors.weight))]
    logits: Tensor = torch.mm(rows, factors.weight.mT, out=buffer[0][: len(rows)]).unflatten(0, x.shape[:2])
    return logits if factors.bias is None else logits.add_(factors.bias)


def describe_prediction(here: Tensor, final: Tensor, own: Tensor, top_k: int, watch: list[int]) -> dict[str, Tensor]:
    """The numbers of one place from its log-probabilities, and the model's own with their exponentials (B, N, V)."""
    probs = here.exp()
    top = probs.topk(top_k)
    ranks = [(here > here[..., ident, None]).sum(-1) + 1 for ident in watch]
    return {
        "top_ids": top.indices,
        "top_probs": top.values,
        "watch_probs": probs[..., watch],
        "watch_ranks": torch.stack(ranks, -1) if ranks else top.indices[..., :0],
        "entropy": -torch.linalg.vecdot(probs, here) / log(2),
        "kl": torch.linalg.vecdot(own, final - here).clamp(min=0) / log(2),
    }


def usual_position(model: Any, prompt: Prompt, real: Tensor) -> int:
    """The first mask token of the first row, or else its last token."""
    mask = getattr(getattr(model, "output_tokenizer", None), "special_ids", {}).get("mask")
    if mask is not None and prompt.first.dim() == 2 and prompt.first.shape[1] == real.shape[1]:
        found = (prompt.first[0] == mask).nonzero()
        if len(found):
            return int(found[0])
    return int(real[0].nonzero().max())
