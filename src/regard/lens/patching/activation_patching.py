"""Activation patching: which activation of a clean run restores what a corrupted one lost (Zhang and Nanda 2024).

    result = patch_activations(model, "When John and Mary went out, John gave it to",
                                      "When John and Mary went out, Mary gave it to",
                               metric=logit_difference(" Mary", " John"), parts=("residual", "heads"))
    result.effect("heads")          (attentions, heads): 0 is the corrupted run, 1 is the clean one

What a patch restores says where the difference between the two prompts passes, not where the model computes the
answer from what they share; parts that stand in for each other each restore it alone. Encoder-decoders have the
places of both sides. Letters: R patches in one batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.attention_maps import evaluation_mode, unwrap_model
from regard.lens.patching.logit_metrics import BoundMetric, LogitFunction, LogitMetric, bind_metric, run_metric
from regard.lens.patching.patch_targets import PatchTarget, check_pair, patch_targets
from regard.lens.patching.patched_runs import BATCH_TOKENS, PatchedRuns, Progress, record_activations, replace_where
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import find_trunk
from regard.lens.result import LensResult, Picture, Table, Value

Direction = Literal["denoise", "noise"]
LATER = 8  # a batch of patches that begin at one position is so much smaller: positions in between are run for nothing
MOST_ROWS = 20  # of a printed table


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """The patches of one part: the metric for each row (a place) and column (a position or a head)."""

    part: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    raw: Tensor  # (rows, columns); nan where there is no such head

    def column(self, j: int) -> str:
        """A column in a list: the same token may stand at several positions."""
        return self.columns[j] if self.columns[j] == str(j) else f"{j} {self.columns[j]}"


@dataclass(frozen=True, eq=False)
class PatchingResult(LensResult):
    """The metric with every patch; `clean` and `corrupted` are the two runs without any."""

    metric: str
    direction: Direction
    clean: float
    corrupted: float
    grids: tuple[PatchGrid, ...]

    title = "Which activation carries the difference between the two prompts?"

    def grid(self, part: str) -> PatchGrid:
        """The grid of a part; of an encoder-decoder's encoder "encoder.residual", and so on."""
        for grid in self.grids:
            if part in (grid.part, f"trunk.{grid.part}"):
                return grid
        raise ConfigError(f"part: no {part!r} here; there are {', '.join(grid.part for grid in self.grids)}")

    def effect(self, part: str) -> Tensor:
        """(rows, columns): 0 where the metric is that of the corrupted run, 1 where it is that of the clean one."""
        return self.normalize(self.grid(part).raw)

    def change(self, part: str) -> Tensor:
        """(rows, columns): the metric less that of the run that was patched, in its own units."""
        return self.grid(part).raw - (self.corrupted if self.direction == "denoise" else self.clean)

    def normalize(self, raw: Tensor) -> Tensor:
        gap = self.clean - self.corrupted
        return (raw - self.corrupted) / gap if gap else torch.full_like(raw, math.nan)

    @property
    def note(self) -> str:
        runs = f"{self.metric}: clean {self.clean:.4g}, corrupted {self.corrupted:.4g}, direction {self.direction}."
        if self.clean == self.corrupted:
            return f"{runs} Both runs have the same value, so there is no effect to speak of."
        return f"{runs} Where a difference passes, not where it is made; parts that stand in for each other each count."

    def table(self, most: int | None = MOST_ROWS) -> Table:
        """The largest changes first, at most so many; None for all."""
        found: list[tuple[Value, ...]] = []
        for grid in self.grids:
            effects, changes = self.effect(grid.part), self.change(grid.part)
            found += [
                (grid.part, grid.rows[i], grid.column(j), float(grid.raw[i, j]), float(effects[i, j]),
                 float(changes[i, j]))
                for i, j in (~grid.raw.isnan()).nonzero().tolist()
            ]  # fmt: skip
        found.sort(key=lambda row: -abs(float(row[5] or 0)))
        return Table(self.title, ("part", "place", "at", "metric", "effect", "change"), tuple(found[:most]), self.note)

    def to_json(self) -> dict[str, Any]:
        return self.table(None).to_json()

    def picture(self, part: str | None = None) -> Picture:
        """The effects of a part, the first unless given, as a grid."""
        grid = self.grid(part) if part else self.grids[0]
        center = 0.0 if self.direction == "denoise" else 1.0
        effects = self.effect(grid.part)
        return Picture("grid", f"{self.title} ({grid.part})", effects, grid.rows, grid.columns,
                       f"share of the {self.metric} restored", center=center)  # fmt: skip


