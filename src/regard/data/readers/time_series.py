"""Time series: a table with a time axis, one row per time step, gaps filled; and forecast windows over it.

    date                 load   oil         a window: `length` rows to read, `horizon` rows to predict
    2016-07-01 00:00:00  5.827  30.531      │ read read read read │ pred pred │
    2016-07-01 01:00:00  5.693  27.787           │ read read read read │ pred pred │

Rows are evenly spaced in seconds, months (dates that differ only in the month), or numbers. A gap, that is an empty
cell or a missing row, is reported with its line, or filled. Rows must be in order.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config.errors import DataError, did_you_mean
from regard.data.batching import ShuffledEpochs
from regard.data.records import BadRecordPolicy, Record, RecordSource
from regard.files.size_limits import check_bytes

NOTHING = ("", "nan", "na", "n/a", "null", "none")
AT_ONCE = 64  # windows of a validation batch


@dataclass(frozen=True)
class TimeAxis:
    """Time axis: rows are `step` apart, in `unit` seconds, months or numbers."""

    unit: str
    first: Any  # the first date
    step: int
    form: str = ""  # the date format of the file

    def at(self, row: int) -> str:
        """The date of a row, also of future rows, in the format of the file."""
        if self.unit == "numbers":
            return str(self.first + row * self.step)
        if self.unit == "months":
            years, month = divmod(self.first.month - 1 + row * self.step, 12)
            when = self.first.replace(year=self.first.year + years, month=month + 1)
        else:
            when = self.first + timedelta(seconds=row * self.step)
        said: str = when.isoformat(sep="T" if "T" in self.form else " ")
        return said[: len(self.form)]


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """The values (rows, columns) of a table, and their names; `clock` is None without a time axis."""

    name: str
    names: tuple[str, ...]
    values: Tensor
    clock: TimeAxis | None = None

    def __len__(self) -> int:
        return len(self.values)


def read_series(table: RecordSource, c: config.Forecasting) -> TimeSeries:
    """Read a time series from a table; DataError names the line."""
    names: tuple[str, ...] = c.columns
    rows: list[list[float]] = []
    dates: list[str] = []
    lines: list[str] = []
    for record in table.records(BadRecordPolicy()):
        if c.date_column is not None:
            dates.append(str(date_of(record, c.date_column)).strip())
        names = names or value_columns(record, c)
        rows.append([parse_value(record, name) for name in names])
        lines.append(record.where)
    if len(rows) < 2:
        raise DataError(f"{table.name}: {len(rows)} rows are no series; name a table with more")
    values = torch.tensor(rows, dtype=torch.float64)
    clock, places = parse_time_axis(dates, lines) if c.date_column is not None else (None, list(range(len(rows))))
    return TimeSeries(table.name, names, fill_gaps(values, places, names, lines, c.fill_gaps).float(), clock)


def value_columns(record: Record, c: config.Forecasting) -> tuple[str, ...]:
    """All columns but the date."""
    found = tuple(name for name in record if name != c.date_column)
    if not found:
        raise DataError(f"{record.where}: no column beside the date; a series needs columns of numbers")
    return found


def date_of(record: Record, name: str) -> Any:
    if name not in record:
        raise DataError(f"{record.where}: no column {name!r}{did_you_mean(name, list(record))} there are "
                        f"{', '.join(record)}; name the dates by task.date_column, or set task.date_column=none where "
                        "rows are evenly apart")  # fmt: skip
    return record[name]


def parse_value(record: Record, name: str) -> float:
    """A number, or NaN for a gap."""
    if name not in record:
        raise DataError(f"{record.where}: no column {name!r}{did_you_mean(name, list(record))} there are "
                        f"{', '.join(record)}; correct task.columns, or the table")  # fmt: skip
    said = str("" if record[name] is None else record[name]).strip()
    if said.lower() in NOTHING:
        return math.nan
    try:
        value = float(said)
    except ValueError:
        raise DataError(f"{record.where}: column {name!r} holds {said!r:.40} and no number; leave it out by "
                        "task.columns, or correct it") from None  # fmt: skip
    if math.isinf(value):
        raise DataError(f"{record.where}: column {name!r} holds {said!r:.40}, which is not finite; correct it")
    return value


# ---------------------------------------------------------------- time axis


def parse_time_axis(dates: Sequence[str], lines: Sequence[str]) -> tuple[TimeAxis, list[int]]:
    """The time axis of a table, and the index of each row on it: 0, 1, 2, ... if none is missing."""
    unit, first, ticks = detect_frequency(dates, lines)
    steps = [after - before for before, after in zip(ticks, ticks[1:], strict=False)]
    for row, step in enumerate(steps, 1):
        if step <= 0:
            raise DataError(f"{lines[row]}: {dates[row]!r} does not come after {dates[row - 1]!r}; sort the rows, and "
                            "leave none in twice")  # fmt: skip
    usual = Counter(steps).most_common(1)[0][0]
    places = [0]
    for row, step in enumerate(steps, 1):
        if step % usual:
            raise DataError(f"{lines[row]}: {dates[row]!r} is not a whole number of steps after {dates[row - 1]!r}, "
                            "and rows must be evenly apart; set task.date_column=none if their order is "
                            "all")  # fmt: skip
        places.append(places[-1] + step // usual)
    return TimeAxis(unit, first, usual, dates[0]), places


def detect_frequency(dates: Sequence[str], lines: Sequence[str]) -> tuple[str, Any, list[int]]:
    """Dates in the unit in which they are evenly spaced."""
    if all(date.removeprefix("-").isdecimal() and len(date) < 20 for date in dates):
        return "numbers", int(dates[0]), [int(date) for date in dates]
    whens = [parse_date(date, line) for date, line in zip(dates, lines, strict=True)]
    if len({(when.day, when.hour, when.minute, when.second) for when in whens}) == 1:
        return "months", whens[0], [12 * when.year + when.month for when in whens]
    return "seconds", whens[0], [round((when - whens[0]).total_seconds()) for when in whens]


def parse_date(text: str, line: str) -> datetime:
    """Parse an ISO 8601 date; a month alone is its first day. Time zones are ignored."""
    for each in (text, f"{text}-01"):
        try:
            when = datetime.fromisoformat(each)
        except ValueError:
            continue
        return when if when.tzinfo is None else when.astimezone(UTC).replace(tzinfo=None)
    raise DataError(f"{line}: {text!r:.40} is no date; write it as 2016-07-01 00:00:00, or name another column by "
                    "task.date_column")  # fmt: skip


# ---------------------------------------------------------------- gaps


def fill_gaps(values: Tensor, places: list[int], names: Sequence[str], lines: Sequence[str], way: str) -> Tensor:
    """Fill missing rows and cells, so that every time step has values."""
    missing = [row for row in range(1, len(places)) if places[row] > places[row - 1] + 1]
    holes = values.isnan().nonzero().tolist()
    if way == "error" and missing:
        row = missing[0]
        raise DataError(f"{lines[row]}: {places[row] - places[row - 1] - 1:,} rows are missing before this one; fill "
                        "them, or set task.fill_gaps to last or linear")  # fmt: skip
    if way == "error" and holes:
        row, column = holes[0]
        raise DataError(f"{lines[row]}: no number in column {names[column]!r} ({len(holes):,} in all are missing); "
                        "fill it, or set task.fill_gaps to last or linear")  # fmt: skip
    if not missing and not holes:
        return values
    check_bytes(32 * (places[-1] + 1) * values.shape[1], f"{lines[-1]} ({places[-1] + 1:,} rows with the gaps filled)")
    whole = values.new_full((places[-1] + 1, values.shape[1]), math.nan)
    whole[torch.tensor(places)] = values
    return torch.stack([fill_column(column, name, lines, way) for column, name in zip(whole.mT, names, strict=True)], 1)


def fill_column(column: Tensor, name: str, lines: Sequence[str], way: str) -> Tensor:
    """Fill the gaps of a column with the previous value, or by linear interpolation."""
    known = column.isnan().logical_not().nonzero()[:, 0]
    ends = () if not len(known) else (int(known[0]), int(known[-1]))
    if not ends or ends[0] > 0 or (way == "linear" and ends[1] < len(column) - 1):
        where = lines[0] if not ends or ends[0] > 0 else lines[-1]
        raise DataError(f"{where}: a gap in column {name!r} at an end of the table, with nothing beyond it to fill it "
                        "from; leave these rows out")  # fmt: skip
    rows = torch.arange(len(column))
    before = known[torch.searchsorted(known, rows, right=True) - 1]
    if way == "last":
        return column[before]
    after = known[torch.searchsorted(known, rows)]
    part = (rows - before) / (after - before).clamp(min=1)
    return column[before] + part * (column[after] - column[before])


# ---------------------------------------------------------------- windows


@dataclass(frozen=True, eq=False)
class ForecastWindows:
    """Windows whose target rows lie between `first` and `last`; inputs may start earlier.

    Training: batches of `size`, each window once in an epoch, shuffled. Validation: all in order.
    """

    name: str
    values: Tensor
    first: int
    last: int
    length: int
    horizon: int
    size: int = AT_ONCE
    seed: int = 0
    tokens: int = 1  # per window

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DataError(f"{self.name}: {self.last - self.first:,} rows, and a window has {self.length:,} as input "
                            f"and {self.horizon:,} to predict; name a longer table, or set model.embed.length or "
                            "model.head.horizon")  # fmt: skip

    @cached_property
    def turns(self) -> ShuffledEpochs:
        return ShuffledEpochs(self.count, self.seed)

    @property
    def begin(self) -> int:
        """The first input row."""
        return max(0, self.first - self.length)

    @property
    def count(self) -> int:
        return self.last - self.begin - self.length - self.horizon + 1

    @property
    def rows(self) -> range:
        """The window numbers."""
        return range(self.count)

    def windows(self, which: Sequence[int]) -> dict[str, Tensor]:
        rows = torch.tensor(which)[:, None] + self.begin + torch.arange(self.length + self.horizon)
        table = self.values[rows]  # (B, length + horizon, C)
        return {"ids": table[:, : self.length], "target": table[:, self.length :],
                "tokens": torch.full((len(which),), self.tokens)}  # fmt: skip

    def batch(self, step: int) -> dict[str, Tensor]:
        return self.windows(self.names(step))

    def names(self, step: int) -> list[int]:
        """The window numbers of a step."""
        return self.turns(step * self.size, self.size)

    def epochs(self, step: int) -> float:
        return step * self.size / self.count

    def batches(self, tokens: int | None = None) -> Iterator[dict[str, Tensor]]:
        """All windows in order, or evenly spaced ones with about `tokens` tokens."""
        some = self.count if tokens is None else min(self.count, max(1, tokens // self.tokens))
        which = [place * self.count // some for place in range(some)]
        for start in range(0, some, self.size):
            yield self.windows(which[start : start + self.size])
