"""Activation checkpointing: a block keeps its input alone, and runs once more when backward comes to it.

    kept          x │ norm q k v scores out norm hidden act │ x │ ...        all that backward needs
    recomputed    x │                                       │ x │ ...        a block's insides, one block at a time

A third more arithmetic for a fraction of the memory (Chen et al. 2016). The random numbers of the first time come again
the second time, so dropout drops the same and the gradients are the same.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.config.errors import ConfigError
from regard.core.layers import Block, Scope
from regard.models.shared_module import shared_module


class CheckpointedBlock(Block):
    """A block that keeps no activations while it is trained.

    With a cache it would write twice, and watched it would be seen twice: then it runs as any other.
    """

    def forward(self, x: Tensor, scope: Scope, *past: Any) -> Tensor:
        forgets = self.training and torch.is_grad_enabled() and scope.watch is None
        if not forgets or any(entry is not None for entry in past):
            return super().forward(x, scope, *past)
        made: Tensor = checkpoint(super().forward, x, scope, use_reentrant=False)  #: S100
        return made


def set_checkpointing(model: nn.Module, on: bool = True) -> None:
    """Let every block of a model forget its insides, or keep them again: another block takes its place, with the same
    weights under the same names."""
    old, new = (Block, CheckpointedBlock) if on else (CheckpointedBlock, Block)
    if on and not any(isinstance(part, Block) for part in model.modules()):
        raise ConfigError("train.activation_checkpointing: this model has no blocks to run once more; leave it out")
    made: dict[int, nn.Module] = {}  # a block that stands in several places is one block still
    for path, part in list(model.named_modules(remove_duplicate=False)):
        if type(part) is old:
            model.set_submodule(path, made.setdefault(id(part), shared_module(new, part)))
