"""Pages of tables and SVG figures without scripts: compare.html of a study or a demo, and scale.html of scaling laws.

scale.html shows losses over sizes on logarithmic axes, the fitted laws, and their residuals.
"""

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config.errors import unwritable_error
from regard.files import atomic
from regard.report.page import read_page_part, script_hash
from regard.report.svg_plot import PlotPoint, PlotSeries, draw_chart, draw_heatmap

DEMO_HOW = "The same words on the same machine and versions give the same losses; times are of this machine."


def write_demo_page(out: Path, result: dict[str, Any]) -> Path:
    parts = [demo_section(place, table) for place, table in enumerate(result["tables"], 1)]
    return write_table_page(out / "compare.html", result, "".join(parts), DEMO_HOW, "claim.json")


def demo_section(place: int, table: dict[str, Any]) -> str:
    drawings = [page_figure(each["question"], demo_figure(each)) for each in table["drawings"]]
    return page_section(f"table-{place}", table["title"], page_table(table["names"], table["columns"], {}),
                         page_notes(table["notes"]), page_figures(drawings))  # fmt: skip


def demo_figure(each: dict[str, Any]) -> str:
    if each["field"]:
        return draw_heatmap(each["places"], each["field"], each["x"], each["y"])
    series = [PlotSeries(name, tuple(PlotPoint(x, y) for x, y in points), dashed=name in each["dashed"])
              for name, points in each["lines"].items() if points]  # fmt: skip
    return draw_chart(series, each["x"], each["y"], *each["log"])


SCALING_HOW = """\
The same words on the same machine and versions give the same losses. Weights are those of the trunk; all sizes read \
the same tokens at the same learning rate. The line is least squares in the logarithms. The floor is the one with \
the smallest residual; so few sizes say little about it, and the range that fits nearly as well is given."""
BETWEEN = 24  # points of a fitted curve


def write_scaling_page(out: Path, result: dict[str, Any]) -> Path:
    families = [each for each in result["families"] if each["line"]]
    parts = [page_section("law", "Scaling law", page_figures([
        page_figure("Loss over parameters of the trunk", scaling_figure(families)),
        page_figure("Residuals", residual_figure(families))]))] if families else []  # fmt: skip
    parts += [scaling_section(place, each) for place, each in enumerate(result["families"], 1)]
    return write_table_page(out / "scale.html", result, "".join(parts), SCALING_HOW, "scale.json")


def scaling_section(place: int, each: dict[str, Any]) -> str:
    spreads = [f" ± {spread:.4f}" if spread is not None else "" for spread in each["spreads"]]
    columns = {"validation": [f"{loss:.4f}{apart}" for loss, apart in zip(each["losses"], spreads, strict=True)]}
    for name in ("line", "floored"):
        if each[name]:
            columns[f"above the {'line' if name == 'line' else 'floored law'}"] = [
                f"{100 * one:+.2f}%" for one in each[name]["left"]
            ]
    table = page_table([f"{size:,}" for size in each["sizes"]], columns, {})
    return page_section(f"family-{place}", each["name"], table, page_notes(each["laws"]))


def scaling_figure(families: list[dict[str, Any]]) -> str:
    """Points, and a dashed curve of the fitted law without marks."""
    series = [
        PlotSeries(
            each["name"],
            tuple(
                PlotPoint(size, loss, apart or 0.0)
                for size, loss, apart in zip(each["sizes"], each["losses"], each["spreads"], strict=True)
            ),
            joined=False,
        )
        for each in families
    ]
    series += [PlotSeries("", law_points(each), dashed=True, like=place) for place, each in enumerate(families)]
    return draw_chart(series, "weights of the trunk", "validation loss", log_x=True, log_y=True)


def law_points(each: dict[str, Any]) -> tuple[PlotPoint, ...]:
    first, last, law = each["sizes"][0], each["sizes"][-1], each["line"]
    places = [first * (last / first) ** (i / BETWEEN) for i in range(BETWEEN + 1)]
    return tuple(PlotPoint(at, law["scale"] * at ** -law["alpha"]) for at in places)


