"""How much memory training takes: weights, their gradients, the optimizer's state, and what backward needs to know."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import config
from regard.measure.ghost import ghost, outline

Optimizer = config.AdamW | config.Muon


@dataclass(frozen=True)
class Memory:
    """Bytes, by what they hold."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def memory(c: config.Transformer, batch: int, context: int, optimizer: Optimizer | None = None) -> Memory:
    """What one training step holds at its peak, without what the allocator and the kernels take besides."""
    weights = sum(weight.numel() * weight.element_size() for weight in outline(c).parameters())
    return Memory(weights, weights, state(c, optimizer or config.AdamW()), activations(c, batch, context))


def state(c: config.Transformer, optimizer: Optimizer) -> int:
    """Adam keeps two fp32 numbers for each parameter, Muon one for each in the blocks' matrices; bf16 weights have
    fp32 masters besides."""
    total = 0
    for name, weight in outline(c).named_parameters():
        matrix = ".blocks." in name and weight.dim() == 2
        moments = 1 if matrix and isinstance(optimizer, config.Muon) else 2
        total += 4 * weight.numel() * (moments + (weight.dtype != torch.float32))
    return total


def activations(c: config.Transformer, batch: int, context: int) -> int:
    """What autograd keeps between forward and backward: counted on a ghost, tensor by tensor, and exact in eager mode.

    A compiled step keeps less. An encoder reads as many tokens as the decoder.
    """
    made, kept = ghost(c), list[Tensor]()
    ids = made.ids(batch, context)

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with made.mode, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = made.model(ids) if c.encoder is None else made.model(ids, source=ids)
        if c.head.kind == "vocabulary":
            F.cross_entropy(out.flatten(0, 1).float(), ids.flatten())
    own = {place(weight) for weight in made.model.parameters()}
    sizes = {place(x): x.untyped_storage().nbytes() for x in kept}  # views of one storage count once
    return sum(size for where, size in sizes.items() if where not in own)


def place(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)
