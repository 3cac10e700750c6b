"""The whole bill of a model before it runs: parameters, arithmetic, memory; and, for a run, time and money."""

import warnings
from dataclasses import dataclass, replace

from torch import nn

from regard import config
from regard.core.masks import mask
from regard.efficient.local import reach
from regard.measure.activations import Activations, at, everywhere, held, paths
from regard.measure.complexity import Layer, complexity
from regard.measure.devices import chip, device
from regard.measure.fit import Fit, Load
from regard.measure.flops import Flops, flops
from regard.measure.ghost import Config, outline, precision_here
from regard.measure.growth import Growth, Share, growth, share, spoken
from regard.measure.lengths import SIZED, checked, longest, unit
from regard.measure.memory import Cache, Memory, Optimizer, cache, counted_memory, largest_block, parameter_memory
from regard.measure.parameters import parameters
from regard.measure.spend import Pace, Terms, Training

__all__ = ["Count", "Estimate", "count", "estimate", "longest"]
MOST_TOKENS, MOST_PAIRS, MOST_LAYERS, MOST_WIDE = 2**40, 2**50, 10_000, 2**24
KERNELS = ("reference", "fused")  # whose activations are told beside those of the kernel that would run


@dataclass(frozen=True)
class Count:
    """What can be said from a number of parameters alone."""

    parameters: int
    precision: str
    ranks: int
    memory: Memory
    rank: Memory
    pace: Pace | None
    fit: Fit | None
    training: Training | None


@dataclass(frozen=True)
class Estimate:
    """One optimizer step on `batch` sequences of `context` tokens a rank, and what follows from it.

    `memory` is that of a rank alone, `rank` that of each of `ranks` that share; `activations` are by kernel, "auto"
    being what a CPU would choose. `unit` is what `flops` are counted by: a token, an image, a pair. With `recompute`,
    every block runs once more in backward, and activations in `memory` are the checkpointed ones.
    """

    batch: int
    context: int
    parts: dict[str, int]
    flops: Flops
    memory: Memory
    precision: str
    unit: str
    ranks: int
    rank: Memory
    activations: dict[str, Activations]
    cache: Cache | None
    share: Share
    growth: tuple[Growth, ...]
    complexity: tuple[Layer, ...]
    pace: Pace | None
    fit: Fit | None
    training: Training | None
    recompute: bool = False

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def step_flops(self) -> float:
        """Of one rank."""
        return self.flops.training_sequence * self.batch

    @property
    def step_seconds(self) -> float | None:
        return None if self.pace is None else self.step_flops * self.ranks / self.pace.rate

    @property
    def decoding(self) -> float | None:
        """Tokens a second that can be written at most, bound by reading weights and cache."""
        if self.pace is None or self.cache is None:
            return None
        return self.pace.decoding(self.memory.weights + self.cache.total, self.batch)


def estimate(
    c: Config, *, batch: int = 1, context: int | None = None, optimizer: Optimizer | None = None, ranks: int = 1,
    terms: Terms | None = None, recompute: bool = False,
) -> Estimate:  # fmt: skip
    """What a model costs, without making it; `context` is its longest, or 512, unless said."""
    c = getattr(c, "c", c)  # a model says its config
    if not isinstance(c, config.Transformer | config.Towers):
        raise TypeError(f"estimate takes a config or a model, got {c!r}; regard.preset('gpt2') is a config")
    positive(batch=batch, ranks=ranks, context=context)
    context, terms = checked(c, context), terms or Terms()
    c = precision_here(c, chip()) if terms.device == "here" else c
    countable(c, batch, context)
    shape = outline(c)
    kept = c if terms.device in (None, "here") else everywhere(c, drawn_apart)
    kernels = {"auto": held(kept, batch, context)} | {name: held(kept, batch, context, name) for name in KERNELS}
    if ranks > 1 and spoken(c).precision == "mixed":  # the 16-bit copies of weights go with the block they are of
        copies = 2 * products(shape)
        kernels = {name: Activations(each.kept - copies, each.checkpointed) for name, each in kernels.items()}
    state, block = parameter_memory(shape, optimizer or config.AdamW()), largest_block(shape)
    memory = Memory(state.weights, state.gradients, state.optimizer,
                    kernels["auto"].checkpointed if recompute else kernels["auto"].kept)  # fmt: skip
    parts, arithmetic, main = parameters(shape), flops(shape, context, recompute=recompute), spoken(c)
    its = arithmetic if main is c else flops(main, context)
    tokens = longest(main) if isinstance(main.embed, SIZED) else context
    pace = hired(terms, main.precision, ranks)
    return Estimate(
        batch=batch, context=context, parts=parts, flops=arithmetic, memory=memory, precision=main.precision,
        unit=unit(c), ranks=ranks, rank=memory.over(ranks, block), activations=kernels,
        cache=cache(shape, batch, context), share=share(main, its, tokens), growth=growth(attending(main)),
        complexity=complexity(tokens, main.trunk.dim, window=window(main.trunk)), pace=pace,
        fit=None if pace is None else Load(memory, kernels["auto"], block, batch, ranks).fit(pace.device.memory),
        training=trained(terms, sum(parts.values()), arithmetic.training_sequence / context, pace),
        recompute=recompute,
    )  # fmt: skip


