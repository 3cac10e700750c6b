"""How much memory a model takes: to train it (weights, gradients, optimizer, activations), and to write with it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import config
from regard.core.layers import Block
from regard.core.model import Transformer
from regard.heads import Towers
from regard.measure.activations import activations
from regard.measure.ghost import Config, Model, outline
from regard.recurrent.stack import Recurrent

Optimizer = config.Optimizer
BYTES = {"fp32": 4, "mixed": 4, "bf16": 2}  # of a weight, under each precision policy


@dataclass(frozen=True)
class Memory:
    """Bytes, by what they hold; `gathered` is what a rank among several has of a block while it runs."""

    weights: int
    gradients: int
    optimizer: int
    activations: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.gathered

    def over(self, ranks: int, block: int = 0) -> "Memory":
        """What each of so many ranks holds, fully sharded: its part of everything that can be parted, one `block`
        whole with its gradients, and the activations of its own batch.
        """
        if ranks == 1:
            return self
        weights, gradients, optimizer = (-(-held // ranks) for held in (self.weights, self.gradients, self.optimizer))
        return Memory(weights, gradients, optimizer, self.activations, 2 * block)


def memory(model: Model | Config, batch: int, context: int, optimizer: Optimizer | None = None) -> Memory:
    """What one training step holds at its peak, without what the allocator and the kernels take besides."""
    shape = outline(model)
    bill = parameter_memory(shape, optimizer or config.AdamW())
    return replace(bill, activations=activations(shape.c, batch, context))


def parameter_memory(shape: Model, optimizer: Optimizer) -> Memory:
    """Weights, as much for gradients, and what the optimizer remembers; bf16 weights have fp32 masters besides."""
    weights = state = 0
    for name, weight in shape.named_parameters():
        weights += weight.numel() * weight.element_size()
        state += 4 * (remembered(name, weight, optimizer) + weight.numel() * (weight.dtype != torch.float32))
    return Memory(weights, weights, state)


def remembered(name: str, weight: Tensor, optimizer: Optimizer) -> int:
    """Numbers kept of a weight: two for each parameter by Adam, one by Muon in the blocks' matrices, and by Adafactor
    one for each row and each column."""
    if isinstance(optimizer, config.Adafactor):
        count = weight.numel()
        return count if weight.dim() < 2 else count // weight.shape[-1] + count // weight.shape[-2]
    matrix = ".blocks." in name and weight.dim() == 2
    return weight.numel() * (1 if matrix and isinstance(optimizer, config.Muon) else 2)


def counted_memory(parameters: int, precision: str, optimizer: Optimizer) -> Memory:
    """The same from a count alone; what the others keep would depend on the shapes they stand in."""
    if not isinstance(optimizer, config.AdamW):
        raise config.ConfigError(f"optimizer: what {optimizer.kind} keeps depends on the model, not on its count "
                                 "alone; name one")  # fmt: skip
    size = BYTES[precision]
    return Memory(parameters * size, parameters * size, parameters * (12 if precision == "bf16" else 8))


def largest_block(shape: Model) -> int:
    """Bytes of weights in the largest block: what fully sharded ranks gather at a time."""
    blocks = (module for module in shape.modules() if isinstance(module, Block | Recurrent))
    return max(sum(weight.numel() * weight.element_size() for weight in block.parameters()) for block in blocks)


# ---------------------------------------------------------------- writing


@dataclass(frozen=True)
class Cache:
    """Bytes that generation remembers: keys and values of what was written, and what it holds of a source."""

    own: int
    source: int = 0

    @property
    def total(self) -> int:
        return self.own + self.source


def cache(shape: Model, batch: int, context: int) -> Cache | None:
    """As the model itself would allocate it; None for a model that does not write from left to right."""
    if isinstance(shape, Towers) or shape.c.head.kind != "vocabulary":
        return None
    shape = outline(shape.c)
    assert isinstance(shape, Transformer)
    try:
        made = shape.cache(batch, context)
    except ValueError:  # its masks look ahead, or its positions need to know the end
        return None
    own = sum(table.nbytes for table in made.tables())
    return Cache(own, source_cache(shape.c, batch, context) if shape.encoder is not None else 0)


def source_cache(c: config.Transformer, batch: int, context: int) -> int:
    """Cross-attention's keys and values of a source as long as the context, and the encoder's vectors themselves."""
    if isinstance(c.trunk, config.Recurrent):  # the encoder's vectors, and what an alignment makes of them once
        return batch * context * c.trunk.dim * (2 if c.precision == "bf16" else 4) * (1 + (c.trunk.cross == "additive"))
    asks, size, numbers = c.trunk.across or c.trunk.attention, 4 if c.precision == "fp32" else 2, 0
    for layer in range(c.trunk.depth):
        _, groups, width = asks.counts(layer, c.trunk.dim)
        numbers += groups * (width + (asks.value_width or width))
    vectors = c.trunk.depth if c.trunk.cross == "layerwise" else 1
    vectors_size = 2 if c.precision == "bf16" else 4  # norms answer in fp32
    return batch * context * (numbers * size + (vectors + (vectors > 1)) * c.trunk.dim * vectors_size)
