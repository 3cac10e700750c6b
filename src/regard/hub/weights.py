"""Tensors in files: safetensors and nothing else, read lazily from the disk, in one file or in many."""

import errno
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.config import DataError
from regard.hub import names
from regard.hub.families import FAMILIES
from regard.hub.families.theirs import Theirs, table_in

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
        raise DataError(f"{path}: not whole safetensors ({problem}); fetch or write the file again") from None


def stored(folder: Path) -> dict[str, Tensor]:
    """The weights of a model in a folder: one file, or shards with an index."""
    if (folder / ONE).is_file():
        return tensors_from(folder / ONE)
    index = Theirs(table_in(folder / MANY), str(folder / MANY)).inside("weight_map")
    tensors: dict[str, Tensor] = {}
    for shard in shards(folder):
        tensors |= tensors_from(folder / shard)
    absent = [name for name in index.said if name not in tensors]
    if absent:
        raise DataError(f"{folder / MANY}: names {few(absent)}, and no shard has it; fetch the folder again")
    return tensors


def shards(folder: Path) -> list[str]:
    """The files that an index names."""
    index = Theirs(table_in(folder / MANY), str(folder / MANY)).inside("weight_map")
    found = set(index.said.values())
    strange = [name for name in found if not isinstance(name, str) or Path(name).name != name]
    if strange or not found:
        raise DataError(f"{index.path}: expected a file of this folder for each tensor, found {few(strange) or 'none'}")
    lacking = sorted(name for name in found if not (folder / name).is_file())
    if lacking:
        raise DataError(f"{folder}: {few(lacking)} is missing, and {MANY} names it; fetch the folder again")
    return sorted(found)


def few(found: list[str]) -> str:
    return ", ".join(str(name) for name in sorted(found, key=str)[:3]) + (" …" if len(found) > 3 else "")


def pour(model: nn.Module, folder: Path, family: str | None) -> None:
    """A folder's weights into the model, in the types that the model has; every name on both sides is accounted for."""
    tensors = stored(folder)
    try:
        names.load(model, tensors if family is None else spelt(tensors, family), family)
    except ValueError as problem:
        raise DataError(f"{folder}: the weights do not fit config.json: {problem}; fetch or write them again") from None


def spelt(tensors: dict[str, Tensor], family: str) -> dict[str, Tensor]:
    """A trunk that was stored alone (the published GPT-2 is) leaves out the prefix of its names."""
    rows, prefix = names.table(family), FAMILIES[family].prefix

    def known(name: str) -> bool:
        return any(row.translate(name) is not None for row in rows)

    return {prefix + name if not known(name) and known(prefix + name) else name: x for name, x in tensors.items()}


def their_type(model: nn.Module) -> str:
    """The type that the weights are held in, as config.json says it: float32, bfloat16, ..."""
    kinds = {tensor.dtype for tensor in model.parameters()}
    return str(kinds.pop() if len(kinds) == 1 else torch.float32).removeprefix("torch.")
