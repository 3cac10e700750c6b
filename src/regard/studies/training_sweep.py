"""Training sweep: one function asked of the model at every kept step of a run.

    sweep = sweep_training("runs/lab", lambda model: lens.logit_lens(model, "ROMEO: I"))
    for step, model in stream_models("runs/lab"): ...

What is kept of a run are its snapshots (train.snapshots) and those checkpoints that are there. One model is built, and
its weights are replaced from step to step: it answers as the model of each folder alone would, to the bit.
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
    """A step of a training, and the folder or id with its weights."""

    step: int
    path: str


@dataclass(frozen=True, eq=False)
class TrainingSweep(LensResult):
    """What a function found at each step: `results` are what it returned, `steps` where."""

    steps: tuple[int, ...]
    results: tuple[Any, ...]
    title: str = "What becomes of it over training?"

    def map(self, function: Callable[[Any], Any], title: str | None = None) -> "TrainingSweep":
        """The sweep of what a function makes of each result: a number can be drawn."""
        return TrainingSweep(self.steps, tuple(map(function, self.results)), title or self.title)

    def table(self) -> Table:
        """A row for each step of numbers; of tables and lists their own rows, each with its step."""
        found = [(step, result_rows(result)) for step, result in zip(self.steps, self.results, strict=True)]
        columns = tuple(dict.fromkeys(name for _, rows in found for row in rows for name in row))
        rows = tuple((step, *(row.get(name) for name in columns)) for step, rows in found for row in rows)
        return Table(self.title, ("step", *columns), rows)

    def picture(self) -> Picture | None:
        """Lines over steps, where the results are numbers; the steps stand side by side, however far apart."""
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
    """What a function of a model, of `regard.lens` or any other, returns at every kept step.

    `run` is the folder of a run, or a list of folders and hub ids ("owner/name@step1000"); `steps` chooses among those
    that are kept. The function leaves the model as it found it. `progress` hears how many steps are done, of how many.
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
    """Each kept step with the model at it: always the same object, in evaluation mode, with other weights."""
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
    """The weights of a folder in place of a model's own. They take memory of their own: what was computed from the old
    ones, and still refers to them, stays what it was."""
    found = folder_in_dtype(read_folder.read_model_folder(path), next(model.parameters()).dtype, as_stored=False)
    if found.config != model.c:
        raise DataError(f"{path}: holds another model than the step before it; name steps of one training")
    for weight in model.parameters():
        weight.data = torch.empty_like(weight)
    read_folder.load_weights(model, found)
    model.source_folder = found


# ---------------------------------------------------------------- which steps there are


def saved_steps(run: Source, steps: Sequence[int] | None = None) -> list[SavedStep]:
    """The steps of a run whose weights are there, or those of a list of folders and ids, in order."""
    found = kept_steps(Path(run)) if isinstance(run, str | Path) else listed_steps([str(each) for each in run])
    if steps is None:
        return found
    there = {each.step: each for each in found}
    if missing := [step for step in steps if step not in there]:
        known = name_some([f"{step:,}" for step in there], 20)
        raise DataError(f"steps: {missing[0]:,} is not kept; there are {known}")
    return [there[step] for step in sorted(set(steps))]


def kept_steps(run: Path) -> list[SavedStep]:
    """The snapshots and the whole checkpoints of a run; a step that has both has the same weights in both."""
    whole = [each for each in (*locate.list_checkpoints(run), *locate.list_snapshots(run))
             if (each / MANIFEST_NAME).is_file()]  # fmt: skip
    if not whole:
        what = "nothing of it is kept yet" if (run / "config.toml").is_file() else "there is no run"
        raise DataError(f"{run}: {what}; name a run that was trained with train.snapshots, or a list of folders")
    by_step = {locate.folder_step(each): str(each) for each in whole}
    return [SavedStep(step, by_step[step]) for step in sorted(by_step)]


def listed_steps(paths: list[str]) -> list[SavedStep]:
    """Folders or ids by the steps that end their names ("step-000128", "name@step1000"); else by their place."""
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
    """A result that is a number or has numbers by their names."""
    if isinstance(result, Tensor) and result.numel() == 1:
        return {"value": result.item()}
    if isinstance(result, bool | int | float):
        return {"value": result}
    named = isinstance(result, Mapping) and bool(result)
    return dict(result) if named and all(isinstance(each, int | float) for each in result.values()) else None


def result_rows(result: Any) -> list[Row]:
    """The rows that a result has of a table: a number, numbers by name, a lens's table, records and lists of them."""
    if (numbers := result_numbers(result)) is not None:
        return [dict(numbers)]
    if isinstance(result, LensResult):
        table = result.table()
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    records = result if isinstance(result, list | tuple) else [result]
    if records and all(is_dataclass(each) for each in records):
        return [record_row(each) for each in records]
    raise ConfigError(f"the results are of type {type(result).__name__}, which has no table; read sweep.results, or "
                      "make numbers of them: sweep.map(lambda result: ...)")  # fmt: skip


def record_row(record: Any) -> Row:
    """The plain fields and properties of a record, such as a HeadSummary with its role."""
    kind = type(record)
    properties = [name for name, each in vars(kind).items() if isinstance(each, property)]
    values = {name: getattr(record, name) for name in (*(field.name for field in fields(record)), *properties)}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | None)}
