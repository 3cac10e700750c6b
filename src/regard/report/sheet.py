"""A page of tables and drawings that needs no script: what comparisons and scaling laws are shown on."""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config.errors import unwritable
from regard.data import store
from regard.report.page import digest, part

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


def write(path: Path, told: Mapping[str, Any], sections: str, how: str, files: str) -> Path:
    """One file: the title and what it is about, the sections, and how it is made again."""
    style = part("page.css") + MORE
    rows = "".join(f"<tr><th scope='row'>{name}</th><td>{html.escape(str(told[name]))}</td></tr>" for name in KNOWN
                   if told.get(name) is not None)  # fmt: skip
    filled = {
        "title": html.escape(str(told.get("title") or "A comparison")),
        "about": html.escape(str(told.get("about") or "")),
        "policy": f"default-src 'none'; style-src '{digest(style)}'",
        "style": style, "sections": sections, "how": html.escape(how), "files": html.escape(files),
        "command": html.escape(str(told.get("command") or "regard compare …")), "facts": rows,
    }  # fmt: skip
    made = re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], part("compare.html"))
    try:
        store.put(path, [made.encode()])
    except OSError as problem:
        raise unwritable(path, problem) from None
    return path


def section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{name}"><h2>{html.escape(title)}</h2>{"".join(parts)}</section>'


def figure(question: str, drawing: str) -> str:
    return f'<figure class="chart"><h3>{html.escape(question)}</h3>{drawing}</figure>'


def figures(made: Sequence[str]) -> str:
    return f'<div class="pictures">{"".join(made)}</div>' if made else ""


def notes(lines: Sequence[str]) -> str:
    return "".join(f"<p class='note'>{html.escape(line)}.</p>" for line in lines)


def table(
    names: Sequence[str], columns: Mapping[str, Sequence[str]], refused: Mapping[int, str], best: int | None = None
) -> str:
    """Rows by their names; a row that was refused has its sentence in place of numbers."""
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
