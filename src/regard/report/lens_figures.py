"""Figures of lens results: the picture of a result as SVG, PNG or a page, drawn by matplotlib (regard[plots]).

    regard.plot(result)                  the SVG as a string
    regard.plot(result, "lens.png")      .svg, .png, .html (picture and table), .csv or .json

The figure is the result's `picture()`: its title is the question, tokens are on the axes, and a scale that starts at
zero or is centred there is blue to red, safe for colour-blind readers.
"""

import io
import json
from pathlib import Path
from textwrap import fill
from typing import Any

from regard.config.errors import ConfigError
from regard.files.atomic import write_file, write_text
from regard.lens.result import LensResult, Picture

SUFFIXES = (".svg", ".png", ".html", ".csv", ".json")
CELL, LARGEST = 0.42, 24.0  # inches: of a cell with text, and of the longest side
BARS = 40  # most bars; the largest are drawn

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse } caption { text-align: left; font-weight: 600; padding: .5rem 0 }
td, th { padding: .15rem .6rem; border-bottom: 1px solid #8884; text-align: left } svg { max-width: 100% }
"""


def plot(result: LensResult, path: str | Path | None = None) -> str:
    """Draw a result in the format of the suffix of `path`; returns the SVG, or for a table its CSV."""
    suffix = Path(path).suffix.lower() if path is not None else ".svg"
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a result is written as {', '.join(SUFFIXES)}; name a file that ends so")
    if suffix == ".csv":
        text = result.table().to_csv()
    elif suffix == ".json":
        text = json.dumps(result.to_json(), ensure_ascii=False, indent=1) + "\n"
    elif suffix == ".html":
        text = html_page(result)
    else:
        drawn = draw_picture(require_picture(result), suffix[1:])
        if suffix == ".png":
            assert path is not None
            write_file(Path(path), [drawn])
            return str(path)
        text = drawn.decode()
    if path is not None:
        write_text(Path(path), text)
    return text


def require_picture(result: LensResult) -> Picture:
    picture = result.picture()
    if picture is None:
        raise ConfigError(f"{type(result).__name__} has a table and no picture; write it as .csv, .json or .html")
    return picture


def html_page(result: LensResult) -> str:
    """An HTML page with the picture, if any, and the table below it."""
    picture = result.picture()
    drawn = "" if picture is None else draw_picture(picture, "svg").decode()
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>regard lens</title><style>{STYLE}</style>'
    return f"{head}<body>{drawn[drawn.find('<svg') :] if drawn else ''}{result.table().to_html()}</body></html>\n"


def draw_picture(picture: Picture, form: str) -> bytes:
    """The picture in a matplotlib format, with identical bytes every time."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("a picture needs matplotlib: pip install 'regard[plots]'; a .csv or .json does not") from None
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    draw = {"grid": draw_grid, "bars": draw_bars, "lines": draw_lines}[picture.kind]
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "regard", "text.parse_math": False}
    with matplotlib.rc_context(settings):
        wide, high = figure_size(picture)
        figure = Figure(figsize=(wide, high), layout="constrained")
        axes = figure.add_subplot()
        draw(picture, figure, axes)
        figure.suptitle(fill(picture.title, int(11 * wide)), x=0.02, ha="left", fontsize=11)  # characters per line
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=144, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()


def figure_size(picture: Picture) -> tuple[float, float]:
    rows, columns = picture.values.shape
    if picture.kind == "bars":
        return 8.0, min(1.4 + 0.26 * min(columns, BARS) * rows, LARGEST)
    if picture.kind == "lines":
        return 8.0, 4.5
    wide = max((len(text) for row in picture.cells for text in row), default=4) * 0.085 if picture.cells else CELL
    return min(2.2 + max(wide, CELL) * columns, LARGEST), min(1.6 + CELL * 0.8 * rows, LARGEST)


def draw_grid(picture: Picture, figure: Any, axes: Any) -> None:
    values = picture.values.double().cpu().numpy()
    known = values[values == values]  # what has no value is left white
    scale: dict[str, Any] = {"cmap": "viridis", "vmin": min(0.0, float(known.min())) if known.size else 0.0}
    if picture.center is not None:
        far = (float(abs(known - picture.center).max()) if known.size else 0.0) or 1.0
        scale = {"cmap": "RdBu_r", "vmin": picture.center - far, "vmax": picture.center + far}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **scale)
    axes.set_xticks(range(len(picture.columns)), picture.columns, rotation=60, ha="right")
    axes.set_yticks(range(len(picture.rows)), picture.rows)
    axes.tick_params(labelsize=8)
    figure.colorbar(image, ax=axes, label=picture.unit)
    for row, texts in enumerate(picture.cells or ()):
        for column, text in enumerate(texts):
            value = values[row, column]
            shade = sum(image.cmap(image.norm(value))[:3]) if value == value else 3.0
            axes.text(column, row, text, ha="center", va="center", fontsize=7,
                      color="black" if shade > 1.5 else "white")  # fmt: skip


def draw_bars(picture: Picture, figure: Any, axes: Any) -> None:
    """Horizontal bars, in the given order; if there are too many, the largest."""
    values = picture.values.double().cpu()
    keep = values.abs().amax(0).topk(min(BARS, values.shape[1])).indices.sort().values.tolist()
    high = 0.8 / len(values)
    for row, name in enumerate(picture.rows):
        places = [place + row * high for place in range(len(keep))]
        axes.barh(places, values[row, keep].numpy(), high, label=name)
    middle = (len(values) - 1) * high / 2
    axes.set_yticks([place + middle for place in range(len(keep))], [picture.columns[i] for i in keep])
    axes.invert_yaxis()
    axes.axvline(0.0, color="grey", linewidth=0.8)
    axes.set_xlabel(picture.unit)
    axes.tick_params(labelsize=8)
    if len(picture.rows) > 1:
        axes.legend(frameon=False)


def draw_lines(picture: Picture, figure: Any, axes: Any) -> None:
    for name, row in zip(picture.rows, picture.values.double().cpu().numpy(), strict=True):
        axes.plot(range(len(row)), row, marker="o", markersize=3, label=name)
    axes.set_xticks(range(len(picture.columns)), picture.columns, rotation=60, ha="right")
    axes.set_ylabel(picture.unit)
    axes.tick_params(labelsize=8)
    if len(picture.rows) > 1:
        axes.legend(frameon=False, fontsize=8)
