"""What can be asked of a series: how it goes on."""

from typing import Literal

from regard.config.checks import at_least
from regard.config.setting import setting


@setting
class Forecast:
    """The rows that come next in a table of numbers, a row a moment.

    `date` is the column that says when (none: rows are evenly apart), `columns` are those that are read and told (none
    named: all others). Where a cell is empty or a row missing, `gaps` refuses it, repeats the last value, or draws a
    line to the next one.

    `split` is how many rows, one after the other, are to train, to validate and to test on; without it the end of the
    table is kept back as data.validation says. `part` is which of them are asked to validate and to evaluate. Numbers
    are standardised by the training rows; the loss is the mean square of what is missed, its size (mae), or the
    square where it is below 1 and the size beyond (huber).
    """

    kind: Literal["forecast"] = "forecast"
    date: str | None = "date"
    columns: tuple[str, ...] = ()
    gaps: Literal["refuse", "last", "linear"] = "refuse"
    split: tuple[int, ...] = ()
    part: Literal["validation", "test"] = "validation"
    loss: Literal["mse", "mae", "huber"] = "mse"

    def __post_init__(self) -> None:
        if "" in self.columns or self.date == "" or len(set(self.columns)) < len(self.columns):
            raise ValueError("columns: every column needs a name of its own; remove what is empty or double")
        if self.date in self.columns:
            raise ValueError(f"columns: {self.date!r} is the date; name columns of numbers, or another date")
        if self.split and len(self.split) not in (2, 3):
            raise ValueError(f"split: {len(self.split)} numbers; name the rows to train, to validate and to test on")
        at_least(1, **{f"split[{place}]": rows for place, rows in enumerate(self.split)})
