"""A kernel beside dense attention: how far its answers are from it, and how its time grows with the length.

Both are seen from inside: for a while the table of kernels holds kernels that are watched, and models run as ever.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.kernels import KERNELS, How, Kernel, Plan, reference
from regard.generate.model import build
from regard.generate.session import still
from regard.measure.orders import order
from regard.train.compare.probes import first
from regard.train.compare.study import LONGEST
from regard.train.evaluate import moved
from regard.train.run import Run

SHORTEST, LONG, LAST = 2048, 0.04, 3  # tokens; seconds that end it; lengths that are fitted
CPU = torch.device("cpu")
WORDS = 256  # of a vocabulary that nobody reads
AGAIN = 5  # times that each length is measured; the quickest counts, for nothing is quicker than it can be

Watched = Callable[[Kernel, Tensor, Tensor, Tensor, Plan, How], Tensor]


@contextmanager
def watching(watched: Watched) -> Iterator[None]:
    """Every kernel runs through `watched`, which is given the kernel and its call."""
    before = dict(KERNELS)
    for name, one in before.items():
        KERNELS[name] = replace(one, run=lambda *call, one=one: watched(one, *call))
    try:
        yield
    finally:
        KERNELS.clear()
        KERNELS.update(before)


def error(run: Run) -> float | None:
    """|A - B| / |B| over a batch: A what the kernel answers, B what `reference` does with the same q, k, v and mask.

    The mean over the layers of a trained model; None where nothing attends.
    """
    found: list[float] = []

    def beside(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
        made, there = kernel.run(q, k, v, plan, how), plan.ask.q.real
        meant = reference(q, k, v, plan, how)
        one, other = (made, meant) if there is None else (t.transpose(1, 2)[there] for t in (made, meant))
        found.append(float((one - other).norm() / other.norm().clamp(min=1e-30)))  # what padding asks is nobody's
        return made

    with watching(beside), still(list(run.model.modules())), unmixed(run.model):
        run.objective.sums(run.model, moved(first(run), run.device))
    return sum(found) / len(found) if found else None


@contextmanager
def unmixed(model: Any) -> Iterator[None]:
    """32-bit products for a while: the rounding of 16-bit products would hide what a kernel does."""
    c = model.c
    model.c = replace(c, precision="fp32") if c.precision == "mixed" else c
    try:
        yield
    finally:
        model.c = c


# ---------------------------------------------------------------- growth


def exponent(
    read: Callable[[int], config.Recipe], longest: int = LONGEST, device: torch.device = CPU
) -> dict[str, Any]:
    """The power of n that the time of mixing tokens grows with, the times themselves, and the formula beside them.

    `read` gives the recipe for texts of a length, which doubles until a pass takes long enough to be sure of; the
    longest few are fitted. Timed is what stands between the maps of one layer: the kernel of attention, or the mixer
    in its place; forward, one text. On a CPU it is the processor's time of one thread: others on the machine, and
    threads that wait for each other, would hide the law.
    """
    lengths, times, name = list[int](), list[float](), ""
    while not times or (times[-1] < LONG or len(times) < LAST) and 2 * lengths[-1] <= longest:
        lengths.append(2 * lengths[-1] if lengths else min(SHORTEST, longest // 4))
        seconds, name = mixing(thin(read(lengths[-1]).model), lengths[-1], device)
        times.append(seconds)
    lengths, times, known = lengths[-LAST:], times[-LAST:], order(name)
    told = {"kernel": name, "lengths": lengths, "seconds": times, "exponent": slope(lengths, times)}
    return told if known is None else {**told, "formula": known[0], "power": known[1]}


def mixing(c: config.Transformer, length: int, device: torch.device = CPU) -> tuple[float, str]:
    """Seconds that one layer of a fresh model spends on mixing, and the name of what mixes."""
    model, ids = build(c).eval().to(device), torch.randint(WORDS, (1, length), device=device)
    names, best = [mixer(c)], math.inf
    for _ in range(AGAIN + 1):
        spent = [0.0]

        def timed(kernel: Kernel, *call: Any, spent: list[float] = spent) -> Tensor:
            names.append(kernel.name)
            start = clock(device)
            made = kernel.run(*call)
            spent[0] += clock(device) - start
            return made

        with watching(timed) if attends(c) else clocked(model.trunk, spent, device), torch.inference_mode(), alone():
            model(ids)
        best = min(best, spent[0])
    return best, names[-1]


@contextmanager
def alone() -> Iterator[None]:
    """One thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thin(c: config.Transformer | config.Towers) -> config.Transformer:
    """One layer of it, with a small vocabulary: the rest is not measured."""
    if not isinstance(c, config.Transformer) or not isinstance(c.embed, config.Embed) or c.encoder is not None:
        raise ValueError("the growth with the length is measured of texts that one trunk reads")
    embed = replace(c.embed, vocab=WORDS)
    even = isinstance(getattr(getattr(c.trunk, "attention", None), "heads", 1), int)
    head = c.head if c.head.kind == "vocabulary" else config.Vocabulary()
    return replace(c, embed=embed, head=head, trunk=replace(c.trunk, depth=1) if even else c.trunk)


def attends(c: config.Transformer) -> bool:
    return getattr(getattr(c.trunk, "mixer", None), "kind", "") == "attention"


def mixer(c: config.Transformer) -> str:
    """What mixes tokens where attention does not: a block's mixer, or the cell of a stack."""
    inner = getattr(c.trunk, "mixer", c.trunk)
    return str(getattr(inner, "cell", inner.kind))


@contextmanager
def clocked(trunk: nn.Module, spent: list[float], device: torch.device) -> Iterator[None]:
    """The time inside of what mixes tokens: the first block's mixer, or all of a stack that has no blocks."""
    blocks: Any = getattr(trunk, "blocks", None)
    part: nn.Module = trunk if blocks is None else getattr(blocks[0], "attn", trunk)

    def begin(*_: Any) -> None:
        spent[0] -= clock(device)

    def end(*_: Any) -> None:
        spent[0] += clock(device)

    hooks = [part.register_forward_pre_hook(begin), part.register_forward_hook(end)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def slope(lengths: list[int], times: list[float]) -> float:
    """The slope of the least squares in the logarithms; none of a single length."""
    if len(lengths) < 2:
        return math.nan
    x, y = [math.log(length) for length in lengths], [math.log(max(each, 1e-9)) for each in times]
    at, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - at) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - at) ** 2 for a in x)