def residual_figure(families: list[dict[str, Any]]) -> str:
    series = [
        PlotSeries(
            each["name"],
            tuple(PlotPoint(size, 100 * off) for size, off in zip(each["sizes"], each["line"]["left"], strict=True)),
        )
        for each in families
    ]
    return draw_chart(series, "weights of the trunk", "percent above the line", log_x=True)


KNOWN = ("regard", "torch", "processor", "device", "threads", "started")
MORE = """
.sheet { font-size: .88rem; margin: 0 0 10px; }
.sheet th, .sheet td { text-align: right; white-space: nowrap; }
.sheet th:first-child, .sheet td:first-child { text-align: left; font-weight: 600; }
.sheet .refused { text-align: left; white-space: normal; color: var(--soft); font-weight: 400; }
.sheet .best { font-weight: 700; color: var(--blue); }
.pictures { display: grid; gap: 16px; margin-top: 18px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
"""


def write_table_page(path: Path, result: Mapping[str, Any], sections: str, commands: str, files: str) -> Path:
    """Write a page: title, introduction, sections, and the commands that reproduce it."""
    style = read_page_part("page.css") + MORE
    rows = "".join(f"<tr><th scope='row'>{name}</th><td>{html.escape(str(result[name]))}</td></tr>" for name in KNOWN
                   if result.get(name) is not None)  # fmt: skip
    filled = {
        "title": html.escape(str(result.get("title") or "A comparison")),
        "about": html.escape(str(result.get("about") or "")),
        "policy": f"default-src 'none'; style-src '{script_hash(style)}'",
        "style": style, "sections": sections, "how": html.escape(commands), "files": html.escape(files),
        "command": html.escape(str(result.get("command") or "regard compare …")), "facts": rows,
    }  # fmt: skip
    made = re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], read_page_part("compare.html"))
    try:
        atomic.write_file(path, [made.encode()])
    except OSError as problem:
        raise unwritable_error(path, problem) from None
    return path


def page_section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{name}"><h2>{html.escape(title)}</h2>{"".join(parts)}</section>'


def page_figure(question: str, drawing: str) -> str:
    return f'<figure class="chart"><h3>{html.escape(question)}</h3>{drawing}</figure>'


def page_figures(names: Sequence[str]) -> str:
    return f'<div class="pictures">{"".join(names)}</div>' if names else ""


def page_notes(lines: Sequence[str]) -> str:
    return "".join(f"<p class='note'>{html.escape(line)}.</p>" for line in lines)


def page_table(
    names: Sequence[str], columns: Mapping[str, Sequence[str]], refused: Mapping[int, str], best: int | None = None
) -> str:
    """Rows with their names; a refused row has its reason instead of numbers."""
    head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in ("", *columns))
    rows = []
    for place, name in enumerate(names):
        if place in refused:
            cells = f"<td class='refused' colspan='{max(1, len(columns))}'>refused: {html.escape(refused[place])}</td>"
        else:
            cells = "".join(f"<td>{html.escape(each[place])}</td>" for each in columns.values())
        mark = " class='best'" if place == best else ""
        rows.append(f"<tr><td{mark}>{html.escape(name)}</td>{cells}</tr>")
    inner = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f"<div class='scroll'><table class='sheet'>{inner}</table></div>"


COMPARISON_HOW = """\
The same words on the same machine and versions give the same losses, run by run; times are of this machine. \
Validation: mean over seeds and standard deviation. A step: median within a run, then over seeds, which take turns. \
Memory: the most that tensors hold in a step that is not compiled. Writes: tokens a second, one text. Off dense: \
the relative error of the attention output against dense attention with the same q, k and v. Grows: the power of n \
with which one layer's mixing time grows, and the formula."""


def write_comparison_page(out: Path, result: dict[str, Any]) -> Path:
    parts = [comparison_section(place, table) for place, table in enumerate(result["tables"], 1)]
    return write_table_page(
        out / "compare.html", result, "".join(parts), COMPARISON_HOW, "compare.json and compare.csv"
    )


