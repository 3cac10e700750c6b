"""Memory of training (weights, gradients, optimizer, activations) and of the KV cache, and whether it fits.

`MemoryFit` compares what a rank needs with what a device has, and lists what would help where it does not fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import config
from regard.core.layers import Block
from regard.core.model import Transformer
from regard.measure.activations import ActivationMemory, activation_bytes
from regard.measure.fake_model import AnyModel, ModelConfig, meta_model
from regard.models.dual_encoder import DualEncoder
from regard.models.recurrent import RecurrentStack

OptimizerConfig = config.Optimizer
BYTES = {"fp32": 4, "mixed": 4, "bf16": 2}  # of a weight, under each precision policy


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes, by what they hold; `gathered` is what a rank among several has of a block while it runs."""

    weights: int
    gradients: int
    optimizer: int
    activations: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.gathered

    def per_rank(self, ranks: int, block: int = 0) -> "TrainingMemory":
        """What each of so many ranks holds, fully sharded: its part of everything that can be parted, one `block`
        whole with its gradients, and the activations of its own batch.
        """
        if ranks == 1:
            return self
        weights, gradients, optimizer = (-(-held // ranks) for held in (self.weights, self.gradients, self.optimizer))
        return TrainingMemory(weights, gradients, optimizer, self.activations, 2 * block)


def training_memory(
    model: AnyModel | ModelConfig, batch: int, context: int, optimizer: OptimizerConfig | None = None
) -> TrainingMemory:
    """What one training step holds at its peak, without what the allocator and the kernels take besides."""
    shape = meta_model(model)
    bill = parameter_memory(shape, optimizer or config.AdamW())
    return replace(bill, activations=activation_bytes(shape.c, batch, context))


def parameter_memory(shape: AnyModel, optimizer: OptimizerConfig) -> TrainingMemory:
    """Weights, as much for gradients, and what the optimizer remembers; bf16 weights have fp32 masters besides."""
    weights = state = 0
    for name, weight in shape.named_parameters():
        weights += weight.numel() * weight.element_size()
        state += 4 * (optimizer_numbers(name, weight, optimizer) + weight.numel() * (weight.dtype != torch.float32))
    return TrainingMemory(weights, weights, state)


def optimizer_numbers(name: str, weight: Tensor, optimizer: OptimizerConfig) -> int:
    """Numbers kept of a weight: two for each parameter by Adam, one by Muon in the blocks' matrices, and by Adafactor
    one for each row and each column."""
    if isinstance(optimizer, config.Adafactor):
        count = weight.numel()
        return count if weight.dim() < 2 else count // weight.shape[-1] + count // weight.shape[-2]
    matrix = ".blocks." in name and weight.dim() == 2
    return weight.numel() * (1 if matrix and isinstance(optimizer, config.Muon) else 2)


def memory_from_count(parameters: int, precision: str, optimizer: OptimizerConfig) -> TrainingMemory:
    """The same from a count alone; what the others keep would depend on the shapes they stand in."""
    if not isinstance(optimizer, config.AdamW):
        raise config.ConfigError(f"optimizer: what {optimizer.kind} keeps depends on the model, not on its count "
                                 "alone; name one")  # fmt: skip
    size = BYTES[precision]
    return TrainingMemory(parameters * size, parameters * size, parameters * (12 if precision == "bf16" else 8))


def largest_block_bytes(shape: AnyModel) -> int:
    """Bytes of weights in the largest block: what fully sharded ranks gather at a time."""
    blocks = (module for module in shape.modules() if isinstance(module, Block | RecurrentStack))
    return max(sum(weight.numel() * weight.element_size() for weight in block.parameters()) for block in blocks)


# ---------------------------------------------------------------- writing


@dataclass(frozen=True)
class CacheMemory:
    """Bytes that generation remembers: keys and values of what was written, and what it holds of a source."""

    own: int
    source: int = 0

    @property
    def total(self) -> int:
        return self.own + self.source


def cache_memory(shape: AnyModel, batch: int, context: int) -> CacheMemory | None:
    """As the model itself would allocate it; None for a model that does not write from left to right."""
    if isinstance(shape, DualEncoder) or shape.c.head.kind != "lm":
        return None
    shape = meta_model(shape.c)
    assert isinstance(shape, Transformer)
    try:
        made = shape.cache(batch, context)
    except config.ConfigError:  # its masks look ahead, or its positions need to know the end
        return None
    own = sum(table.nbytes for table in made.tables())
    return CacheMemory(own, source_cache_bytes(shape.c, batch, context) if shape.encoder is not None else 0)


def source_cache_bytes(c: config.Transformer, batch: int, context: int) -> int:
    """Cross-attention's keys and values of a source as long as the context, and the encoder's vectors themselves."""
    if isinstance(c.trunk, config.RecurrentStack):  # the encoder's vectors, and what an alignment makes of them once
        return batch * context * c.trunk.dim * (2 if c.precision == "bf16" else 4) * (1 + (c.trunk.cross == "additive"))
    asks, size, numbers = c.trunk.cross_attention or c.trunk.attention, 4 if c.precision == "fp32" else 2, 0
    for layer in range(c.trunk.depth):
        _, groups, width = asks.counts(layer, c.trunk.dim)
        numbers += groups * (width + (asks.value_head_dim or width))
    vectors = c.trunk.depth if c.trunk.cross == "layerwise" else 1
    vectors_size = 2 if c.precision == "bf16" else 4  # norms answer in fp32
    return batch * context * (numbers * size + (vectors + (vectors > 1)) * c.trunk.dim * vectors_size)


@dataclass(frozen=True)
class MemoryFit:
    """Bytes a rank needs and the device has, and each remedy that would be enough."""

    needs: int
    has: float
    remedies: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.needs <= self.has


@dataclass(frozen=True)
class RankMemory:
    """What is to be fitted: a whole step's memory on one rank, its activations both ways, and the largest block."""

    memory: TrainingMemory
    held: ActivationMemory
    block: int
    batch: int
    ranks: int

    def fit(self, has: float) -> MemoryFit:
        needs = self.memory.per_rank(self.ranks, self.block).total
        return MemoryFit(needs, has, tuple(self.remedies(has)) if needs > has else ())

    def remedies(self, has: float) -> Iterator[str]:
        """Each change that would do by itself; if none would, checkpointing with more ranks."""
        lighter = replace(self.memory, activations=self.held.checkpointed)
        alone = [*self.smaller(has), *self.suggest_checkpointing(lighter, has), *self.spread(self.memory, has)]
        yield from alone or (f"checkpointing and {more}" for more in self.spread(lighter, has))

    def smaller(self, has: float) -> Iterator[str]:
        state = replace(self.memory, activations=0).per_rank(self.ranks, self.block).total
        batch = int((has - state) * self.batch // max(self.memory.activations, 1))
        if 1 <= batch < self.batch:
            yield f"a batch of {batch}"

    def suggest_checkpointing(self, lighter: TrainingMemory, has: float) -> Iterator[str]:
        if lighter.per_rank(self.ranks, self.block).total <= has:
            yield "checkpointing every block (a third more arithmetic)"

    def spread(self, memory: TrainingMemory, has: float) -> Iterator[str]:
        left = has - memory.activations - 2 * self.block
        if left > 0:
            ranks = -(-(memory.weights + memory.gradients + memory.optimizer) // int(left))
            yield f"{max(ranks, self.ranks + 1):,} ranks"
