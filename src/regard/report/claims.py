"""compare.html of a claim: its tables, and the drawings that came with them."""

from pathlib import Path
from typing import Any

from regard.report import sheet
from regard.report.plot import Point, Series, chart, field

HOW = "The same words on the same machine and versions give the same losses; times are of this machine."


def write(out: Path, told: dict[str, Any]) -> Path:
    parts = [section(place, table) for place, table in enumerate(told["tables"], 1)]
    return sheet.write(out / "compare.html", told, "".join(parts), HOW, "claim.json")


def section(place: int, table: dict[str, Any]) -> str:
    drawings = [sheet.figure(each["question"], drawn(each)) for each in table["drawings"]]
    return sheet.section(f"table-{place}", table["title"], sheet.table(table["names"], table["columns"], {}),
                         sheet.notes(table["notes"]), sheet.figures(drawings))  # fmt: skip


def drawn(each: dict[str, Any]) -> str:
    if each["field"]:
        return field(each["places"], each["field"], each["x"], each["y"])
    series = [Series(name, tuple(Point(x, y) for x, y in points), dashed=name in each["dashed"])
              for name, points in each["lines"].items() if points]  # fmt: skip
    return chart(series, each["x"], each["y"], *each["log"])
