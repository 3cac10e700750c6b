"""Cost estimate of a model or of a parameter count: parameters, FLOPs, memory; and a training run's time and price."""

import warnings
from dataclasses import dataclass, replace

from torch import nn

from regard import config
from regard.attention.pairwise import window_reach
from regard.core.masks import mask
from regard.measure.activations import ActivationMemory, activation_memory, get_at, map_trunks, trunk_paths
from regard.measure.complexity import (
    AttentionGrowth,
    AttentionShare,
    LayerComplexity,
    attention_growth,
    attention_share,
    layer_complexities,
    main_model,
)
from regard.measure.fake_model import (
    IMAGE_EMBEDDINGS,
    ModelConfig,
    check_context,
    count_parameters,
    count_unit,
    max_tokens,
    meta_model,
    precision_on_device,
)
from regard.measure.flops import FlopCount, count_flops
from regard.measure.hardware import CostTerms, TrainingCost, TrainingSpeed, find_device, local_chip
from regard.measure.memory import (
    CacheMemory,
    MemoryFit,
    OptimizerConfig,
    RankMemory,
    TrainingMemory,
    cache_memory,
    largest_block_bytes,
    memory_from_count,
    parameter_memory,
)

MOST_TOKENS, MOST_PAIRS, MOST_LAYERS, MOST_WIDE = 2**40, 2**50, 10_000, 2**24
KERNELS = ("reference", "fused")  # kernels whose activations are listed beside the chosen one's


@dataclass(frozen=True)
class ParameterEstimate:
    """The estimate from a number of parameters alone."""

    parameters: int
    precision: str
    ranks: int
    memory: TrainingMemory
    rank: TrainingMemory
    pace: TrainingSpeed | None
    fit: MemoryFit | None
    training: TrainingCost | None


@dataclass(frozen=True)
class ModelEstimate:
    """The estimate of a model: one optimizer step on `batch` sequences of `context` tokens a rank, and what follows.

    `memory` is that of a single rank, `rank` that of each of `ranks` sharded ones; `activations` are by kernel, "auto"
    being a CPU's choice. `unit` is the unit of `flops`: a token, an image, a pair. With `recompute`, every block runs
    once more in backward, and activations in `memory` are the checkpointed ones.
    """

    batch: int
    context: int
    parts: dict[str, int]
    flops: FlopCount
    memory: TrainingMemory
    precision: str
    unit: str
    ranks: int
    rank: TrainingMemory
    activations: dict[str, ActivationMemory]
    cache: CacheMemory | None
    share: AttentionShare
    growth: tuple[AttentionGrowth, ...]
    complexity: tuple[LayerComplexity, ...]
    pace: TrainingSpeed | None
    fit: MemoryFit | None
    training: TrainingCost | None
    recompute: bool = False

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def step_flops(self) -> float:
        """FLOPs of a step on one rank."""
        return self.flops.training_sequence * self.batch

    @property
    def step_seconds(self) -> float | None:
        return None if self.pace is None else self.step_flops * self.ranks / self.pace.rate

    @property
    def decoding(self) -> float | None:
        """An upper bound of generated tokens a second, given by the memory bandwidth for weights and cache."""
        if self.pace is None or self.cache is None:
            return None
        return self.pace.decoding(self.memory.weights + self.cache.total, self.batch)


def estimate_model(
    c: ModelConfig,
    *,
    batch: int = 1,
    context: int | None = None,
    optimizer: OptimizerConfig | None = None,
    ranks: int = 1,
    terms: CostTerms | None = None,
    recompute: bool = False,
) -> ModelEstimate:
    """Estimate the cost of a model without building it; `context` is by default its maximum length, or 512."""
    c = getattr(c, "c", c)  # a model has its config as `c`
    if not isinstance(c, config.Transformer | config.DualEncoder):
        raise TypeError(f"estimate takes a config or a model, got {c!r}; regard.preset('gpt2') is a config")
    check_positive_sizes(batch=batch, ranks=ranks, context=context)
    context, terms = check_context(c, context), terms or CostTerms()
    c = precision_on_device(c, local_chip()) if terms.device == "here" else c
    check_sizes(c, batch, context)
    shape = meta_model(c)
    kept = c if terms.device in (None, "here") else map_trunks(c, without_saved_dropout)
    kernels = {"auto": activation_memory(kept, batch, context)} | {
        name: activation_memory(kept, batch, context, name) for name in KERNELS
    }
    if ranks > 1 and main_model(c).precision == "mixed":  # 16-bit copies of weights are freed with their block
        copies = 2 * autocast_copies(shape)
        kernels = {name: ActivationMemory(each.kept - copies, each.checkpointed) for name, each in kernels.items()}
    state, block = parameter_memory(shape, optimizer or config.AdamW()), largest_block_bytes(shape)
    memory = TrainingMemory(state.weights, state.gradients, state.optimizer,
                    kernels["auto"].checkpointed if recompute else kernels["auto"].kept)  # fmt: skip
    parts, arithmetic, main = count_parameters(shape), count_flops(shape, context, recompute=recompute), main_model(c)
    its = arithmetic if main is c else count_flops(main, context)
    tokens = max_tokens(main) if isinstance(main.embed, IMAGE_EMBEDDINGS) else context
    pace = training_speed(terms, main.precision, ranks)
    return ModelEstimate(
        batch=batch,
        context=context,
        parts=parts,
        flops=arithmetic,
        memory=memory,
        precision=main.precision,
        unit=count_unit(c),
        ranks=ranks,
        rank=memory.per_rank(ranks, block),
        activations=kernels,
        cache=cache_memory(shape, batch, context),
        share=attention_share(main, its, tokens),
        growth=attention_growth(attention_heads(main)),
        complexity=layer_complexities(tokens, main.trunk.dim, window=window_length(main.trunk)),
        pace=pace,
        fit=None if pace is None else RankMemory(memory, kernels["auto"], block, batch, ranks).fit(pace.device.memory),
        training=training_cost(terms, sum(parts.values()), arithmetic.training_sequence / context, pace),
        recompute=recompute,
    )


