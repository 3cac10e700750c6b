"""Validation of a model folder: paths that stay inside it (see `files.paths`), and config.json against the weights.

A config.json of a hundred bytes may request a billion layers. Numbers far beyond the weights are refused before
anything is built; a config that is nearly right is built on the meta device and compared name by name, for a better
error message.
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

LARGEST = 16 << 20  # bytes: no config is larger, and lists in JSON take twenty times as much memory
LONGEST = 1500  # characters of a sentence


@contextmanager
def shorten_values() -> Iterator[None]:
    """Shorten errors: a value from a file may be as long as the file."""
    try:
        yield
    except DataError as problem:
        if len(told := str(problem)) <= LONGEST:
            raise
        raise DataError(f"{told[: LONGEST - 300]} … {told[-200:]}") from None


def own_file(folder: Path, name: str, largest: int | None = LARGEST) -> Path:
    """The path of a regular file inside a folder; refuses links that lead out of it."""
    path = folder / name
    real = check_inside(path, folder)
    if not real.is_file():
        raise DataError(f"{path}: not a regular file; fetch or write the folder again")
    if largest is not None and (size := real.stat().st_size) > largest:
        raise DataError(f"{path}: {size:,} bytes are more than settings ever have; fetch or write the folder again")
    return path


DEEPEST = 10_000
SPARE = {"layers": 64, "sizes": 1 << 20}  # tolerance: what costs nothing to build
LAYERS = re.compile(r"(.*_)?(layers?|depths?|groups|types)")  # keys that hold numbers of layers
SIZES = ("dim", "vocab", "hidden", "heads", "embed_dim", "head_dim", "segments", "out")  # settings that size an axis


def check_layer_counts(raw: Mapping[str, Any], where: str) -> None:
    """Refuse impossible numbers of layers."""
    for path, value in nested_values(raw):
        if type(value) is int and value > DEEPEST and any(LAYERS.fullmatch(name) for name in path if name):
            raise DataError(f"{where}: {'.'.join(filter(None, path))} is {value:.6g}; no model here has more than "
                            f"{DEEPEST:,} layers")  # fmt: skip


def check_config_fits_weights(c: config.Model, stored: Mapping[str, StoredTensor], where: str) -> None:
    """Refuse a config that is far too large for these weights."""
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
    """The number of blocks with their own weights, for each trunk."""
    if isinstance(tree, dict):
        if type(tree.get("depth")) is int and not tree.get("share_layers"):
            yield tree["depth"]
        for value in tree.values():
            yield from block_counts(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from block_counts(value)


def nested_values(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value of nested objects with its path; list indices are empty."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from nested_values(value, (*path, str(name)))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from nested_values(value, (*path, ""))
    else:
        yield path, tree
