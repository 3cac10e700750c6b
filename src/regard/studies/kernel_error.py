"""Kernel error against the reference, and how a kernel's time grows with the length.

Both are measured where a model calls its kernel, through a hook on that model.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.hooks import looking
from regard.core.kernels import AttentionArgs, Plan, reference
from regard.data.batching import batch_to_device
from regard.generation.session import inference_mode
from regard.inference.model import build_model
from regard.measure.complexity import cost_order, fit_exponent, measure_growth
from regard.studies.study import MAX_TOKENS
from regard.studies.variant_probes import probe_batch
from regard.training.run import Run

SHORTEST, LONG, LAST = 2048, 0.04, 3  # first length in tokens; seconds that end the search; lengths fitted
CPU = torch.device("cpu")
WORDS = 256  # of a vocabulary that does not matter here
AGAIN = 5  # repetitions for each length, of which the fastest counts
KERNEL_CALLS = "*.result"  # the addresses where kernels are called


def kernel_error(run: Run) -> float | None:
    """Relative error |A - B| / |B| over a batch: A is the kernel's output, B that of `reference` for the same q, k, v
    and mask.

    The mean over the layers of a trained model; None without attention.
    """
    found, model = list[float](), full_precision(run.model)

    def run_and_compare(plan: Plan, q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
        made, there = plan.run(q, k, v, args), plan.spec.q.is_real
        meant = reference(q, k, v, plan, args)
        one, other = (made, meant) if there is None else (t.transpose(1, 2)[there] for t in (made, meant))
        found.append(float((one - other).norm() / other.norm().clamp(min=1e-30)))  # outputs at padding do not matter
        return made

    if not any(fnmatchcase(address, KERNEL_CALLS) for address in model.addresses()):
        return None
    with looking(model, KERNEL_CALLS, run_kernel=run_and_compare), inference_mode(list(model.modules())):
        run.objective.loss_sums(model, batch_to_device(probe_batch(run), run.device))
    return sum(found) / len(found) if found else None


def full_precision(model: Any) -> Any:
    """A copy of the model with 32-bit products that shares all weights: 16-bit rounding would hide the kernel's
    error."""
    model = copy.copy(model)
    model.c = replace(model.c, precision="fp32") if model.c.precision == "mixed" else model.c
    return model


# ---------------------------------------------------------------- growth with the length


def time_exponent(
    read: Callable[[int], config.Recipe], longest: int = MAX_TOKENS, device: torch.device = CPU
) -> dict[str, Any]:
    """The exponent of n in the time of token mixing, the measured times, and the formula.

    `read` gives the recipe for a length, which doubles until a pass takes long enough to be measured; the longest few
    lengths are fitted. The time is that between the projections of one layer: the attention kernel, or the mixer;
    forward, one text. On a CPU it is CPU time of one thread: other processes and thread synchronisation would hide the
    power law.
    """
    name = ""

    def seconds(length: int) -> tuple[float]:
        nonlocal name
        spent, name = time_mixing(one_layer_model(read(length).model), length, device)
        return (spent,)

    lengths, costs = measure_growth(seconds, min(SHORTEST, longest // 4), longest, LONG, LAST)
    times, known = [spent for (spent,) in costs], cost_order(name)
    told = {"kernel": name, "lengths": lengths[-LAST:], "seconds": times[-LAST:],
            "exponent": fit_exponent(lengths, times, LAST)}  # fmt: skip
    return told if known is None else {**told, "formula": known[0], "power": known[1]}


def time_mixing(c: config.Transformer, length: int, device: torch.device = CPU) -> tuple[float, str]:
    """Seconds that one layer of a new model spends on mixing, and the name of its mixer."""
    model, ids = build_model(c).eval().to(device), torch.randint(WORDS, (1, length), device=device)
    names, best = [mixer_name(c)], math.inf
    for _ in range(AGAIN + 1):
        spent = [0.0]

        def run_timed(plan: Plan, *call: Any, spent: list[float] = spent) -> Tensor:
            names.append(plan.kernel.name)
            start = current_seconds(device)
            made = plan.run(*call)
            spent[0] += current_seconds(device) - start
            return made

        with (
            looking(model, KERNEL_CALLS, run_kernel=run_timed)
            if uses_attention(c)
            else time_mixer(model.trunk, spent, device),
            torch.inference_mode(),
            single_thread(),
        ):
            model(ids)
        best = min(best, spent[0])
    return best, names[-1]


@contextmanager
def single_thread() -> Iterator[None]:
    """Context with one torch thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_layer_model(c: config.Transformer | config.DualEncoder) -> config.Transformer:
    """The model with one layer and a small vocabulary: the rest is not measured."""
    if not isinstance(c, config.Transformer) or not isinstance(c.embed, config.TextEmbedding) or c.encoder is not None:
        raise ValueError("the growth with the length is measured for text models with one trunk")
    embed = replace(c.embed, vocab=WORDS)
    even = isinstance(getattr(getattr(c.trunk, "attention", None), "heads", 1), int)
    head = c.head if c.head.kind == "lm" else config.LMHead()
    return replace(c, embed=embed, head=head, trunk=replace(c.trunk, depth=1) if even else c.trunk)


def uses_attention(c: config.Transformer) -> bool:
    return getattr(getattr(c.trunk, "mixer", None), "kind", "") == "attention"


def mixer_name(c: config.Transformer) -> str:
    """The name of the mixer if it is not attention: a block's mixer, or the cell of a recurrent stack."""
    inner = getattr(c.trunk, "mixer", c.trunk)
    return str(getattr(inner, "cell", inner.kind))


@contextmanager
def time_mixer(trunk: nn.Module, spent: list[float], device: torch.device) -> Iterator[None]:
    """Time the mixing: the first block's mixer, or all of a recurrent stack."""
    blocks: Any = getattr(trunk, "blocks", None)
    part: nn.Module = trunk if blocks is None else getattr(blocks[0], "attn", trunk)

    def begin(*_: Any) -> None:
        spent[0] -= current_seconds(device)

    def end(*_: Any) -> None:
        spent[0] += current_seconds(device)

    hooks = [part.register_forward_pre_hook(begin), part.register_forward_hook(end)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def current_seconds(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
