"""Neurons over a corpus: the tokens in context that activate each feed-forward unit most, and how often it is alive.

    found = find_top_examples(model, texts)               every unit of every feed-forward layer
    found.examples("trunk.1.mlp.hidden", 17)              its strongest tokens, strongest first
    find_top_examples(model, texts, where="trunk.1.residual", direction=v)     a direction of the residual stream

A streaming top-k: memory is units x top_k, however long the corpus is. Top examples show where a unit is strongest, not
what it does elsewhere: units that look clean at the top are often mixed below it (Bolukbasi et al. 2021), and one unit
may serve several features (Elhage et al. 2022).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, RunError
from regard.lens.activation_stream import BatchTokens, Progress, Text, find_addresses, stream_activations
from regard.lens.attention_maps import unwrap_model
from regard.lens.result import LensResult, Table

NOTHING = -1  # the id of a place beyond the ends of a text
EMPTY = torch.iinfo(torch.int64).min
LOW = (1 << 32) - 1


@dataclass(frozen=True)
class TokenExample:
    """A token in context, and the unit's activation there; `text` and `position` say where in the corpus it is."""

    value: float
    before: str
    token: str
    after: str
    text: int
    position: int

    def __str__(self) -> str:
        word = self.token.lstrip() or self.token
        return f"{self.before}{self.token.removesuffix(word)}«{word}»{self.after}"


