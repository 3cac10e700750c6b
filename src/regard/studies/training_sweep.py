"""Training sweep: one function evaluated on the model at every snapshot of a run.

    sweep = sweep_training("runs/lab", lambda model: lens.logit_lens(model, "ROMEO: I"))
    for step, model in stream_models("runs/lab"): ...

Steps are those of the run's snapshots (train.snapshots) and remaining checkpoints. One model is built, and its weights
are replaced from step to step: outputs are bit-identical to loading each folder separately.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError, name_some
from regard.files.manifest import MANIFEST_NAME
from regard.hub import locate, read_folder
from regard.inference.load import folder_in_dtype, load_model
from regard.lens.result import LensResult, Picture, Table, Value

Source = str | Path | Sequence[str | Path]
Row = dict[str, Value]


@dataclass(frozen=True)
class SavedStep:
    """A training step, and the folder or id with its weights."""

    step: int
    path: str


@dataclass(frozen=True, eq=False)
class TrainingSweep(LensResult):
    """The function's value at each step: `results` are the values, `steps` the steps."""

    steps: tuple[int, ...]
    results: tuple[Any, ...]
    title: str = "Results over training"

    def map(self, function: Callable[[Any], Any], title: str | None = None) -> "TrainingSweep":
        """The sweep with a function applied to each result, for example to get a number that can be drawn."""
        return TrainingSweep(self.steps, tuple(map(function, self.results)), title or self.title)

    def table(self) -> Table:
        """One row per step for numbers; the rows of tables and lists are preceded by their step."""
        found = [(step, result_rows(result)) for step, result in zip(self.steps, self.results, strict=True)]
        columns = tuple(dict.fromkeys(name for _, rows in found for row in rows for name in row))
        rows = tuple((step, *(row.get(name) for name in columns)) for step, rows in found for row in rows)
        return Table(self.title, ("step", *columns), rows)

    def picture(self) -> Picture | None:
        """Lines over steps, if the results are numbers; steps are evenly spaced on the axis, whatever their
        distance."""
        numbers = [result_numbers(result) for result in self.results]
        if not numbers or any(each is None for each in numbers):
            return None
        names = list(dict.fromkeys(name for each in numbers for name in each or ()))
        values = torch.tensor([[(each or {}).get(name, torch.nan) for each in numbers] for name in names])
        return Picture("lines", self.title, values, names, [f"{step:,}" for step in self.steps])


def sweep_training(
    run: Source, function: Callable[[Any], Any], *, steps: Sequence[int] | None = None, title: str | None = None,
    device: str = "auto", dtype: str = "fp32", progress: Callable[[int, int], object] | None = None,
) -> TrainingSweep:  # fmt: skip
    """Evaluate a function of a model, from `regard.lens` or any other, at every saved step.

    `run` is the folder of a run, or a list of folders and hub ids ("owner/name@step1000"); `steps` selects saved steps.
    The function must not change the model. `progress` is called with the number of steps done, and of all steps.
    """
    saved, results = saved_steps(run, steps), []
    for done, (_, model) in enumerate(open_steps(saved, device, dtype), 1):
        result = function(model)
        results.append(result.detach().clone() if isinstance(result, Tensor) else result)
        if progress is not None:
            progress(done, len(saved))
    return TrainingSweep(tuple(each.step for each in saved), tuple(results), title or TrainingSweep.title)


def stream_models(
    run: Source, *, steps: Sequence[int] | None = None, device: str = "auto", dtype: str = "fp32"
) -> Iterator[tuple[int, Any]]:
    """Each saved step with its model: always the same object in evaluation mode, with other weights."""
    return open_steps(saved_steps(run, steps), device, dtype)


def open_steps(saved: Sequence[SavedStep], device: str, dtype: str) -> Iterator[tuple[int, Any]]:
    model: Any = None
    for each in saved:
        if model is None:
            model = load_model(each.path, device, dtype, weights="plain")
        else:
            replace_weights(model, each.path)
        yield each.step, model


