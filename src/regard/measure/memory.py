"""Memory of training (weights, gradients, optimizer, activations) and of the KV cache, and whether it fits.

`MemoryFit` compares the need of a rank with the memory of a device, and lists remedies where it does not fit.
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
BYTES = {"fp32": 4, "mixed": 4, "bf16": 2}  # bytes of a weight under each precision policy


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of training in bytes, by purpose; `gathered` is the block that a sharded rank gathers while it runs."""

    weights: int
    gradients: int
    optimizer: int
    activations: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.gathered

    def per_rank(self, ranks: int, block: int = 0) -> "TrainingMemory":
        """The memory of each of `ranks` under full sharding: its share of weights, gradients and optimizer, one whole
        `block` with its gradients, and the activations of its own batch."""
        if ranks == 1:
            return self
        weights, gradients, optimizer = (-(-held // ranks) for held in (self.weights, self.gradients, self.optimizer))
        return TrainingMemory(weights, gradients, optimizer, self.activations, 2 * block)


def training_memory(
    model: AnyModel | ModelConfig, batch: int, context: int, optimizer: OptimizerConfig | None = None
) -> TrainingMemory:
    """The peak memory of one training step, without overheads of the allocator and the kernels."""
    shape = meta_model(model)
    bill = parameter_memory(shape, optimizer or config.AdamW())
    return replace(bill, activations=activation_bytes(shape.c, batch, context))


def parameter_memory(shape: AnyModel, optimizer: OptimizerConfig) -> TrainingMemory:
    """Weights, gradients of the same size, and optimizer state; bf16 weights have fp32 masters as well."""
    weights = state = 0
    for name, weight in shape.named_parameters():
        weights += weight.numel() * weight.element_size()
        state += 4 * (optimizer_numbers(name, weight, optimizer) + weight.numel() * (weight.dtype != torch.float32))
    return TrainingMemory(weights, weights, state)


def optimizer_numbers(name: str, weight: Tensor, optimizer: OptimizerConfig) -> int:
    """Numbers in the optimizer state of a weight: two for each parameter with Adam, one with Muon in the matrices of
    blocks, and with Adafactor one for each row and column."""
    if isinstance(optimizer, config.Adafactor):
        count = weight.numel()
        return count if weight.dim() < 2 else count // weight.shape[-1] + count // weight.shape[-2]
    matrix = ".blocks." in name and weight.dim() == 2
    return weight.numel() * (1 if matrix and isinstance(optimizer, config.Muon) else 2)


def memory_from_count(parameters: int, precision: str, optimizer: OptimizerConfig) -> TrainingMemory:
    """The training memory from a parameter count alone; the state of other optimizers depends on the shapes."""
    if not isinstance(optimizer, config.AdamW):
        raise config.ConfigError(f"optimizer: the state of {optimizer.kind} depends on the model, not on its count "
                                 "alone; name a model")  # fmt: skip
    size = BYTES[precision]
    return TrainingMemory(parameters * size, parameters * size, parameters * (12 if precision == "bf16" else 8))


def largest_block_bytes(shape: AnyModel) -> int:
    """Bytes of weights in the largest block, which fully sharded ranks gather at a time."""
    blocks = (module for module in shape.modules() if isinstance(module, Block | RecurrentStack))
    return max(sum(weight.numel() * weight.element_size() for weight in block.parameters()) for block in blocks)


# ---------------------------------------------------------------- generation


@dataclass(frozen=True)
class CacheMemory:
    """Bytes of the KV cache: keys and values of the generated text, and those of a source."""

    own: int
    source: int = 0

    @property
    def total(self) -> int:
        return self.own + self.source


def cache_memory(shape: AnyModel, batch: int, context: int) -> CacheMemory | None:
    """The KV cache as the model would allocate it; None for a model that is not autoregressive."""
    if isinstance(shape, DualEncoder) or shape.c.head.kind != "lm":
        return None
    shape = meta_model(shape.c)
    assert isinstance(shape, Transformer)
    try:
        made = shape.cache(batch, context)
    except config.ConfigError:  # its masks are not causal, or its positions need the final length
        return None
    own = sum(table.nbytes for table in made.tables())
    return CacheMemory(own, source_cache_bytes(shape.c, batch, context) if shape.encoder is not None else 0)


def source_cache_bytes(c: config.Transformer, batch: int, context: int) -> int:
    """Bytes of cross-attention's keys and values for a source as long as the context, and of the encoder's states."""
    if isinstance(c.trunk, config.RecurrentStack):  # the encoder's states, and their projection for additive attention
        return batch * context * c.trunk.dim * (2 if c.precision == "bf16" else 4) * (1 + (c.trunk.cross == "additive"))
    asks, size, numbers = c.trunk.cross_attention or c.trunk.attention, 4 if c.precision == "fp32" else 2, 0
    for layer in range(c.trunk.depth):
        _, groups, width = asks.counts(layer, c.trunk.dim)
        numbers += groups * (width + (asks.value_head_dim or width))
    vectors = c.trunk.depth if c.trunk.cross == "layerwise" else 1
    vectors_size = 2 if c.precision == "bf16" else 4  # the output of norms is fp32
    return batch * context * (numbers * size + (vectors + (vectors > 1)) * c.trunk.dim * vectors_size)


@dataclass(frozen=True)
class MemoryFit:
    """The bytes that a rank needs and a device has, and each sufficient remedy."""

    needs: int
    has: float
    remedies: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.needs <= self.has


@dataclass(frozen=True)
class RankMemory:
    """The memory of a whole step on one rank, with both kinds of activation memory and the largest block."""

    memory: TrainingMemory
    held: ActivationMemory
    block: int
    batch: int
    ranks: int

    def fit(self, has: float) -> MemoryFit:
        needs = self.memory.per_rank(self.ranks, self.block).total
        return MemoryFit(needs, has, tuple(self.remedies(has)) if needs > has else ())

    def remedies(self, has: float) -> Iterator[str]:
        """Each change that is sufficient by itself; if none is, checkpointing with more ranks."""
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