def count(
    parameters: int, *, precision: str = "fp32", optimizer: Optimizer | None = None, ranks: int = 1,
    terms: Terms | None = None,
) -> Count:  # fmt: skip
    """What a number of parameters costs, whatever the model: weights, gradients, optimizer, and the rule of thumb."""
    positive(parameters=parameters, ranks=ranks)
    terms = terms or Terms()
    memory, pace = counted_memory(parameters, precision, optimizer or config.AdamW()), hired(terms, precision, ranks)
    fit = None if pace is None else Load(memory, Activations(0, 0), 0, 1, ranks).fit(pace.device.memory)
    training = trained(terms, parameters, None, pace)
    return Count(parameters, precision, ranks, memory, memory.over(ranks), pace, fit, training)


def hired(terms: Terms, precision: str, ranks: int) -> Pace | None:
    if terms.device is None:
        return None
    chosen = device(terms.device)
    chosen.peak(precision)  # a device without one in this precision says so here
    return Pace(chosen, precision, ranks, terms.utilisation, terms.price)


def drawn_apart(trunk: config.Trunk) -> config.Trunk:
    """Fused kernels of accelerators draw dropout again in backward; on a CPU the weights are written for it."""
    return replace(trunk, dropout=replace(trunk.dropout, attention=0.0))


def products(shape: nn.Module) -> int:
    """Numbers in the matrices that autocast copies."""
    maps = (part.weight for part in shape.modules() if isinstance(part, nn.Linear | nn.Conv2d))
    return sum({id(weight): weight.numel() for weight in maps}.values())  # a tied one counts once


def window(trunk: config.Trunk | config.Recurrent) -> int | None:
    """How far the windows of a trunk reach, if it has any."""
    found = [reach(mask(text)) for text in trunk.masks]
    return max((each[0] for each in found if each is not None), default=None)


def attending(c: config.Transformer) -> tuple[int, ...]:
    """The heads of every layer that looks, around or across; the trunk's own come first."""
    around = [at(c, path) for path in sorted(paths(c), key=lambda path: path != ("trunk",))]
    own = [heads for trunk in around for heads in trunk.heads if trunk.mixer.kind == "attention"]
    if isinstance(c.trunk, config.Recurrent) or c.trunk.cross == "none":
        return tuple(own)
    across = c.trunk.across or c.trunk.attention
    return (*own, *(across.counts(i, c.trunk.dim)[0] for i in range(c.trunk.depth)))


def trained(terms: Terms, parameters: int, flops: float | None, pace: Pace | None) -> Training | None:
    if terms.tokens is None:
        return None
    run = Training(terms.tokens, parameters, None if flops is None else flops * terms.tokens, terms.ratio, pace)
    if not run.enough:
        warnings.warn(f"{run.ratio:.3g} tokens for each parameter, where {run.wanted:g} are wanted: read "
                      f"{run.wanted * parameters:.2e} tokens, or make the model smaller", stacklevel=3)  # fmt: skip
    return run


def countable(c: Config, batch: int, context: int) -> None:
    """Sizes that no computer numbers: said here, before torch fails to."""
    if batch * context > MOST_TOKENS or batch * context * context > MOST_PAIRS:
        raise config.ConfigError(f"batch: {batch} sequences of {context} tokens are more than one step can hold; "
                                 "choose a smaller batch or context")  # fmt: skip
    for path in paths(c):
        trunk = at(c, path)
        where = ".".join(map(str, path))
        for name, number, most in (("depth", trunk.depth, MOST_LAYERS), ("dim", trunk.dim, MOST_WIDE),
                                   ("mlp.hidden", trunk.mlp.hidden or 0, MOST_WIDE)):  # fmt: skip
            if number > most:
                raise config.ConfigError(f"{where}.{name}: {number} is more than the {most} that can be counted")


def positive(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise config.ConfigError(f"{name}: {number} is less than 1")
