"""Activation checkpointing: a block keeps only its input, and runs again in backward.

    kept          x │ norm q k v scores out norm hidden act │ x │ ...        all that backward needs
    recomputed    x │                                       │ x │ ...        a block's activations, one block at a time

A third more FLOPs for a fraction of the memory (Chen et al. 2016). RNG states are restored for the second run, so
dropout and gradients are the same.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.config.errors import ConfigError
from regard.core.layers import Block, Scope
from regard.models.shared_module import shared_module


class CheckpointedBlock(Block):
    """A block with activation checkpointing in training.

    With a cache it would write twice, and hooks would record twice: it then runs normally.
    """

    def forward(self, x: Tensor, scope: Scope, *past: Any) -> Tensor:
        forgets = self.training and torch.is_grad_enabled() and scope.watch is None
        if not forgets or any(entry is not None for entry in past):
            return super().forward(x, scope, *past)
        made: Tensor = checkpoint(super().forward, x, scope, use_reentrant=False)  #: S100
        return made


def set_checkpointing(model: nn.Module, on: bool = True) -> None:
    """Turn activation checkpointing of every block on or off: each block is replaced by one of the other class with the
    same weights and names."""
    old, new = (Block, CheckpointedBlock) if on else (CheckpointedBlock, Block)
    if on and not any(isinstance(part, Block) for part in model.modules()):
        raise ConfigError("train.activation_checkpointing: this model has no blocks to recompute; leave it out")
    made: dict[int, nn.Module] = {}  # a block at several positions stays one block
    for path, part in list(model.named_modules(remove_duplicate=False)):
        if type(part) is old:
            model.set_submodule(path, made.setdefault(id(part), shared_module(new, part)))
