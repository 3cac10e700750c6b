"""Forecasting: predicts the next rows of a table from its last ones, with their dates."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config, data
from regard.config.errors import ConfigError, DataError
from regard.data.readers.time_series import TimeAxis, TimeSeries, read_series
from regard.data.sources import name_sources
from regard.inference.batching import run_batched
from regard.inference.model import Model


@dataclass(frozen=True, eq=False)
class ForecastResult:
    """The forecast of a series: (horizon, columns), in the columns' own units."""

    names: tuple[str, ...]
    values: Tensor
    rows: int  # rows of the given series
    clock: TimeAxis | None = None
    date: str = ""

    def header(self) -> list[str]:
        return [*([self.date] if self.clock is not None else []), *self.names]

    def lines(self) -> Iterator[list[str | float]]:
        """The rows of the forecast, each with its date first if the series has dates."""
        for place, row in enumerate(self.values.tolist()):
            yield [*([self.clock.at(self.rows + place)] if self.clock is not None else []), *row]


def forecast_table(model: Model, table: Any, **settings: object) -> ForecastResult:
    """Forecast the rows after the last one of a table: a file, or numbers (rows, columns); `settings` override those of
    the training task."""
    front, task = forecast_config(model)
    settings = config.canonical_tree(config.Forecasting, settings)
    task = config.from_dict(config.Forecasting, {**config.to_dict(task), **settings}, "task")
    is_file = isinstance(table, str | Path)
    if settings and not is_file:
        raise ConfigError(f"{next(iter(settings))}: a setting for files, and numbers are given; leave it out")
    series = check_series(read_table(str(table), task) if is_file else series_of_numbers(table, front), front)
    device = next(model.parameters()).device
    [said] = run_batched(model, [series.values[-front.length :]], [[0]],
                         lambda windows: model(torch.stack(windows).to(device)).cpu())  # fmt: skip
    return ForecastResult(series.names, said.clone(), len(series), series.clock, task.date_column or "")


def read_table(source: str, task: config.Forecasting) -> TimeSeries:
    how = config.Data(source=source, validation=0.0)
    found = data.find_records(how.sources, how)
    if len(found) != 1:
        raise DataError(f"{name_sources([table.name for table in found])}: {len(found)} tables; a series is one, so "
                        "name that alone")  # fmt: skip
    return read_series(found[0], task)


def series_of_numbers(table: Any, front: config.SeriesEmbedding) -> TimeSeries:
    """A series from rows of numbers, in the columns of training, without dates."""
    try:
        values = (table if isinstance(table, Tensor) else torch.tensor(table)).float()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"table: {table!r:.60} is no table; give the path of a file, or rows of numbers") from None
    values = values[:, None] if values.dim() == 1 else values
    if values.dim() != 2 or values.shape[1] != front.channels:
        raise DataError(f"table: numbers of the shape {tuple(values.shape)}, expected (rows, {front.channels})")
    if not bool(values.isfinite().all()):
        raise DataError("table: a number is missing or infinite; fill the gap")
    return TimeSeries("table", front.channel_names or tuple(map(str, range(front.channels))), values)


def forecast_config(model: Model) -> tuple[config.SeriesEmbedding, config.Forecasting]:
    """The front end and the task of a forecasting model; refuses any other model."""
    front, task = model.c.embed, model.task or config.Forecasting()
    if not isinstance(front, config.SeriesEmbedding) or not isinstance(model.c.head, config.ForecastHead):
        raise ConfigError(f"this model reads {front.kind!r} with a head of kind {model.c.head.kind!r}; a forecast "
                          "takes a model trained with task.kind=forecasting")  # fmt: skip
    assert isinstance(task, config.Forecasting)
    return front, task


def check_series(series: TimeSeries, front: config.SeriesEmbedding) -> TimeSeries:
    """Check that the model can read the series: its columns and its length."""
    if front.channel_names and series.names != front.channel_names:
        raise DataError(f"{series.name}: columns {', '.join(series.names)}, and the model was trained on "
                        f"{', '.join(front.channel_names)}; name these in this order by task.columns")  # fmt: skip
    if len(series) < front.length:
        raise DataError(f"{series.name}: {len(series):,} rows, and the model reads {front.length:,}; name a longer one")
    return series
