"""SVG plots: lines, points and heat maps over two axes; without scripts, in the colours of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

COLOURS = ("blue", "orange", "green", "purple", "olive", "soft")  # of page.css
MARKS = ("circle", "square", "ring")  # the next mark after all colours, so that eighteen lines can be distinguished
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 640, 330, 58, 16, 14, 44
MARKED, APART = 8, 40  # positions on a logarithmic axis get their own ticks, if few and far enough apart


@dataclass(frozen=True)
class PlotPoint:
    """A point, the spread over its seeds, and its label, if any."""

    x: float
    y: float
    spread: float = 0.0
    name: str = ""


@dataclass(frozen=True)
class PlotSeries:
    """Points of one kind, optionally joined by a line."""

    name: str
    points: tuple[PlotPoint, ...]
    joined: bool = True
    dashed: bool = False
    like: int | None = None  # index of the series whose colour it has


@dataclass(frozen=True)
class PlotAxis:
    """An axis from pixel `start` to pixel `stop`; `log` if values span more than a power of ten."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    marks: tuple[float, ...] = ()  # tick positions, if not round numbers

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(each) if self.log else each for each in (self.low, self.high, value))
        return self.start + (at - low) / ((high - low) or 1) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        return list(self.marks) or (log_ticks(self.low, self.high) if self.log else round_ticks(self.low, self.high))


def build_axis(values: Sequence[float], start: float, stop: float, log: bool, margin: float = 0.06) -> PlotAxis:
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** margin if high > low else 1.5
        return PlotAxis(low / room, high * room, start, stop, True)
    room = margin * (high - low or abs(high) or 1)
    return PlotAxis(low - room, high + room, start, stop)


def draw_chart(series: Sequence[PlotSeries], x: str, y: str, log_x: bool = False, log_y: bool = False) -> str:
    """Draw a chart; its title is outside the drawing."""
    points = [point for each in series for point in each.points]
    across, places = build_axis([point.x for point in points], LEFT, WIDE - RIGHT, log_x), {point.x for point in points}
    if log_x and 2 <= len(places) <= MARKED:
        marks = sorted(places)
        clear = all(across(right) - across(left) >= APART for left, right in pairwise(marks))
        across = replace(across, marks=tuple(marks)) if clear else across
    ends = [end for point in points for end in (point.y - point.spread, point.y + point.spread)]
    up = build_axis(ends if not log_y else [point.y for point in points], HIGH - BOTTOM, TOP, log_y)
    parts = [*draw_grid(across, up), *axis_captions(x, y)]
    for place, each in enumerate(series):
        parts += draw_series(each, across, up, *series_style(place if each.like is None else each.like))
    names = [each.name for each in series if each.name]
    high = HIGH + 20 * -(-len(names) // legend_columns(names))
    return svg_frame(parts + draw_legend(series), high, f"{y} over {x}: {', '.join(names)}")


def svg_frame(parts: Sequence[str], high: float, label: str) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high:g}" role="img" '
            f'aria-label="{escape(label)}">{"".join(parts)}</svg>')  # fmt: skip


