"""compare.html: the tables of a comparison, each with the drawings that its numbers allow."""

import math
from pathlib import Path
from typing import Any

from regard.report import sheet
from regard.report.plot import Point, Series, chart

HOW = """\
The same words on the same machine and versions give the same losses, run by run; times are of this machine. \
Validation: mean over seeds and standard deviation. A step: median within a run, then over seeds, which take turns. \
Memory: the most that tensors hold in a step that is not compiled. Writes: tokens a second, one text. Off dense: \
how far attention's answers are from dense ones with the same q, k and v, as a part of them. Grows: the power of n \
that one layer's mixing takes time with, and the formula."""


def write(out: Path, told: dict[str, Any]) -> Path:
    parts = [section(place, table) for place, table in enumerate(told["tables"], 1)]
    return sheet.write(out / "compare.html", told, "".join(parts), HOW, "compare.json and compare.csv")


def section(place: int, table: dict[str, Any]) -> str:
    rows, refused = table["rows"], {i: row["refused"] for i, row in enumerate(table["rows"]) if row["refused"]}
    losses = [(row["validation"], i) for i, row in enumerate(rows) if row["validation"] is not None]
    best = min(losses)[1] if losses else None
    drawings = [sheet.figure(question, drawing) for question, drawing in drawn(table) if drawing]
    return sheet.section(f"table-{place}", table["title"] or "Which one is better, and what does it cost?",
                         sheet.table([row["name"] for row in rows], table["columns"], refused, best),
                         sheet.notes(table["notes"]), settings(table.get("settings") or {}), sheet.figures(drawings))


def settings(differing: dict[str, dict[str, str]]) -> str:
    """Every setting that is not the same in all of them."""
    names = list(next(iter(differing.values()), {}))
    cells = {name: [values[name] for values in differing.values()] for name in names}
    return f"<h3>Which settings differ?</h3>{sheet.table(list(differing), cells, {})}" if differing else ""


def drawn(table: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [row for row in table["rows"] if row["validation"] is not None]
    over = table["over"]
    if over:
        name = over.rpartition(".")[2]
        first = [(f"How does the loss change with {name}?", along(rows, over, "validation", "validation loss")),
                 ("And the time of a step?", along(rows, over, "step_seconds", "seconds a step", log=True))]
    else:
        first = [("What does a lower loss cost?", scattered(rows))]
    rest = ("How well does it read longer texts?", longer(rows)), ("How does the time grow with n?", grown(rows))
    return [*first, *rest]


def scattered(rows: list[dict[str, Any]]) -> str:
    timed = [row for row in rows if row["step_seconds"]]
    if not timed:
        return ""
    series = [Series(row["name"], (Point(1000 * row["step_seconds"], row["validation"], row["spread"] or 0.0),))
              for row in timed]  # fmt: skip
    paces = [row["step_seconds"] for row in timed]
    return chart(series, "milliseconds a step", "validation loss", log_x=max(paces) > 4 * min(paces))


def along(rows: list[dict[str, Any]], key: str, what: str, caption: str, log: bool = False) -> str:
    """A line for each choice of the other keys, along the numbers of one."""
    lines: dict[str, list[Point]] = {}
    for row in rows:
        at, others = number(row["chosen"].get(key)), [value for name, value in row["chosen"].items() if name != key]
        if at is not None and row[what] is not None:
            spread = (row["spread"] or 0.0) if what == "validation" else 0.0
            lines.setdefault(", ".join(others) or "all", []).append(Point(at, row[what], spread))
    places = [point.x for line in lines.values() for point in line]
    if len(set(places)) < 2:
        return ""
    series = [Series(name, tuple(sorted(line, key=lambda point: point.x))) for name, line in lines.items()]
    wide = min(places) > 0 and max(places) >= 4 * min(places)
    return chart(series, key.rpartition(".")[2], caption, log_x=wide, log_y=log)


def longer(rows: list[dict[str, Any]]) -> str:
    """Who cannot read them at all has one point, and the colour that it has elsewhere."""
    series = []
    for row in (row for row in rows if row["context"]):
        there = {int(at): loss for at, loss in row["beyond"].items() if not isinstance(loss, str)}
        points = [Point(row["context"], row["validation"]), *(Point(at, loss) for at, loss in there.items())]
        series.append(Series(row["name"], tuple(points)))
    if all(len(each.points) < 2 for each in series):
        return ""
    return chart(series, "tokens of a text", "validation loss", log_x=True)


def grown(rows: list[dict[str, Any]]) -> str:
    series = []
    for row in rows:
        pairs = zip(row["growth"].get("lengths", []), row["growth"].get("seconds", []), strict=True)
        if points := tuple(Point(length, 1000 * seconds) for length, seconds in pairs if seconds > 0):
            series.append(Series(row["name"], points))
    return chart(series, "tokens", "milliseconds of mixing, one layer", log_x=True, log_y=True) if series else ""


def number(said: Any) -> float | None:
    try:
        value = float(str(said))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