def replace_weights(model: Any, path: str) -> None:
    """Replace a model's weights by those of a folder, in new memory: earlier results that refer to the old tensors do
    not change."""
    found = folder_in_dtype(read_folder.read_model_folder(path), next(model.parameters()).dtype, as_stored=False)
    if found.config != model.c:
        raise DataError(f"{path}: holds another model than the step before it; name steps of one training")
    for weight in model.parameters():
        weight.data = torch.empty_like(weight)
    read_folder.load_weights(model, found)
    model.source_folder = found


# ---------------------------------------------------------------- saved steps


def saved_steps(run: Source, steps: Sequence[int] | None = None) -> list[SavedStep]:
    """The steps of a run with saved weights, or those of a list of folders and ids, in order."""
    found = kept_steps(Path(run)) if isinstance(run, str | Path) else listed_steps([str(each) for each in run])
    if steps is None:
        return found
    there = {each.step: each for each in found}
    if missing := [step for step in steps if step not in there]:
        known = name_some([f"{step:,}" for step in there], 20)
        raise DataError(f"steps: {missing[0]:,} is not kept; there are {known}")
    return [there[step] for step in sorted(set(steps))]


def kept_steps(run: Path) -> list[SavedStep]:
    """The snapshots and complete checkpoints of a run; a step with both has the same weights in both."""
    whole = [each for each in (*locate.list_checkpoints(run), *locate.list_snapshots(run))
             if (each / MANIFEST_NAME).is_file()]  # fmt: skip
    if not whole:
        what = "nothing of it is kept yet" if (run / "config.toml").is_file() else "there is no run"
        raise DataError(f"{run}: {what}; name a run that was trained with train.snapshots, or a list of folders")
    by_step = {locate.folder_step(each): str(each) for each in whole}
    return [SavedStep(step, by_step[step]) for step in sorted(by_step)]


def listed_steps(paths: list[str]) -> list[SavedStep]:
    """Folders or ids by the steps that end their names ("step-000128", "name@step1000"); else by index."""
    if not paths:
        raise ConfigError("run: an empty list; name a run, or folders of models")
    found = [re.search(r"(?:step[-_]?|@)([0-9]+)$", path.rstrip("/")) for path in paths]
    if not all(found):
        return [SavedStep(place, path) for place, path in enumerate(paths)]
    steps = [SavedStep(int(each[1]), path) for each, path in zip(found, paths, strict=True) if each]
    if len({each.step for each in steps}) < len(steps):
        raise ConfigError("run: two folders of one step; name each step once")
    return sorted(steps, key=lambda each: each.step)


# ---------------------------------------------------------------- results as rows


def result_numbers(result: Any) -> dict[str, float] | None:
    """A result that is a number, or has named numbers."""
    if isinstance(result, Tensor) and result.numel() == 1:
        return {"value": result.item()}
    if isinstance(result, bool | int | float):
        return {"value": result}
    named = isinstance(result, Mapping) and bool(result)
    return dict(result) if named and all(isinstance(each, int | float) for each in result.values()) else None


def result_rows(result: Any) -> list[Row]:
    """The table rows of a result: a number, named numbers, a lens's table, records and lists of them."""
    if (numbers := result_numbers(result)) is not None:
        return [dict(numbers)]
    if isinstance(result, LensResult):
        table = result.table()
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    records = result if isinstance(result, list | tuple) else [result]
    if records and all(is_dataclass(each) for each in records):
        return [record_row(each) for each in records]
    raise ConfigError(f"the results are of type {type(result).__name__}, which has no table; read sweep.results, or "
                      "map them to numbers: sweep.map(lambda result: ...)")  # fmt: skip


def record_row(record: Any) -> Row:
    """The plain fields and properties of a record, such as a HeadSummary with its role."""
    kind = type(record)
    properties = [name for name, each in vars(kind).items() if isinstance(each, property)]
    values = {name: getattr(record, name) for name in (*(field.name for field in fields(record)), *properties)}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | None)}