def estimate_parameters(
    parameters: int, *, precision: str = "fp32", optimizer: OptimizerConfig | None = None, ranks: int = 1,
    terms: CostTerms | None = None,
) -> ParameterEstimate:  # fmt: skip
    """Estimate the cost of a number of parameters: weights, gradients, optimizer, and the rule of thumb."""
    check_positive_sizes(parameters=parameters, ranks=ranks)
    terms = terms or CostTerms()
    memory, pace = (
        memory_from_count(parameters, precision, optimizer or config.AdamW()),
        training_speed(terms, precision, ranks),
    )
    fit = None if pace is None else RankMemory(memory, ActivationMemory(0, 0), 0, 1, ranks).fit(pace.device.memory)
    training = training_cost(terms, parameters, None, pace)
    return ParameterEstimate(parameters, precision, ranks, memory, memory.per_rank(ranks), pace, fit, training)


def training_speed(terms: CostTerms, precision: str, ranks: int) -> TrainingSpeed | None:
    if terms.device is None:
        return None
    chosen = find_device(terms.device)
    chosen.peak(precision)  # raises if the device has no peak in this precision
    return TrainingSpeed(chosen, precision, ranks, terms.utilization, terms.price)


def without_saved_dropout(trunk: config.Trunk) -> config.Trunk:
    """A trunk without attention dropout: fused kernels of accelerators recompute it in backward, those of a CPU save
    it."""
    return replace(trunk, dropout=replace(trunk.dropout, attention=0.0))


def autocast_copies(shape: nn.Module) -> int:
    """The number of parameters in matrices that autocast copies."""
    maps = (part.weight for part in shape.modules() if isinstance(part, nn.Linear | nn.Conv2d))
    return sum({id(weight): weight.numel() for weight in maps}.values())  # tied weights count once


def window_length(trunk: config.Trunk | config.RecurrentStack) -> int | None:
    """The largest sliding window of a trunk, if it has any."""
    found = [window_reach(mask(text)) for text in trunk.masks]
    return max((each[0] for each in found if each is not None), default=None)


def attention_heads(c: config.Transformer) -> tuple[int, ...]:
    """The number of heads of every attention layer, cross-attention included; the trunk's own first."""
    around = [get_at(c, path) for path in sorted(trunk_paths(c), key=lambda path: path != ("trunk",))]
    own = [heads for trunk in around for heads in trunk.heads if trunk.mixer.kind == "attention"]
    if isinstance(c.trunk, config.RecurrentStack) or c.trunk.cross == "none":
        return tuple(own)
    across = c.trunk.cross_attention or c.trunk.attention
    return (*own, *(across.counts(i, c.trunk.dim)[0] for i in range(c.trunk.depth)))


def training_cost(
    terms: CostTerms, parameters: int, flops: float | None, pace: TrainingSpeed | None
) -> TrainingCost | None:
    if terms.tokens is None:
        return None
    run = TrainingCost(
        terms.tokens, parameters, None if flops is None else flops * terms.tokens, terms.tokens_per_parameter, pace
    )
    if not run.enough:
        warnings.warn(f"{run.tokens_per_parameter:.3g} tokens per parameter are fewer than the recommended "
                      f"{run.wanted:g}: train on {run.wanted * parameters:.2e} tokens, or make the model "
                      "smaller", stacklevel=3)  # fmt: skip
    return run


def check_sizes(c: ModelConfig, batch: int, context: int) -> None:
    """Refuse sizes that overflow, before torch fails on them."""
    if batch * context > MOST_TOKENS or batch * context * context > MOST_PAIRS:
        raise config.ConfigError(f"batch: {batch} sequences of {context} tokens are more than one step can hold; "
                                 "choose a smaller batch or context")  # fmt: skip
    for path in trunk_paths(c):
        trunk = get_at(c, path)
        where = ".".join(map(str, path))
        for name, number, most in (("depth", trunk.depth, MOST_LAYERS), ("dim", trunk.dim, MOST_WIDE),
                                   ("mlp.hidden", trunk.mlp.hidden or 0, MOST_WIDE)):  # fmt: skip
            if number > most:
                raise config.ConfigError(f"{where}.{name}: {number} is more than the {most} that can be counted")


def check_positive_sizes(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise config.ConfigError(f"{name}: {number} is less than 1")
