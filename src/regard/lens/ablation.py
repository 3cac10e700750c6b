"""Ablation of heads and layers: how much the loss rises without one head, one attention or one MLP.

    rows = ablate_all(model, loss)        `loss(model)` on data that stay the same; one call for each row, and one
    idle_heads(rows)                      the heads that do nothing
    with ablate(model, {"trunk.3.attn": [0, 2]}):
        loss(model)                       several at once

An ablated head gives zeros, or its mean, to the output projection of its layer; nothing else changes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config.errors import did_you_mean
from regard.core.hooks import HookEdit, looking
from regard.lens.attention_maps import (
    TrunkNote,
    evaluation_mode,
    find_attentions,
    find_trunks,
    record_trunk_inputs,
    unwrap_model,
)

IDLE = 0.001  # of the loss
Loss = Callable[[Any], float | Tensor]  # a number, or one for each batch: then every row has an error


@dataclass(frozen=True)
class AblationRow:
    """The loss without a head, or without all of `where` (head None); `error` is the standard error of the delta."""

    where: str
    head: int | None
    loss: float
    whole: float
    error: float = math.nan

    @property
    def delta(self) -> float:
        """What it was worth: above zero where the model is worse without."""
        return self.loss - self.whole


def ablate_all(  #: S151
    model: Any, loss: Loss, *, mean: bool = False, progress: Callable[[int, int], object] | None = None
) -> list[AblationRow]:
    """A row for every head and for every attention and feed-forward as a whole, in the order of the walk.

    `mean` puts the mean over the batch in the place of what is taken away, instead of zeros. `progress` is told how
    many of how many are done. A block that layers share is taken away from all of them at once: "trunk.*.attn".
    """
    model = unwrap_model(model)
    parts = [(where, head) for where, count in ablation_targets(model).items() for head in [*range(count), None]]
    with evaluation_mode(model):
        whole, rows = to_losses(loss(model)), []
        for done, (where, head) in enumerate(parts, 1):
            with ablate(model, {where: None if head is None else [head]}, mean=mean):
                rows.append(ablation_row(where, head, to_losses(loss(model)), whole))
            if progress is not None:
                progress(done, len(parts))
    return rows


def ablation_targets(model: Any) -> dict[str, int]:
    """Every attention and feed-forward with its number of heads, none for a feed-forward; a shared one once."""
    shared, found = {where for where, trunk in find_trunks(model).items() if trunk.c.share_layers}, {}
    counts = {where: attention.heads for where, attention in find_attentions(model).items()}
    for address in model.addresses():
        where, _, what = address.rpartition(".")
        if what == "out":
            trunk, layer, side = where.rsplit(".", 2)
            found[f"{trunk}.{'*' if trunk in shared else layer}.{side}"] = counts.get(where, 0)
    return found


def to_losses(told: float | Tensor) -> Tensor:  # (batches,)
    each = torch.as_tensor(told).detach().double().cpu()
    if each.dim() > 1 or not each.numel():
        raise config.ConfigError(f"loss: one number or one for each batch, got a tensor of shape {tuple(each.shape)}")
    return each.flatten()


def ablation_row(where: str, head: int | None, without: Tensor, whole: Tensor) -> AblationRow:
    if not bool(whole.isfinite().all()):
        raise config.RunError(f"loss: {whole.mean():g} before anything was taken away; the model or its data is broken")
    if len(without) != len(whole):
        raise config.ConfigError(f"loss: gave {len(whole)} numbers at first and then {len(without)}; fix the data")
    apart = without - whole
    error = float(apart.std() / math.sqrt(len(apart))) if len(apart) > 1 else math.nan
    return AblationRow(where, head, float(without.mean()), float(whole.mean()), error)


@contextmanager
def ablate(model: Any, heads: Mapping[str, Sequence[int] | None], *, mean: bool = False) -> Iterator[None]:
    """The model as it is without these heads of these attentions ("trunk.3.attn"); None takes the whole of it."""
    with ExitStack() as stack:
        notes: dict[str, TrunkNote] = {}
        if mean:  # a mean leaves padding out, which hooks note, and compiled code passes them over
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            notes = stack.enter_context(record_trunk_inputs(unwrap_model(model)))
        edit: HookEdit = (
            (lambda name, x: mean_over_tokens(name, x, notes)) if mean else (lambda name, x: torch.zeros_like(x))
        )
        for where, some in heads.items():
            place = f"{where}.out" if some is None else f"{where}.result"
            stack.enter_context(looking(model, place, heads=some, edit=edit))
        yield


def mean_over_tokens(name: str, x: Tensor, notes: dict[str, TrunkNote]) -> Tensor:
    """The mean over all real tokens of the batch, for each of them: x is (B, H, N, e) or (B, N, D)."""
    real = notes[name.rsplit(".", 3)[0]].tokens.is_real
    if real is None:
        return x.mean((0, -2), keepdim=True).expand_as(x)
    keep = real[:, None, :, None] if x.dim() == 4 else real[..., None]
    return ((x * keep).sum((0, -2), keepdim=True) / keep.sum((0, -2), keepdim=True).clamp(min=1)).expand_as(x)


# ---------------------------------------------------------------- what a table is good for


def noise_threshold(rows: Sequence[AblationRow]) -> float:
    """A delta below this is nothing: below a thousandth of the loss, or below what the batches can tell from nothing,
    which is the median standard error of the heads' deltas, where there are several batches.
    """
    errors = [row.error for row in rows if row.head is not None and math.isfinite(row.error)]
    least = IDLE * abs(rows[0].whole) if rows else 0.0
    return max(least, median(errors)) if errors else least


def idle_heads(rows: Sequence[AblationRow], within: float | None = None) -> list[AblationRow]:
    """The heads that do nothing: without them the loss changes by less than `within`, the threshold unless said."""
    within = noise_threshold(rows) if within is None else within
    return [row for row in rows if row.head is not None and abs(row.delta) < within]


def prunable_heads(model: Any, rows: Sequence[AblationRow], count: int | None = None) -> dict[str, list[int]]:
    """The heads among these rows that are missed least, for `prune_heads`: at most `count` of them, all unless said.

    One head stays in each attention, and heads that share keys and values go together or not at all.
    """
    chosen: dict[str, list[int]] = {}
    total, together = shared_kv_heads(unwrap_model(model), rows)
    left = sum(total.values()) if count is None else count
    for where, some in together:
        mine = chosen.get(where, [])
        if len(some) <= left and len(mine) + len(some) < total[where]:
            chosen[where], left = sorted([*mine, *some]), left - len(some)
    return chosen


def shared_kv_heads(model: Any, rows: Sequence[AblationRow]) -> tuple[dict[str, int], list[tuple[str, list[int]]]]:
    """How many heads each attention has, and which of the rows' heads share keys and values: least missed first."""
    known, units = find_attentions(model), list[tuple[float, str, list[int]]]()
    deltas = {(row.where, row.head): row.delta for row in rows if row.head is not None}
    places = dict.fromkeys(where for where, _ in deltas)
    found = {}
    for where in places:
        matching = [each for each in known if fnmatchcase(each, where)]
        if not matching:
            raise config.ConfigError(f"rows: no attention {where!r}{did_you_mean(where, known)} give rows that "
                                     "ablate_all made of this model")  # fmt: skip
        found[where] = known[matching[0]]
    for where, attention in found.items():
        for some in torch.arange(attention.heads).view(attention.kv_heads, -1).tolist():
            if all((where, head) in deltas for head in some):
                units.append((sum(deltas[where, head] for head in some), where, some))
    return {where: each.heads for where, each in found.items()}, [unit[1:] for unit in sorted(units)]
