"""Safetensors weights, in one file or shards: saving, lazy loading, and loading into a model.

The headers list all tensors, so every name and shape is compared with the model before any data is read. The data is
then read directly into the model's memory, in its final dtype.
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

from regard.config.errors import DataError, name_some
from regard.files.content_cache import read_json_object
from regard.hub import name_table
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import Family
from regard.hub.name_table import NameRow
from regard.hub.validate import own_file
from regard.hub.weight_reader import ReadRequest, StoredTensor, WeightReader, read_header, shorten_error

T = TypeVar("T")
WEIGHTS_FILE, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


def save_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file; failures are OSErrors, as for any file."""
    path = Path(path)
    try:
        save_file(unshare_memory(tensors), path, metadata={"format": "pt"} if metadata is None else metadata)
    except SafetensorError as problem:
        known = re.search(r"I/O error: (.*) \(os error (\d+)\)", str(problem))
        number, reason = (int(known[2]), known[1]) if known else (errno.EIO, str(problem))
        raise OSError(number, reason, str(path)) from None
    os.chmod(path, path.parent.stat().st_mode & 0o644)  # safetensors sets owner-only permissions


def unshare_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, which safetensors refuses."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        out[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return out


def load_tensors_lazy(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file, read from disk at first use."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected tensors as safetensors")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as problem:
        raise DataError(
            f"{path}: not whole safetensors ({shorten_error(problem)}); fetch or write the file again"
        ) from None


def folder_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a model folder, read from disk at first use."""
    tensors: dict[str, Tensor] = {}
    for file in weight_file_names(folder):
        tensors |= load_tensors_lazy(own_file(folder, file, None))
    return tensors


def folder_headers(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder, from the headers of its file or its shards."""
    found: dict[str, StoredTensor] = {}
    for file in weight_file_names(folder):
        found |= read_header(own_file(folder, file, None))
    if not (folder / WEIGHTS_FILE).is_file():
        index = HFConfig(read_json_object(own_file(folder, WEIGHTS_INDEX)), str(folder / WEIGHTS_INDEX)).table(
            "weight_map"
        )
        if absent := sorted(name for name in index.said if name not in found):
            raise DataError(
                f"{folder / WEIGHTS_INDEX}: names {name_some(absent)}, and no shard has it; fetch the folder again"
            )
    return found


def weight_file_names(folder: Path) -> list[str]:
    return [WEIGHTS_FILE] if (folder / WEIGHTS_FILE).is_file() else shard_names(folder)


def shard_names(folder: Path, there: bool = True) -> list[str]:
    """The shards that an index names, all of which must exist if `there`."""
    index = HFConfig(read_json_object(own_file(folder, WEIGHTS_INDEX)), str(folder / WEIGHTS_INDEX)).table("weight_map")
    found = {name if isinstance(name, str) else repr(name)[:40] for name in index.said.values()}
    strange = sorted(name for name in found if Path(name).name != name)
    if strange or not found:
        raise DataError(
            f"{index.path}: expected a file of this folder for each tensor, found {name_some(strange) or 'none'}"
        )
    lacking = sorted(name for name in found if not (folder / name).is_file())
    if there and lacking:
        raise DataError(
            f"{folder}: {name_some(lacking)} is missing, and {WEIGHTS_INDEX} names it; fetch the folder again"
        )
    return sorted(found)


# ---------------------------------------------------------------- loading into a model


