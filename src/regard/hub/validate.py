"""Whether a config.json can be that of the weights beside it, before anything of that size is built.

A file of a hundred bytes may ask for a billion layers. What is far beyond the weights is refused while it is still a
number; what is nearly right is built without numbers and compared name by name, which tells more.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from regard import config
from regard.config import DataError
from regard.hub.headers import Stored

DEEPEST = 10_000
SPARE = {"layers": 64, "sizes": 1 << 20}  # what costs nothing to build
LAYERS = re.compile(r"(.*_)?(layers?|depths?|groups|types)")  # their words for numbers that are counted up to
SIZES = ("dim", "vocab", "hidden", "heads", "width", "segments", "out")  # ours for the axes of tensors


def bounded(said: Mapping[str, Any], where: str) -> None:
    """Refuse numbers of layers that nobody has."""
    for path, value in leaves(said):
        if type(value) is int and value > DEEPEST and any(LAYERS.fullmatch(name) for name in path if name):
            raise DataError(f"{where}: {'.'.join(filter(None, path))} is {value:.6g}; no model here has more than "
                            f"{DEEPEST:,} layers")  # fmt: skip


def plausible(c: config.Model, stored: Mapping[str, Stored], where: str) -> None:
    """Refuse what these weights cannot be of."""
    widest = max((size for each in stored.values() for size in each.shape), default=1)
    for path, value in leaves(config.tree(c)):
        if type(value) is int and path[-1] in SIZES and value > widest + SPARE["sizes"]:
            told = f"{value:,}, and no axis of a tensor beside it has more than {widest:,}"
            raise DataError(f"{where}: {'.'.join(filter(None, path))} is {told}; the weights do not fit")
    layers = sum(deep(config.tree(c)))
    if layers > len(stored) + SPARE["layers"]:
        raise DataError(f"{where}: {layers:,} layers, and the weights beside it are {len(stored):,} tensors; they do "
                        "not fit")  # fmt: skip


def deep(tree: Any) -> Iterator[int]:
    """How many blocks of its own each stack has."""
    if isinstance(tree, dict):
        if type(tree.get("depth")) is int and not tree.get("shared"):
            yield tree["depth"]
        for value in tree.values():
            yield from deep(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from deep(value)


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value of nested tables with the names that lead to it; places in a list have none."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from leaves(value, (*path, str(name)))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from leaves(value, (*path, ""))
    else:
        yield path, tree
