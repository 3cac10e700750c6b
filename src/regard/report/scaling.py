"""scale.html: losses over sizes in the logarithms, the laws through them, and what the laws leave over."""

from pathlib import Path
from typing import Any

from regard.report import sheet
from regard.report.plot import Point, Series, chart

HOW = """\
The same words on the same machine and versions give the same losses. Weights are those of the trunk; all sizes read \
the same tokens at the same learning rate. The line is least squares in the logarithms. The floor is the one that \
leaves least over; so few sizes say little about it, and the range that fits nearly as well stands beside it."""
BETWEEN = 24  # points that a law is drawn through


def write(out: Path, told: dict[str, Any]) -> Path:
    families = [each for each in told["families"] if each["line"]]
    parts = [sheet.section("law", "Is it a power law?", sheet.figures([
        sheet.figure("How does the loss fall with the weights?", drawn(families)),
        sheet.figure("What does the line leave over?", left(families))]))] if families else []  # fmt: skip
    parts += [section(place, each) for place, each in enumerate(told["families"], 1)]
    return sheet.write(out / "scale.html", told, "".join(parts), HOW, "scale.json")


def section(place: int, each: dict[str, Any]) -> str:
    spreads = [f" ± {spread:.4f}" if spread is not None else "" for spread in each["spreads"]]
    columns = {"validation": [f"{loss:.4f}{apart}" for loss, apart in zip(each["losses"], spreads, strict=True)]}
    for name in ("line", "floored"):
        if each[name]:
            columns[f"above the {'line' if name == 'line' else 'floored law'}"] = [f"{100 * one:+.2f}%"
                                                                                 for one in each[name]["left"]]
    table = sheet.table([f"{size:,}" for size in each["sizes"]], columns, {})
    return sheet.section(f"family-{place}", each["name"], table, sheet.notes(each["laws"]))


def drawn(families: list[dict[str, Any]]) -> str:
    """Points, and the line through them; the line is dashed, and has no marks of its own."""
    series = [Series(each["name"], tuple(Point(size, loss, apart or 0.0) for size, loss, apart in zip(
              each["sizes"], each["losses"], each["spreads"], strict=True)), joined=False) for each in families]
    series += [Series("", through(each), dashed=True, like=place) for place, each in enumerate(families)]
    return chart(series, "weights of the trunk", "validation loss", log_x=True, log_y=True)


def through(each: dict[str, Any]) -> tuple[Point, ...]:
    first, last, law = each["sizes"][0], each["sizes"][-1], each["line"]
    places = [first * (last / first) ** (i / BETWEEN) for i in range(BETWEEN + 1)]
    return tuple(Point(at, law["scale"] * at ** -law["alpha"]) for at in places)


def left(families: list[dict[str, Any]]) -> str:
    series = [Series(each["name"], tuple(Point(size, 100 * off) for size, off in
              zip(each["sizes"], each["line"]["left"], strict=True))) for each in families]
    return chart(series, "weights of the trunk", "percent above the line", log_x=True)
