"""How a run was doing, packed for the page: gradients and updates by layer, and how widely every head looked.

A column for each look at the run's health; a layer or head that a look does not know is a gap.
"""

from typing import Any

from regard.report import named
from regard.report.curves import figures, number
from regard.report.run import Run

LOOKS = 96  # columns, at most
PARTS = ("encoder_embed", "embed", "encoder", "trunk", "head")  # as they follow each other


def health(run: Run) -> dict[str, Any]:
    """Tables of numbers with the names of their rows; empty where nobody looked."""
    every = -(-len(run.looks) // LOOKS)
    looks = run.looks[::-1][:: every or 1][::-1]  # the last one is always among them
    told = [look["health"] for look in looks]
    layers = sorted({name for look in told for name in table(look, "layers")}, key=place)
    heads = sorted({(where, head) for look in told for where, some in table(look, "heads").items()
                    for head in range(len(some) if isinstance(some, list) and where.count(".") > 1 else 0)},
                   key=ordered)  # fmt: skip
    if not layers:
        return {}
    several = len({where.split(".")[0] for where, _ in heads}) > 1
    return {
        "step": [look["step"] for look in looks],
        "layers": layers,
        **{what: [[rounded(table(table(look, "layers"), name).get(what)) for look in told] for name in layers]
           for what in ("gradient", "update")},
        "heads": [named.called(where, head, several) for where, head in heads],
        "entropy": [[rounded(entry(table(look, "heads").get(where), head)) for look in told] for where, head in heads],
    }  # fmt: skip


def table(outer: dict[str, Any], name: str) -> dict[str, Any]:
    found = outer.get(name)
    return found if isinstance(found, dict) else {}


def entry(some: Any, place: int) -> Any:
    return some[place] if isinstance(some, list) and place < len(some) else None


def rounded(value: Any) -> float | None:
    """What is not finite is written as a word, and drawn as a gap."""
    return figures(float(value)) if number(value) else None


def ordered(head: tuple[str, int]) -> tuple[int, int, int]:
    """Heads by whose they are, then layer by layer."""
    whose, layer = named.place(head[0]), head[0].rsplit(".", 2)[1]
    return named.ORDER.index(whose) if whose in named.ORDER else 0, int(layer) if layer.isdecimal() else 0, head[1]


def place(name: str) -> tuple[int, int, str]:
    """Layers in the order in which a token meets them."""
    part, _, rest = name.partition(".")
    layer = rest.partition(".")[0]
    order = PARTS.index(part) if part in PARTS else len(PARTS)
    return order, int(layer) if layer.isdecimal() else 1 << 30, rest
