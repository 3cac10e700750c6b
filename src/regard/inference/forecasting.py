"""How a table of the user's goes on: its last rows read, the next ones told, with the dates they will have."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard import config, data
from regard.config import ConfigError, DataError
from regard.data.series import Clock, Series, read_series
from regard.data.sources import few
from regard.generate.model import Transformer


@dataclass(frozen=True, eq=False)
class Outlook:
    """The next rows of a series: (horizon, columns), in the columns' own units."""

    names: tuple[str, ...]
    values: Tensor
    rows: int  # that the series has
    clock: Clock | None = None
    date: str = ""

    def header(self) -> list[str]:
        return [*([self.date] if self.clock is not None else []), *self.names]

    def lines(self) -> Iterator[list[str | float]]:
        """A row each, its date first where rows have one."""
        for place, row in enumerate(self.values.tolist()):
            yield [*([self.clock.at(self.rows + place)] if self.clock is not None else []), *row]


def forecast(model: Transformer, source: str | Path, **settings: object) -> Outlook:
    """What comes after the last row of a table; `settings` are those of task forecast that differ from training's."""
    front, task = asked(model)
    task = config.make(config.Forecast, {**config.tree(task), **settings}, "task")
    how = config.Data(source=str(source), validation=0.0)
    found = data.tables(how.sources, how)
    if len(found) != 1:
        raise DataError(f"{few([table.name for table in found])}: {len(found)} tables; a series is one, so name that "
                        "alone")  # fmt: skip
    series = known(read_series(found[0], task), front)
    rows = series.values[-front.length :].to(next(model.parameters()).device)
    with torch.no_grad():
        said = model(rows[None])[0].cpu()
    return Outlook(series.names, said, len(series), series.clock, task.date or "")


def asked(model: Transformer) -> tuple[config.Series, config.Forecast]:
    """What a model reads and how it was asked, if it tells how series go on."""
    front, task = model.c.embed, model.task or config.Forecast()
    if not isinstance(front, config.Series) or not isinstance(model.c.head, config.Horizon):
        raise ConfigError(f"this model reads {front.kind!r} with a head of kind {model.c.head.kind!r}; a forecast "
                          "takes a model trained with task.kind=forecast")  # fmt: skip
    assert isinstance(task, config.Forecast)
    return front, task


def known(series: Series, front: config.Series) -> Series:
    """The series, if it is one that the model can read."""
    if front.names and series.names != front.names:
        raise DataError(f"{series.name}: columns {', '.join(series.names)}, and the model was trained on "
                        f"{', '.join(front.names)}; name these in this order by task.columns")  # fmt: skip
    if len(series) < front.length:
        raise DataError(f"{series.name}: {len(series):,} rows, and the model reads {front.length:,}; name a longer one")
    return series
