"""Claims made visible: small experiments that are more than a table of losses, each a function in a table by its name.

A claim is given a folder and gives back tables with what is drawn beside them; text, JSON and page are made of those.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from regard import config
from regard.train.compare.members import Tell, silent


@dataclass(frozen=True)
class Drawing:
    """Lines by their names, each of points (x, y); or with `field` a square of numbers over `places`, row by row."""

    question: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    log: tuple[bool, bool] = (False, False)
    dashed: tuple[str, ...] = ()
    places: tuple[float, ...] = ()
    field: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Sheet:
    """A table as people read it, the numbers behind it, and drawings of them."""

    title: str
    names: list[str]
    columns: dict[str, list[str]]
    numbers: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)


class Stopped(Exception):
    """A signal came while a claim was trained."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True)
class Asked:
    """How a claim is to be shown: in which folder, with which settings, and whether in a minute."""

    out: Path
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    quick: bool = False
    command: str = ""
    tell: Tell = silent


Claim = Callable[[Asked], list[Sheet]]
CLAIMS: dict[str, tuple[str, str, Claim]] = {}  # by name: its title, what it is about, and the experiment


def claim(name: str, title: str, about: str) -> Callable[[Claim], Claim]:
    def enter(made: Claim) -> Claim:
        CLAIMS[name] = (title, about, made)
        return made

    return enter


def shown(name: str, asked: Asked) -> dict[str, Any]:
    """All of a claim as nested plain values."""
    title, about, made = CLAIMS[name]
    return {"title": title, "about": about, "command": asked.command, "regard": config.VERSION,
            "tables": [asdict(sheet) for sheet in made(asked)]}  # fmt: skip


def text(told: dict[str, Any]) -> str:
    return "\n\n\n".join("\n".join([sheet["title"], "", aligned(sheet["names"], sheet["columns"]),
                                    *(f"note: {note}" for note in sheet["notes"])]) for sheet in told["tables"])


def aligned(names: list[str], columns: dict[str, list[str]], refused: dict[int, str] | None = None) -> str:
    """Columns under each other; a row that was refused has its sentence in place of numbers."""
    refused, wide = refused or {}, max(len(name) for name in names)
    widths = {name: max([len(name), *(len(cells[i]) for i in range(len(names)) if i not in refused)])
              for name, cells in columns.items()}  # fmt: skip
    lines = ["  ".join([" " * wide, *(f"{name:>{size}}" for name, size in widths.items())]).rstrip()]
    for place, name in enumerate(names):
        cells = [f"{columns[each][place]:>{size}}" for each, size in widths.items()]
        told = [f"refused: {refused[place]}"] if place in refused else cells
        lines.append("  ".join([f"{name:<{wide}}", *told]).rstrip())
    return "\n".join(lines)