def series_style(place: int) -> tuple[str, str]:
    return f"var(--{COLOURS[place % len(COLOURS)]})", MARKS[place // len(COLOURS) % len(MARKS)]


def draw_series(each: PlotSeries, x: PlotAxis, y: PlotAxis, colour: str, mark: str) -> list[str]:
    places = [(x(point.x), y(point.y)) for point in each.points]
    line = " ".join(f"{'L' if i else 'M'}{a:.1f} {b:.1f}" for i, (a, b) in enumerate(places))
    dash = ' stroke-dasharray="5 4"' if each.dashed else ""
    parts = [f'<path class="even" d="{line}" stroke="{colour}"{dash}/>'] if each.joined and len(places) > 1 else []
    for point, (a, b) in zip(each.points, places, strict=True):
        if point.spread:
            low, high = y(max(point.y - point.spread, y.low)), y(point.y + point.spread)
            parts.append(f'<path class="even" d="M{a:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" opacity=".55"/>')
        parts += [] if each.dashed else [draw_mark(mark, a, b, colour, point.name or each.name)]
        if point.name:
            side = "end" if a > 0.75 * WIDE else "start"
            parts.append(svg_text(a + (-8 if side == "end" else 8), b - 7, point.name, side))
    return parts


def draw_mark(mark: str, a: float, b: float, colour: str, name: str) -> str:
    title = f"<title>{escape(name)}</title>"
    if mark == "square":
        return f'<rect x="{a - 4:.1f}" y="{b - 4:.1f}" width="8" height="8" fill="{colour}">{title}</rect>'
    fill = f'fill="{colour}"' if mark == "circle" else f'fill="var(--card)" stroke="{colour}" stroke-width="2"'
    return f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4.2" {fill}>{title}</circle>'


def svg_text(x: float, y: float, words: str, side: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{side}">{escape(words)}</text>'


def draw_grid(x: PlotAxis, y: PlotAxis) -> list[str]:
    lines = [f'<path class="rule" d="M{LEFT} {y(at):.1f}H{WIDE - RIGHT}"/>' for at in y.ticks()]
    marks = [svg_text(LEFT - 7, y(at) + 4, format_tick(at), "end") for at in y.ticks()]
    marks += [svg_text(x(at), HIGH - BOTTOM + 17, format_tick(at)) for at in x.ticks()]
    return [*lines, f'<path class="axis" d="M{LEFT} {HIGH - BOTTOM}H{WIDE - RIGHT}"/>', *marks]


def axis_captions(x: str, y: str, right: float = WIDE) -> list[str]:
    beside = f'<g transform="rotate(-90)">{svg_text(-(HIGH - BOTTOM) / 2, 12, y)}</g>'
    return [svg_text((LEFT + right) / 2, HIGH - 8, x), beside]


def draw_legend(series: Sequence[PlotSeries]) -> list[str]:
    """The legend of the series, in rows below the drawing."""
    parts, named = [], [(i, each) for i, each in enumerate(series) if each.name]
    count = legend_columns([each.name for _, each in named])
    for place, (i, each) in enumerate(named):
        a, b = LEFT + place % count * (WIDE - LEFT) / count, HIGH + 10 + place // count * 20
        parts += [
            draw_mark(series_style(i)[1], a, b - 4, series_style(i)[0], each.name),
            svg_text(a + 11, b, each.name, "start"),
        ]
    return parts


def legend_columns(names: Sequence[str]) -> int:
    """The number of names in a legend row."""
    return max(1, min(4, (WIDE - LEFT) // (7 * max(map(len, names), default=1) + 30)))


# ---------------------------------------------------------------- numbers


def round_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About `count` round numbers in an interval."""
    rough = (high - low) / count or 1
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between if there are few; round numbers if there is none."""
    span = math.log10(high / low)
    if span < 0.7:
        return round_ticks(low, high, 5)
    units = (1,) if span > 4 else (1, 3) if span > 2.2 else (1, 2, 5)
    every = (unit * 10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
             for unit in units)  # fmt: skip
    return [at for at in every if low <= at <= high]


def format_tick(number: float) -> str:
    """Three digits, with a letter for thousands, millions and billions."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / min(size, 1e3 if letter == 'k' else size):.3g}{letter}"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}" if abs(number) >= 1e-3 or number == 0 else f"{number:.0e}"


# ---------------------------------------------------------------- heat map


BANDS = 5  # colours of page.css from ramp-0


def draw_heatmap(places: Sequence[float], values: Sequence[Sequence[float]], x: str, y: str) -> str:
    """Heat map of values[i][j] at (i, j), in equal bands between minimum and maximum."""
    every = [value for row in values for value in row if math.isfinite(value)]
    low, high, size = min(every), max(every), (HIGH - TOP - BOTTOM) / len(places)
    parts = []
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            band = min(BANDS - 1, int(BANDS * (value - low) / (high - low or 1))) if math.isfinite(value) else BANDS - 1
            where = f'x="{LEFT + i * size:.1f}" y="{HIGH - BOTTOM - (j + 1) * size:.1f}"'
            parts.append(f'<rect {where} width="{size + 0.4:.1f}" height="{size + 0.4:.1f}" fill="var(--ramp-{band})">'
                         f"<title>{format_tick(value)}</title></rect>")  # fmt: skip
    right = LEFT + size * len(places)
    for place, at in ((LEFT, places[0]), ((LEFT + right) / 2, 0.0), (right, places[-1])):
        parts.append(svg_text(place, HIGH - BOTTOM + 17, format_tick(at)))
    for band in range(BANDS):
        top = TOP + (BANDS - 1 - band) * 26
        bottom, above = (format_tick(low + (high - low) * each / BANDS) for each in (band, band + 1))
        span = f"{bottom} to {above}"
        parts.append(f'<rect x="{right + 24:.1f}" y="{top}" width="18" height="18" fill="var(--ramp-{band})"/>')
        parts.append(svg_text(right + 50, top + 13, span, "start"))
    return svg_frame(
        [*parts, *axis_captions(x, y, right)],
        HIGH,
        f"a map over {x} and {y}, from {format_tick(low)} to {format_tick(high)}",
    )
