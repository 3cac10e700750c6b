"""Tensors in files: safetensors and nothing else, in one file or in many.

What files hold is known from their headers, so every name and shape is compared with the model before a number is read.
Then the numbers go from the disk straight to where they stay, in the type that they stay in.
"""

import errno
import os
import re
import warnings
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.config import DataError
from regard.hub import names
from regard.hub.families import Family
from regard.hub.families.theirs import Theirs, table_in
from regard.hub.headers import Stored, brief, header
from regard.hub.names import Row
from regard.hub.places import own
from regard.hub.reading import Reader, Wanted

T = TypeVar("T")
ONE, MANY = "model.safetensors", "model.safetensors.index.json"


def tensors_to(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors into a file; what cannot be written is an OSError, as with any file."""
    path = Path(path)
    try:
        save_file(apart(tensors), path, metadata={"format": "pt"} if metadata is None else metadata)
    except SafetensorError as problem:
        known = re.search(r"I/O error: (.*) \(os error (\d+)\)", str(problem))
        number, reason = (int(known[2]), known[1]) if known else (errno.EIO, str(problem))
        raise OSError(number, reason, str(path)) from None
    os.chmod(path, path.parent.stat().st_mode & 0o644)  # safetensors leaves it to its owner alone


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor at a place of its own in memory: two names for one place would be refused."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        out[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return out


def tensors_from(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a file, read from the disk when they are first used."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected tensors as safetensors")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as problem:
        raise DataError(f"{path}: not whole safetensors ({brief(problem)}); fetch or write the file again") from None


def stored(folder: Path) -> dict[str, Tensor]:
    """The weights of a model in a folder, read from the disk when they are first used."""
    tensors: dict[str, Tensor] = {}
    for file in files(folder):
        tensors |= tensors_from(own(folder, file, None))
    return tensors


def listed(folder: Path) -> dict[str, Stored]:
    """What the weights in a folder are, by the headers of its files: one file, or shards with an index."""
    found: dict[str, Stored] = {}
    for file in files(folder):
        found |= header(own(folder, file, None))
    if not (folder / ONE).is_file():
        index = Theirs(table_in(own(folder, MANY)), str(folder / MANY)).inside("weight_map")
        if absent := [name for name in index.said if name not in found]:
            raise DataError(f"{folder / MANY}: names {few(absent)}, and no shard has it; fetch the folder again")
    return found


def files(folder: Path) -> list[str]:
    return [ONE] if (folder / ONE).is_file() else shards(folder)


def shards(folder: Path, there: bool = True) -> list[str]:
    """The files that an index names, all of which must be `there` unless they are yet to be fetched."""
    index = Theirs(table_in(own(folder, MANY)), str(folder / MANY)).inside("weight_map")
    found = {name if isinstance(name, str) else repr(name)[:40] for name in index.said.values()}
    strange = [name for name in found if Path(name).name != name]
    if strange or not found:
        raise DataError(f"{index.path}: expected a file of this folder for each tensor, found {few(strange) or 'none'}")
    lacking = sorted(name for name in found if not (folder / name).is_file())
    if there and lacking:
        raise DataError(f"{folder}: {few(lacking)} is missing, and {MANY} names it; fetch the folder again")
    return sorted(found)


def few(found: list[str]) -> str:
    return ", ".join(str(name)[:99] for name in sorted(found, key=str)[:3]) + (" …" if len(found) > 3 else "")


# ---------------------------------------------------------------- into a model


def pour(
    model: nn.Module, folder: Path, rows: list[Row] | None, family: Family | None = None,
    device: torch.device | None = None,
) -> None:  # fmt: skip
    """A folder's weights into the model, in the types that the model has; every name on both sides is accounted for.

    A model without numbers is first given room for them, on the device. What a family stores for another of its heads
    is left aside, and a warning says so.
    """
    found = listed(folder)
    try:
        if rows is not None and family is not None:
            found, aside = spelt(found, rows, family)
            if aside:
                told = f"{folder}: {few(aside)} is of another head than the config's, and left aside"
                warnings.warn(told, stacklevel=4)
        moves = names.moves(model, {name: each.ghost for name, each in found.items()}, rows)
        with Reader(each.path for each in found.values()) as reader:
            names.check_ties(moves, lambda name: reader.tensor(found[name]))
            settle(model, device, {move.ours for move in moves if move.row.how == "flip"})
            mine = names.tensors(model)
            reader.fill([Wanted(found[move.theirs], move.row, mine[move.ours].detach())
                         for move in moves if move.again is None])  # fmt: skip
    except DataError:
        raise
    except ValueError as problem:
        raise DataError(f"{folder}: the weights do not fit config.json: {problem}; fetch or write them again") from None


@torch.no_grad()
def settle(model: nn.Module, device: torch.device | None, flipped: Container[str] = ()) -> None:
    """Room for the numbers of a model that has none yet; what is tied stays tied.

    On a CPU a matrix that is stored `flipped` lies as it is stored: to turn it would take as long as to read it, and
    products with few rows are quicker by it so.
    """
    made: dict[int, nn.Parameter] = {}
    here = device is None or device.type == "cpu"
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            if weight.is_meta and id(weight) not in made:
                lies = here and f"{path}.{name}" in flipped
                made[id(weight)] = nn.Parameter(room(weight.T, device).T if lies else room(weight, device),
                                                weight.requires_grad)  # fmt: skip
            if weight.is_meta:
                setattr(module, name, made[id(weight)])  # a recurrent layer keeps a list of its weights besides
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, room(buffer, device))


def room(x: Tensor, device: torch.device | None) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=device)  # `empty_like` would import half of the compiler


class Found(NamedTuple):
    """One of their names as the table spells it, the row that says it, and our name."""

    theirs: str
    row: Row
    ours: str


def spellings(rows: list[Row] | None, name: str, prefix: str) -> Iterator[Found]:
    """How a table says a name: a body stored alone (the published GPT-2) leaves out the prefix, others repeat it."""
    for way in (name, prefix + name, name.removeprefix(prefix)):
        if (known := names.find(rows, way)) is not None:
            yield Found(way, *known)


def spelt(found: Mapping[str, T], rows: list[Row], family: Family) -> tuple[dict[str, T], list[str]]:
    """Names as the table has them, and those that only other classes of the family have."""
    every, prefix = names.every(family.table), family.prefix
    known, aside = dict[str, T](), list[str]()
    for name, tensor in found.items():
        row = next(spellings(rows, name, prefix), None)
        if row is None and any(spellings(every, name, prefix)):
            aside.append(name)
        else:
            known[name if row is None else row.theirs] = tensor
    return known, aside


# ---------------------------------------------------------------- out of a model


def as_stored(tensors: dict[str, Tensor], types: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """Each in the narrower type that it was read from, if nothing is lost by it; else all as they are held."""
    kinds = set(types.values())
    usual = kinds.pop() if len(kinds) == 1 else None  # names may have been others
    out = dict[str, Tensor]()
    for name, held in tensors.items():
        kind = types.get(name, usual) or held.dtype
        out[name] = held.to(kind) if kind.itemsize < held.dtype.itemsize else held
        if not torch.equal(out[name].to(held.dtype), held):
            return tensors
    return out


def their_type(model: nn.Module | Mapping[str, Tensor]) -> str:
    """The type that the weights are held in, as config.json says it: float32, bfloat16, ..."""
    held = model.parameters() if isinstance(model, nn.Module) else model.values()
    kinds = {tensor.dtype for tensor in held if tensor.is_floating_point()}
    return str(kinds.pop() if len(kinds) == 1 else torch.float32).removeprefix("torch.")
