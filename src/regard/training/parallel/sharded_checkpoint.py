"""Sharded tensors gathered for a checkpoint and read from one: the same files, for any number of ranks.

    saving     shards of each rank ──► .step-000200.3f9c.regard-new/*/ ──► whole tensors ──► step-000200/
    loading    step-000200/train/optim.safetensors ──► each rank reads its shards

This uses torch.distributed.checkpoint, but only its safetensors storage: its usual reader unpickles files.
"""

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
from regard.files.atomic import temporary_folder
from regard.hub import read_folder, weights
from regard.measure.fake_model import meta_model
from regard.models.dual_encoder import DualEncoder
from regard.training.parallel.ranks import ProcessRanks

Table = dict[str, Tensor]


# ---------------------------------------------------------------- saving


@contextmanager
def gather_tables(ranks: ProcessRanks, tables: Mapping[str, Table], path: Path) -> Iterator[dict[str, Table]]:
    """Context in which rank 0 has every table as whole tensors, and the others have none; `path` is the checkpoint to
    be."""
    with shared_folder(ranks, path) as folder:
        yield {name: collect_table(ranks, table, folder / name) for name, table in tables.items()}


@contextmanager
def shared_folder(ranks: ProcessRanks, path: Path) -> Iterator[Path]:
    """A folder beside a checkpoint that all ranks see; removed at the end, or with other incomplete checkpoints."""
    if not ranks.is_main:
        yield Path(ranks.broadcast(str))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path) as folder:
        yield Path(ranks.broadcast(lambda: str(folder.resolve())))


def collect_table(ranks: ProcessRanks, table: Table, folder: Path) -> Table:
    """Write each rank's shards; rank 0 merges them into one file and returns its tensors.

    Unsharded tensors are passed through: a tensor without axes would come out of such a file as zero.
    """
    if parts := {name: tensor for name, tensor in table.items() if isinstance(tensor, DTensor)}:
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=True)
        try:
            save(dict(parts), storage_writer=writer)
        except CheckpointException as problem:
            raise root_problem(problem) from None
    if not ranks.is_main:
        return {}
    made = weights.load_tensors_lazy(next(folder.glob("*.safetensors"))) if parts else {}
    return {name: made.get(name, tensor) for name, tensor in table.items()}


def root_problem(problem: CheckpointException) -> BaseException:
    """The error of one rank, from an exception that all ranks get."""
    return next((wrapped[0] for wrapped in problem.failures.values()), problem)


# ---------------------------------------------------------------- loading


def read_local_part(path: Path, slots: Table) -> Table:
    """The tensors in a file; for sharded slots only this rank's shard is read."""
    held = weights.load_tensors_lazy(path)
    parts = {name: torch.empty_like(slot) for name, slot in slots.items() if isinstance(slot, DTensor)
             and name in held and (held[name].shape, held[name].dtype) == (slot.shape, slot.dtype)}  # fmt: skip
    if parts:
        load(dict(parts), storage_reader=HuggingFaceStorageReader(str(path.parent)))
    return held | parts


@torch.no_grad()
def load_sharded(model: Transformer | DualEncoder, folder: read_folder.ModelFolder) -> None:
    """Load a folder's weights into a sharded model; via CPU memory if the folder has another family's names."""
    mine = dict(model.named_parameters())
    room = {name: torch.empty(weight.shape, dtype=weight.dtype) for name, weight in mine.items()}
    read_folder.load_weights(unshard_model(model, room), folder)
    for name, weight in mine.items():
        assert isinstance(weight, DTensor)
        weight.copy_(distribute_tensor(room[name], weight.device_mesh, weight.placements, src_data_rank=None))


def unshard_model(model: nn.Module, tensors: Table) -> Transformer:
    """An unsharded model with these whole tensors, and with the same tied weights."""
    assert isinstance(model, Transformer)
    made, known = meta_model(model.c), {id(weight): name for name, weight in model.named_parameters()}
    weights = {name: nn.Parameter(tensors[name], requires_grad=False) for name in known.values()}
    for name, weight in model.named_parameters(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        setattr(made.get_submodule(owner), last, weights[known[id(weight)]])
    assert isinstance(made, Transformer)
    return made
