"""What lies in parts on many ranks, for a checkpoint that is like any other: the same files, for any number of ranks.

    saving     each rank its parts ──► .step-000200.3f9c.regard-new/*/ ──► whole tensors ──► step-000200/
    loading    step-000200/train/optim.safetensors ──► each rank reads its parts

Through torch.distributed.checkpoint, and only its storage in safetensors: its usual reader unpickles what it finds.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor

from regard.core.model import Transformer
from regard.heads import Towers
from regard.hub import folder as hub
from regard.hub.whole import fresh
from regard.measure.ghost import outline
from regard.train.parallel.ranks import Ranks

Table = dict[str, Tensor]


# ---------------------------------------------------------------- saving


@contextmanager
def gathered(ranks: Ranks, tables: Mapping[str, Table], path: Path) -> Iterator[dict[str, Table]]:
    """Inside, the first rank has every table in whole tensors, and the others have nothing; `path` is where the
    checkpoint will be."""
    with aside(ranks, path) as folder:
        yield {name: collected(ranks, table, folder / name) for name, table in tables.items()}


@contextmanager
def aside(ranks: Ranks, path: Path) -> Iterator[Path]:
    """A folder beside a checkpoint, seen by all ranks; it is removed in the end, or swept like any torn checkpoint."""
    if not ranks.leads:
        yield Path(ranks.told(str))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with fresh(path) as folder:
        try:
            yield Path(ranks.told(lambda: str(folder.resolve())))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def collected(ranks: Ranks, table: Table, folder: Path) -> Table:
    """Each rank writes its parts, the first one puts them together in a file, and has the tensors from there.

    What is whole on every rank stays where it is: a tensor of no axis would come out of such a file as zero.
    """
    if parts := {name: tensor for name, tensor in table.items() if isinstance(tensor, DTensor)}:
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=True)
        try:
            save(dict(parts), storage_writer=writer)
        except CheckpointException as problem:
            raise cause(problem) from None
    if not ranks.leads:
        return {}
    made = hub.tensors_from(next(folder.glob("*.safetensors"))) if parts else {}
    return {name: made.get(name, tensor) for name, tensor in table.items()}


def cause(problem: CheckpointException) -> BaseException:
    """What one of the ranks met; all are told."""
    return next((wrapped[0] for wrapped in problem.failures.values()), problem)


# ---------------------------------------------------------------- loading


def parted(path: Path, slots: Table) -> Table:
    """The tensors in a file; of those whose slots are in parts, this rank's part alone is read."""
    held = hub.tensors_from(path)
    parts = {name: torch.empty_like(slot) for name, slot in slots.items() if isinstance(slot, DTensor)
             and name in held and (held[name].shape, held[name].dtype) == (slot.shape, slot.dtype)}  # fmt: skip
    if parts:
        load(dict(parts), storage_reader=HuggingFaceStorageReader(str(path.parent)))
    return held | parts


@torch.no_grad()
def fill(model: Transformer | Towers, folder: hub.Folder) -> None:
    """A folder's weights into a model in parts; through the host's memory, where families' names are read."""
    mine = dict(model.named_parameters())
    room = {name: torch.empty(weight.shape, dtype=weight.dtype) for name, weight in mine.items()}
    hub.fill(whole(model, room), folder)
    for name, weight in mine.items():
        assert isinstance(weight, DTensor)
        weight.copy_(distribute_tensor(room[name], weight.device_mesh, weight.placements, src_data_rank=None))


def whole(model: nn.Module, tensors: Table) -> Transformer:
    """A model of these whole tensors, in the shape of one in parts; what is tied there is tied here."""
    assert isinstance(model, Transformer)
    made, known = outline(model.c), {id(weight): name for name, weight in model.named_parameters()}
    weights = {name: nn.Parameter(tensors[name], requires_grad=False) for name in known.values()}
    for name, weight in model.named_parameters(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        setattr(made.get_submodule(owner), last, weights[known[id(weight)]])
    assert isinstance(made, Transformer)
    return made