@dataclass(frozen=True, eq=False)
class NeuronExamples(LensResult):
    """A row for each of U units, the k strongest tokens first; fewer than top_k where the corpus has fewer.

    `alive` is the share of tokens at which a unit is above zero. Of units that are often below zero (a gated
    feed-forward, a direction) it says no more than the sign.
    """

    addresses: tuple[str, ...]  # (U,)
    units: tuple[int, ...]  # (U,)
    values: Tensor  # (U, k)
    texts: Tensor  # (U, k)
    positions: Tensor  # (U, k)
    contexts: Tensor  # (U, k, 2·context + 1) ids, -1 beyond the ends
    alive: Tensor  # (U,)
    mean: Tensor  # (U,)
    std: Tensor  # (U,)
    tokens: int  # that were read, without padding
    tokenizer: Any = None

    def row(self, address: str, unit: int) -> int:
        """The row of a unit."""
        for row, known in enumerate(zip(self.addresses, self.units, strict=True)):
            if known == (address, unit):
                return row
        raise ConfigError(f"unit {unit} at {address} is not among these {len(self.units)}, which are of "
                          f"{', '.join(dict.fromkeys(self.addresses))}")  # fmt: skip

    def examples(self, address: str, unit: int) -> list[TokenExample]:
        """The tokens that activate a unit most, strongest first."""
        row = self.row(address, unit)
        return [self.example(row, i) for i in range(self.values.shape[1])]

    def example(self, row: int, i: int) -> TokenExample:
        ids, middle = self.contexts[row, i].tolist(), self.contexts.shape[2] // 2
        before, after = (self.write([id for id in part if id != NOTHING]) for part in (ids[:middle], ids[middle + 1 :]))
        token = f"token {int(self.positions[row, i])}" if ids[middle] == NOTHING else self.write([ids[middle]])
        numbers = int(self.texts[row, i]), int(self.positions[row, i])
        return TokenExample(float(self.values[row, i]), before, token, after, *numbers)

    def write(self, ids: list[int]) -> str:
        """Ids as people read them."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return str(self.tokenizer.decode(ids)) or " ".join(map(self.tokenizer.token_text, ids))

    def table(self, most: int = 20) -> Table:
        """The `most` units that stand out farthest at their strongest token, in their own standard deviations."""
        peak = ((self.values[:, 0].double() - self.mean) / self.std.clamp(min=1e-12)).nan_to_num()
        rows = tuple(
            (self.addresses[row], self.units[row], float(self.alive[row]), float(self.mean[row]), float(self.std[row]),
             float(self.values[row, 0]), str(self.example(row, 0)).replace("\n", "⏎"))
            for row in peak.sort(descending=True, stable=True).indices[:most].tolist()
        )  # fmt: skip
        return Table("What activates the units most?", ("address", "unit", "alive", "mean", "std", "top", "example"),
                     rows, f"{len(rows)} of {len(self.units):,} units, {self.tokens:,} tokens. The strongest examples "
                     "do not show what a unit does at weaker activations.")  # fmt: skip


def find_top_examples(  #: S154
    model: Any, texts: Text | Iterable[Text], *, where: str = "trunk.*.mlp.hidden", units: Sequence[int] | None = None,
    direction: Tensor | None = None, top_k: int = 10, context: int = 8, progress: Progress | None = None,
) -> NeuronExamples:  # fmt: skip
    """Maximally activating tokens: for each unit at `where`, the top_k tokens of a corpus, with alive share and mean.

    `direction` (D,) or (K, D) reads projections of the vectors there instead of single units. `context` tokens are
    kept on either side. Equal activations are listed in the order of the corpus; padding never counts.
    """
    model = unwrap_model(model)
    if top_k < 1 or context < 0:
        raise ConfigError(f"top_k {top_k}, context {context}: expected at least one example, and no context below 0")
    addresses, known = find_addresses(model, where), dict[str, UnitStats]()
    rays = None if direction is None else torch.atleast_2d(direction).detach().float()

    def read(address: str, x: Tensor, tokens: BatchTokens) -> None:
        real = tokens.real.to(x.device)
        values = select_units(address, x[real].float(), units, rays)  # (M, U)
        if not bool(values.isfinite().all()):
            raise RunError(f"{address}: activations are not finite; the model's weights are damaged")
        if address not in known:
            known[address] = UnitStats(values.shape[1], top_k, 2 * context + 1)
        known[address].update(values.cpu(), token_contexts(tokens, context))

    stream_activations(model, texts, addresses, read, progress=progress)
    picked = {address: known[address] for address in addresses if address in known}
    reads = "tokenizer" if addresses[0].startswith("encoder") else "output_tokenizer"
    return join_stats(picked, units, getattr(model, reads, None))


def select_units(address: str, x: Tensor, units: Sequence[int] | None, rays: Tensor | None) -> Tensor:
    """(M, D) to the activations (M, U) that are wanted."""
    if rays is not None:
        if rays.shape[1] != x.shape[1]:
            raise ConfigError(f"direction: {rays.shape[1]} numbers, and the vectors at {address} have {x.shape[1]}")
        x = x @ rays.to(x.device).mT
    wrong = [unit for unit in units or () if not 0 <= unit < x.shape[1]]
    if wrong or (units is not None and not len(units)):
        raise ConfigError(f"units: {wrong or 'none given'}; {address} has units 0 to {x.shape[1] - 1}")
    return x if units is None else x[:, list(units)]


def token_contexts(tokens: BatchTokens, context: int) -> Tensor:
    """For each real token (M of them) its text, its place there, and the ids around it: (M, 2 + 2·context + 1)."""
    real, (B, N) = tokens.real, tokens.real.shape
    ids = torch.full((B, N), NOTHING) if tokens.ids is None else tokens.ids.masked_fill(~real, NOTHING)
    around = F.pad(ids.int(), (context, context), value=NOTHING).unfold(1, 2 * context + 1, 1)  # (B, N, W)
    place = tokens.start[:, None] + real.cumsum(1) - 1
    text = tokens.text[:, None].expand(B, N)
    return torch.cat([torch.stack([text, place], -1).int()[real], around[real]], 1)


def join_stats(known: "dict[str, UnitStats]", units: Sequence[int] | None, tokenizer: Any) -> NeuronExamples:
    stats = list(known.values())
    kept = min(stats[0].top.keys.shape[1], *(each.count for each in stats))
    place = torch.cat([each.top.context[:, :kept] for each in stats])
    sizes = [(address, len(each.mean)) for address, each in known.items()]
    return NeuronExamples(
        addresses=tuple(address for address, size in sizes for _ in range(size)),
        units=tuple(unit for _, size in sizes for unit in (range(size) if units is None else units)),
        values=torch.cat([each.top.values()[:, :kept] for each in stats]),
        texts=place[..., 0], positions=place[..., 1], contexts=place[..., 2:],
        alive=torch.cat([each.above / each.count for each in stats]), mean=torch.cat([each.mean for each in stats]),
        std=torch.cat([(each.squares / each.count).sqrt() for each in stats]), tokens=stats[0].count,
        tokenizer=tokenizer,
    )  # fmt: skip


# ---------------------------------------------------------------- statistics of a stream


class UnitStats:
    """What is known so far of the units at one address: moments by the formula of Chan et al. (1979), and the top."""

    def __init__(self, units: int, top_k: int, width: int) -> None:
        self.count, self.top = 0, RunningTop(units, top_k, width)
        self.above, self.mean, self.squares = (torch.zeros(units, dtype=torch.float64) for _ in range(3))

    def update(self, values: Tensor, contexts: Tensor) -> None:  # (M, U), (M, 2 + W)
        if not (new := len(values)):
            return
        self.top.update(values, contexts, self.count)
        mean = values.mean(0, dtype=torch.float64)
        squares = (values - mean).square().sum(0)  # fp64, since the mean is
        apart, total = mean - self.mean, self.count + new
        self.squares += squares + apart.square() * (self.count * new / total)
        self.mean += apart * (new / total)
        self.above += (values > 0).sum(0)
        self.count = total


class RunningTop:
    """The k largest values of each unit so far, with what is said of their tokens: memory of units x k.

    A key is the value in its upper half and the place in the corpus, counted down, in its lower: all keys differ, so
    equal values have one order, that of the corpus, whatever the device's top-k does with ties.
    """

    def __init__(self, units: int, k: int, width: int) -> None:
        self.keys = torch.full((units, k), EMPTY)  # int64
        self.context = torch.full((units, k, 2 + width), NOTHING, dtype=torch.int32)

    def update(self, values: Tensor, contexts: Tensor, before: int) -> None:
        """M more tokens, after so many that came before."""
        k, keys = self.keys.shape[1], order_keys(values.mT.contiguous(), before)  # (U, M)
        new = keys.topk(min(k, keys.shape[1]))
        best = torch.cat([self.keys, new.values], 1).topk(k)
        changed = (best.indices >= k).any(1).nonzero()[:, 0]
        every = torch.cat([self.context[changed], contexts[new.indices[changed]]], 1)
        at = best.indices[changed][..., None].expand(-1, -1, every.shape[2])
        self.context[changed], self.keys = every.gather(1, at), best.values

    def values(self) -> Tensor:
        """(U, k), largest first."""
        rank = (self.keys >> 32).int()
        return (rank ^ ((rank >> 31) & 0x7FFFFFFF)).view(torch.float32)


def order_keys(values: Tensor, before: int) -> Tensor:
    """Integers in the order of the values (…, M), of equal ones the earlier token's larger."""
    bits = (values.float() + 0.0).view(torch.int32)  # + 0.0: there is one zero
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the bits of negative numbers count the other way
    place = torch.arange(before, before + values.shape[-1])
    return (rank.long() << 32) + (LOW - place)
