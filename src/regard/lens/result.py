"""Results of a lens: a table of named columns and, where it helps, one picture; printed, saved, or shown in a notebook.

A lens returns numbers with their labels and draws nothing. `table()` is what a terminal prints and a CSV holds;
`picture()` says what to draw, and `report.lens_figures` draws it: `result.plot("lens.svg")`.
"""

import csv
import html
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows under named columns. `title` is the question that they answer, `note` what they do not say."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""

    def __str__(self) -> str:
        cells = [self.columns, *([show_value(value) for value in row] for row in self.rows)]
        numbers = [all(isinstance(row[i], int | float | None) for row in self.rows) for i in range(len(self.columns))]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(cell.rjust(width) if number else cell.ljust(width)
                      for cell, width, number in zip(row, widths, numbers, strict=True)).rstrip()
            for row in cells
        ]  # fmt: skip
        return "\n".join([self.title, "", *lines, *(["", self.note] if self.note else [])])

    def to_csv(self) -> str:
        """The numbers in full, with a line of column names."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.columns, *self.rows])
        return out.getvalue()

    def to_json(self) -> dict[str, Any]:
        """{"title", "note", "rows": [{column: value}]}; what is no number is null."""
        rows = [dict(zip(self.columns, map(finite_or_none, row), strict=True)) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    def to_html(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(show_value(value))}</td>" for value in row) + "</tr>"
            for row in self.rows
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        caption = html.escape(self.title)
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def show_value(value: Value) -> str:
    """Numbers to four figures; what is missing as a dash."""
    if value is None or isinstance(value, float) and math.isnan(value):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def finite_or_none(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, eq=False)
class Picture:
    """What to draw: a grid of colours, bars, or lines. `values` (rows, columns); each line or bar group is a row.

    `title` is the question, `unit` what a value is; `cells` are texts to write into a grid, `center` the value of no
    colour on a scale of two colours.
    """

    kind: Literal["grid", "bars", "lines"]
    title: str
    values: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    unit: str = ""
    cells: Sequence[Sequence[str]] | None = None
    center: float | None = None


class LensResult:
    """Base of what a lens returns; a subclass has `table()`, and `picture()` where there is something to see."""

    def table(self) -> Table:
        raise NotImplementedError

    def picture(self) -> Picture | None:
        return None

    def to_json(self) -> dict[str, Any]:
        return self.table().to_json()

    def plot(self, path: str | None = None) -> str:
        """The picture as SVG; written to `path` if one is given (.svg, .png, .html or .csv)."""
        drawn: str = sys.modules["regard"].plot(self, path)  # the public facade: `report` draws, and lies below
        return drawn

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().to_html()