def patch_activations(
    model: Any, clean: str | Tensor | Sequence[int] | Prompt, corrupted: str | Tensor | Sequence[int] | Prompt, *,
    metric: LogitMetric | LogitFunction, parts: Sequence[str] = ("residual",), direction: Direction = "denoise",
    batch_tokens: int = BATCH_TOKENS, progress: Progress | None = None,
) -> PatchingResult:  # fmt: skip
    """Activation patching: run one prompt with one activation after the other taken from the other prompt.

    parts        residual, attn, cross, mlp: each place and position; heads: each head at all positions at once;
                 head_positions: each head at each position. "encoder.mlp" is one side alone, "mlp" is both
    direction    "denoise" puts clean activations into the corrupted run, "noise" corrupted ones into the clean run

    All patches of an address go in one batch of at most `batch_tokens` tokens, or in several; `progress(done, total)`
    counts patches. Rows of a prompt are pairs of one experiment: the metric is averaged over them.
    """
    model, given, base = read_pair(model, clean, corrupted, direction)
    bound = bind_metric(model, base, metric)
    targets = patch_targets(model, base, parts)
    runs = PatchedRuns(model, base, bound, batch_tokens=batch_tokens, progress=progress)
    runs.total = sum(target.count for places in targets.values() for target in places)
    ends = metric_ends(model, given, bound, float(runs.value.mean()), direction)
    grids = []
    for part, places in targets.items():
        values = record_activations(model, given, *(target.address for target in places))
        grids.append(stack_grid(part, places, [patch_places(runs, target, values) for target in places]))
    return PatchingResult(bound.name, direction, *ends, tuple(grids))


def read_pair(model: Any, clean: Any, corrupted: Any, direction: str) -> tuple[Any, Prompt, Prompt]:
    """The model itself, the prompt that gives activations and the one that is run with them; refuses other pairs."""
    if direction not in ("denoise", "noise"):
        raise ConfigError(f"direction: {direction!r} is neither 'denoise' (clean into corrupted) nor 'noise'")
    find_trunk(model)
    clean, corrupted = read_prompt(model, clean), read_prompt(model, corrupted)
    check_pair(clean, corrupted)
    labels, sources = (
        tuple(x if x == y else f"{x}/{y}" for x, y in zip(*pair, strict=True))  # clean/corrupted
        for pair in ((clean.labels, corrupted.labels), (clean.source_labels, corrupted.source_labels))
    )
    given, base = (clean, corrupted) if direction == "denoise" else (corrupted, clean)
    return unwrap_model(model), given, replace(base, labels=labels, source_labels=sources)


def metric_ends(model: Any, given: Prompt, metric: BoundMetric, own: float, direction: str) -> tuple[float, float]:
    """The metric of the clean and of the corrupted run, one of which is known: `own`, of the run that is patched."""
    with evaluation_mode(model):
        other = float(run_metric(model, given, metric).double().mean())
    return (other, own) if direction == "denoise" else (own, other)


def patch_places(runs: PatchedRuns, target: PatchTarget, values: dict[str, Tensor]) -> Tensor:  # (patches,)
    """The metric with each patch of one address."""
    value, address = values[target.address], target.address
    first, count = runs.first_block(address), value.shape[-2]
    if not address.startswith("trunk.") or target.shape[-1] != count or count == 1 or runs.keys is None:
        edits = lambda rows: {address: replace_where(value, target.where(rows))}  # noqa: E731
        return runs.measure(target.count, edits, first).mean(1)
    found = value.new_empty(target.count, dtype=torch.float64)
    for start, group in target.position_groups(runs.batch_tokens // (LATER * len(value))):
        for cells in group.split(max(1, runs.batch_tokens // (len(value) * (count - start)))):
            edit = replace_where(value[..., start:, :], target.where(cells, value.device)[..., start:])
            found[cells.to(found.device)] = runs.measure_from(start, len(cells), {address: edit}, first).mean(1)
    return found


def stack_grid(part: str, targets: list[PatchTarget], values: list[Tensor]) -> PatchGrid:
    """The addresses of a part below each other; layers may have different numbers of heads."""
    columns = max((target.columns for target in targets), key=len)
    raw = torch.full((sum(len(target.rows) for target in targets), len(columns)), math.nan, dtype=torch.float64)
    row = 0
    for target, value in zip(targets, values, strict=True):
        raw[row : row + len(target.rows), : len(target.columns)] = value.cpu().view(len(target.rows), -1)
        row += len(target.rows)
    return PatchGrid(part, tuple(row for target in targets for row in target.rows), columns, raw)