def comparison_section(place: int, table: dict[str, Any]) -> str:
    rows, refused = table["rows"], {i: row["refused"] for i, row in enumerate(table["rows"]) if row["refused"]}
    losses = [(row["validation"], i) for i, row in enumerate(rows) if row["validation"] is not None]
    best = min(losses)[1] if losses else None
    drawings = [page_figure(question, drawing) for question, drawing in comparison_figures(table) if drawing]
    return page_section(
        f"table-{place}",
        table["title"] or "Loss and cost of each variant",
        page_table([row["name"] for row in rows], table["columns"], refused, best),
        page_notes(table["notes"]),
        differing_settings_section(table.get("settings") or {}),
        page_figures(drawings),
    )


def differing_settings_section(differing: dict[str, dict[str, str]]) -> str:
    """Every setting that differs between variants."""
    names = list(next(iter(differing.values()), {}))
    cells = {name: [values[name] for values in differing.values()] for name in names}
    return f"<h3>Settings that differ</h3>{page_table(list(differing), cells, {})}" if differing else ""


def comparison_figures(table: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [row for row in table["rows"] if row["validation"] is not None]
    over = table["over"]
    if over:
        name = over.rpartition(".")[2]
        first = [
            (f"Loss over {name}", line_figure(rows, over, "validation", "validation loss")),
            (f"Step time over {name}", line_figure(rows, over, "step_seconds", "seconds a step", log=True)),
        ]
    else:
        first = [("Loss over step time", scatter_figure(rows))]
    rest = (
        ("Loss over context length", context_figure(rows)),
        ("Mixing time over context length", growth_figure(rows)),
    )
    return [*first, *rest]


def scatter_figure(rows: list[dict[str, Any]]) -> str:
    timed = [row for row in rows if row["step_seconds"]]
    if not timed:
        return ""
    series = [PlotSeries(row["name"], (PlotPoint(1000 * row["step_seconds"], row["validation"], row["spread"] or 0.0),))
              for row in timed]  # fmt: skip
    paces = [row["step_seconds"] for row in timed]
    return draw_chart(series, "milliseconds a step", "validation loss", log_x=max(paces) > 4 * min(paces))


def line_figure(rows: list[dict[str, Any]], key: str, what: str, caption: str, log: bool = False) -> str:
    """A line for each combination of the other keys, over the values of one."""
    lines: dict[str, list[PlotPoint]] = {}
    for row in rows:
        at, others = as_number(row["chosen"].get(key)), [value for name, value in row["chosen"].items() if name != key]
        if at is not None and row[what] is not None:
            spread = (row["spread"] or 0.0) if what == "validation" else 0.0
            lines.setdefault(", ".join(others) or "all", []).append(PlotPoint(at, row[what], spread))
    places = [point.x for line in lines.values() for point in line]
    if len(set(places)) < 2:
        return ""
    series = [PlotSeries(name, tuple(sorted(line, key=lambda point: point.x))) for name, line in lines.items()]
    wide = min(places) > 0 and max(places) >= 4 * min(places)
    return draw_chart(series, key.rpartition(".")[2], caption, log_x=wide, log_y=log)


def context_figure(rows: list[dict[str, Any]]) -> str:
    """Loss over longer contexts; a model that cannot read them has one point, in its own colour."""
    series = []
    for row in (row for row in rows if row["context"]):
        there = {int(at): loss for at, loss in row["beyond"].items() if not isinstance(loss, str)}
        points = [PlotPoint(row["context"], row["validation"]), *(PlotPoint(at, loss) for at, loss in there.items())]
        series.append(PlotSeries(row["name"], tuple(points)))
    if all(len(each.points) < 2 for each in series):
        return ""
    return draw_chart(series, "tokens of a text", "validation loss", log_x=True)


def growth_figure(rows: list[dict[str, Any]]) -> str:
    series = []
    for row in rows:
        pairs = zip(row["growth"].get("lengths", []), row["growth"].get("seconds", []), strict=True)
        if points := tuple(PlotPoint(length, 1000 * seconds) for length, seconds in pairs if seconds > 0):
            series.append(PlotSeries(row["name"], points))
    return draw_chart(series, "tokens", "milliseconds of mixing, one layer", log_x=True, log_y=True) if series else ""


def as_number(cell: Any) -> float | None:
    try:
        value = float(str(cell))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
