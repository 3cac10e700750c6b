"""Demos: registered small experiments with results other than losses; and the spoiler effect of greedy decoding.

A demo gets a folder and returns tables and figures, from which text, JSON and page are made.

The spoiler effect: the most likely token may represent a minority if the majority is divided among many synonyms.

    "The holiday was ..."     awful 0.24  │  lovely 0.20  wonderful 0.19  great 0.17  splendid 0.12  pleasant 0.08
                              bad:  0.24  │  good: 0.76, shared by five words

Greedy decoding chooses "awful", as an election by first choices may elect the least liked candidate. Sampling among the
most likely tokens chooses a positive word three times out of four.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.generation.logits_process import process_logits
from regard.studies.trials import TrialReporter, no_output


@dataclass(frozen=True)
class DemoFigure:
    """A figure: named lines of points (x, y); or with `field` a square of numbers over `places`, row by row."""

    question: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    log: tuple[bool, bool] = (False, False)
    dashed: tuple[str, ...] = ()
    places: tuple[float, ...] = ()
    field: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class DemoTable:
    """A table as text, its numbers, and its figures."""

    title: str
    names: list[str]
    columns: dict[str, list[str]]
    numbers: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    drawings: list[DemoFigure] = field(default_factory=list)


class DemoInterrupted(Exception):
    """Raised when a signal arrives while a demo trains a model."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True)
class DemoSettings:
    """Settings of a demo: its folder, overrides, and whether it should finish in a minute."""

    out: Path
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    quick: bool = False
    command: str = ""
    tell: TrialReporter = no_output


Claim = Callable[[DemoSettings], list[DemoTable]]
DEMOS: dict[str, tuple[str, str, Claim]] = {}  # by name: title, introduction, and the function


def register_demo(name: str, title: str, about: str) -> Callable[[Claim], Claim]:
    def enter(claim: Claim) -> Claim:
        DEMOS[name] = (title, about, claim)
        return claim

    return enter


def run_demo(name: str, settings: DemoSettings) -> dict[str, Any]:
    """All results of a demo as nested plain values."""
    title, about, made = DEMOS[name]
    return {"title": title, "about": about, "command": settings.command, "regard": config.VERSION,
            "tables": [asdict(sheet) for sheet in made(settings)]}  # fmt: skip


def format_demo(result: dict[str, Any]) -> str:
    return "\n\n\n".join(
        "\n".join(
            [
                sheet["title"],
                "",
                align_columns(sheet["names"], sheet["columns"]),
                *(f"note: {note}" for note in sheet["notes"]),
            ]
        )
        for sheet in result["tables"]
    )


def align_columns(names: list[str], columns: dict[str, list[str]], refused: dict[int, str] | None = None) -> str:
    """Aligned columns; a refused row has its reason instead of numbers."""
    refused, wide = refused or {}, max(len(name) for name in names)
    widths = {name: max([len(name), *(len(cells[i]) for i in range(len(names)) if i not in refused)])
              for name, cells in columns.items()}  # fmt: skip
    lines = ["  ".join([" " * wide, *(f"{name:>{size}}" for name, size in widths.items())]).rstrip()]
    for place, name in enumerate(names):
        cells = [f"{columns[each][place]:>{size}}" for each, size in widths.items()]
        told = [f"refused: {refused[place]}"] if place in refused else cells
        lines.append("  ".join([f"{name:<{wide}}", *told]).rstrip())
    return "\n".join(lines)


WORD_GROUPS = {
    "bad": {"awful": 0.24},
    "good": {"lovely": 0.20, "wonderful": 0.19, "great": 0.17, "splendid": 0.12, "pleasant": 0.08},
}
WORD_PROBABILITIES = {word: chance for group in WORD_GROUPS.values() for word, chance in group.items()}


def example_logits() -> Tensor:
    """(1, V) logits of the distribution above."""
    return torch.tensor([list(WORD_PROBABILITIES.values())], dtype=torch.float64).log()


def group_shares(**settings: object) -> dict[str, float]:
    """The probability of each group under `config.SamplingParams` settings."""
    c = config.from_dict(config.SamplingParams, settings)
    left = process_logits(example_logits(), c)[0]
    chances = left.softmax(-1) if c.temperature else (torch.arange(len(left)) == left.argmax()).double()
    each = dict(zip(WORD_PROBABILITIES, chances.tolist(), strict=True))
    return {name: sum(each[word] for word in group) for name, group in WORD_GROUPS.items()}