def load_folder_weights(
    model: nn.Module, folder: Path, rows: list[NameRow] | None, family: Family | None = None,
    device: torch.device | None = None,
) -> None:  # fmt: skip
    """Load a folder's weights into the model, in the model's dtypes; every name on both sides is accounted for.

    A model on the meta device is allocated on the device first. Weights for another head of the family are skipped,
    with a warning.
    """
    found = folder_headers(folder)
    try:
        if rows is not None and family is not None:
            found, aside = match_stored_names(found, rows, family)
            if aside:
                told = f"{folder}: {name_some(sorted(aside))} is of another head than the config's, and ignored"
                warnings.warn(told, stacklevel=4)
        if rows is None:
            found = {name_table.current_name(name): each for name, each in found.items()}
        moves = name_table.plan_moves(model, {name: each.ghost for name, each in found.items()}, rows)
        with WeightReader(each.path for each in found.values()) as reader:
            name_table.check_tied(moves, lambda name: reader.tensor(found[name]))
            materialize(model, device, {move.ours for move in moves if move.row.transform == "flip"})
            mine = name_table.model_tensors(model)
            reader.fill([ReadRequest(found[move.theirs], move.row, mine[move.ours].detach())
                         for move in moves if move.again is None])  # fmt: skip
    except DataError:
        raise
    except ValueError as problem:
        raise DataError(f"{folder}: the weights do not fit config.json: {problem}; fetch or write them again") from None


@torch.no_grad()
def materialize(model: nn.Module, device: torch.device | None, flipped: Container[str] = ()) -> None:
    """Allocate the parameters of a model on the meta device; tied ones stay tied.

    On a CPU a matrix that is stored `flipped` keeps the stored layout: a transpose takes as long as reading it, and
    products with few rows are faster in that layout.
    """
    made: dict[int, nn.Parameter] = {}
    here = device is None or device.type == "cpu"
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            if weight.is_meta and id(weight) not in made:
                lies = here and f"{path}.{name}" in flipped
                made[id(weight)] = nn.Parameter(
                    empty_like_on(weight.T, device).T if lies else empty_like_on(weight, device), weight.requires_grad
                )
            if weight.is_meta:
                setattr(module, name, made[id(weight)])  # setattr also updates the weight list of recurrent layers
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, empty_like_on(buffer, device))


def empty_like_on(x: Tensor, device: torch.device | None) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=device)  # `empty_like` would import much of the compiler


class MatchedName(NamedTuple):
    """A stored name as the table spells it, its row, and our name."""

    theirs: str
    row: NameRow
    ours: str


def name_spellings(rows: list[NameRow] | None, name: str, prefix: str) -> Iterator[MatchedName]:
    """The table entries for a stored name: a body stored alone (the published GPT-2) omits the prefix, others repeat
    it."""
    for way in (name, prefix + name, name.removeprefix(prefix)):
        if (known := name_table.find_row(rows, way)) is not None:
            yield MatchedName(way, *known)


def match_stored_names(found: Mapping[str, T], rows: list[NameRow], family: Family) -> tuple[dict[str, T], list[str]]:
    """Stored tensors under the table's names, and the names that belong to other classes of the family."""
    every, prefix = name_table.all_name_rows(family.table), family.prefix
    known, aside = dict[str, T](), list[str]()
    for name, tensor in found.items():
        row = next(name_spellings(rows, name, prefix), None)
        if row is None and any(name_spellings(every, name, prefix)):
            aside.append(name)
        else:
            known[name if row is None else row.theirs] = tensor
    return known, aside


# ---------------------------------------------------------------- saving from a model


def to_stored_dtype(tensors: dict[str, Tensor], types: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """The tensors in the narrower dtypes that they were stored in, if that is lossless for all; else unchanged."""
    kinds = set(types.values())
    usual = kinds.pop() if len(kinds) == 1 else None  # names may differ from the stored ones
    out = dict[str, Tensor]()
    for name, held in tensors.items():
        kind = types.get(name, usual) or held.dtype
        out[name] = held.to(kind) if kind.itemsize < held.dtype.itemsize else held
        if not torch.equal(out[name].to(held.dtype), held):
            return tensors
    return out


def torch_dtype_name(model: nn.Module | Mapping[str, Tensor]) -> str:
    """The dtype of the weights as in config.json: float32, bfloat16, ..."""
    held = model.parameters() if isinstance(model, nn.Module) else model.values()
    kinds = {tensor.dtype for tensor in held if tensor.is_floating_point()}
    return str(kinds.pop() if len(kinds) == 1 else torch.float32).removeprefix("torch.")
