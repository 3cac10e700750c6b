"""Validation of a folder: which files its names may lead to (see `files.paths`), and config.json against the weights.

A file of a hundred bytes may ask for a billion layers. What is far beyond the weights is refused while it is still a
number; what is nearly right is built without numbers and compared name by name, which tells more.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import DataError
from regard.files.paths import check_inside
from regard.hub.weight_reader import StoredTensor

LARGEST = 16 << 20  # bytes: no settings are longer, and lists in JSON take twenty times as much memory
LONGEST = 1500  # characters of a sentence


@contextmanager
def shorten_values() -> Iterator[None]:
    """What a file says is told in a sentence, and a value in it may be as long as the file."""
    try:
        yield
    except DataError as problem:
        if len(told := str(problem)) <= LONGEST:
            raise
        raise DataError(f"{told[: LONGEST - 300]} … {told[-200:]}") from None


def own_file(folder: Path, name: str, largest: int | None = LARGEST) -> Path:
    """The path of a file in a folder, if it is a file and the folder's own."""
    path = folder / name
    real = check_inside(path, folder)
    if not real.is_file():
        raise DataError(f"{path}: not a regular file; fetch or write the folder again")
    if largest is not None and (size := real.stat().st_size) > largest:
        raise DataError(f"{path}: {size:,} bytes are more than settings ever have; fetch or write the folder again")
    return path


DEEPEST = 10_000
SPARE = {"layers": 64, "sizes": 1 << 20}  # what costs nothing to build
LAYERS = re.compile(r"(.*_)?(layers?|depths?|groups|types)")  # their words for numbers that are counted up to
SIZES = ("dim", "vocab", "hidden", "heads", "embed_dim", "head_dim", "segments", "out")  # ours for the axes of tensors


def check_layer_counts(raw: Mapping[str, Any], where: str) -> None:
    """Refuse numbers of layers that no model has."""
    for path, value in nested_values(raw):
        if type(value) is int and value > DEEPEST and any(LAYERS.fullmatch(name) for name in path if name):
            raise DataError(f"{where}: {'.'.join(filter(None, path))} is {value:.6g}; no model here has more than "
                            f"{DEEPEST:,} layers")  # fmt: skip


def check_config_fits_weights(c: config.Model, stored: Mapping[str, StoredTensor], where: str) -> None:
    """Refuse what these weights cannot be of."""
    widest = max((size for each in stored.values() for size in each.shape), default=1)
    for path, value in nested_values(config.to_dict(c)):
        if type(value) is int and path[-1] in SIZES and value > widest + SPARE["sizes"]:
            told = f"{value:,}, and no axis of a tensor beside it has more than {widest:,}"
            raise DataError(f"{where}: {'.'.join(filter(None, path))} is {told}; the weights do not fit")
    layers = sum(block_counts(config.to_dict(c)))
    if layers > len(stored) + SPARE["layers"]:
        raise DataError(f"{where}: {layers:,} layers, and the weights beside it are {len(stored):,} tensors; they do "
                        "not fit")  # fmt: skip


def block_counts(tree: Any) -> Iterator[int]:
    """How many blocks of its own each stack has."""
    if isinstance(tree, dict):
        if type(tree.get("depth")) is int and not tree.get("share_layers"):
            yield tree["depth"]
        for value in tree.values():
            yield from block_counts(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from block_counts(value)


def nested_values(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value of nested tables with the names that lead to it; places in a list have none."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from nested_values(value, (*path, str(name)))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from nested_values(value, (*path, ""))
    else:
        yield path, tree
