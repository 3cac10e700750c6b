"""Parallel training, one model on many processes: `torchrun --nproc-per-node 4 -m regard train RECIPE`.

process_group        torchrun, SLURM and Ray environments, the heartbeat, errors of other ranks
ranks                the rows of a batch that each rank takes, reductions, barriers
wrap                 a model on every rank (DDP), or a part of it on each (FSDP)
sharded_checkpoint   sharded tensors gathered for a checkpoint, and read back
"""

from regard.training.parallel.process_group import join_process_group
from regard.training.parallel.ranks import SINGLE_PROCESS, ProcessRanks

__all__ = ["ProcessRanks", "SINGLE_PROCESS", "join_process_group"]
