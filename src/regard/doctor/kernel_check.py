"""What a kernel must keep to enter the table: the same laws for ours and for yours.

    equals reference     it means what the formula means, output and gradients, under every mask that it takes
    gradients            they are those of small steps, in float64
    the future           no output depends on later tokens where the mask is causal
    padding              no output depends on what is not there
    nobody               a query that may see nobody gets zeros, and gradients are finite
    grouped heads        heads that share keys are heads with equal keys
    the same twice       nothing is drawn anew from call to call
    cache                reading piece by piece from a cache is reading at once
    growth               how time and memory grow with the length

What it refuses is refused and no fault: a mask, a bias, a cache. What it takes, it must do.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.core.kernels import Ask
from regard.efficient import grown
from regard.efficient.subject import CASES, HEADS, B, D, N, Subject, asking, heads, refusal

OUTPUT, GRADIENT, LOUD = 1e-5, 1e-4, 1e3
CAUSAL = ("causal", "causal & padding", "causal & window(3)", "causal & window(3) & padding")

PADDED = ("padding", "causal & padding", "causal & window(3) & padding")


@dataclass(frozen=True)
class Finding:
    """One law: kept, broken, or not asked of it since it refuses."""

    check: str
    verdict: Literal["pass", "fail", "refused"]
    evidence: str


@dataclass(frozen=True)
class Result:
    """How far off it was in one case, and how far it may be; or why it refused the case."""

    case: str
    gap: float = 0.0
    most: float = 0.0
    refused: str = ""
    what: str = ""


def contract(said: str, longest: int = 4096, exponent: float | None = None) -> list[Finding]:
    """All laws for a kernel named as a config names it. `exponent` is the most that time may grow with, if any."""
    subject = Subject(said)  #: S184
    found = [tried(name, lambda: judged(name, list(LAWS[name](subject)))) for name in LAWS]  # noqa: B023  called at once
    return [*found, tried("growth", lambda: grows(subject, longest, exponent))]


def tried(name: str, attempt: Callable[[], Finding]) -> Finding:
    """A kernel that raises something has failed this law, and the others are still examined."""
    try:
        return attempt()
    except Exception as problem:
        told = " ".join(str(problem).split())
        return Finding(name, "fail", f"{type(problem).__name__}: {told[:200]}")


def judged(name: str, results: list[Result]) -> Finding:
    asked, rest = ([each for each in results if bool(each.refused) is refused] for refused in (False, True))
    if not asked:
        return Finding(name, "refused", results[0].refused if results else "there is nothing to ask")
    worst = max(asked, key=lambda each: math.inf if math.isnan(each.gap) else each.gap - each.most)
    if not worst.gap <= worst.most:
        where = f"{worst.what} under {worst.case}".removeprefix(" under ")
        return Finding(name, "fail", f"{where}: off by {worst.gap:.1e}, at most {worst.most:.0e} is allowed")
    taken, beside = (", ".join(dict.fromkeys(each.case for each in some)) for some in (asked, rest))
    told = f"off by {max(each.gap for each in asked):.1e} under {taken}"
    return Finding(name, "pass", told + (f"; refuses {beside}" if beside else ""))


def cases(subject: Subject, names: tuple[str, ...], grad: bool = True) -> Iterator[tuple[str, str]]:
    """Each case, and why the kernel refuses it."""
    for case in names:
        yield case, subject.refuses(asking(case, grad=grad))


def gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max()) if ours.numel() else 0.0


def pulled(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a random mix of the output."""
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
    found = torch.autograd.grad((out * probe).sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, found, strict=True)]


# ---------------------------------------------------------------- the laws


def equals_reference(subject: Subject) -> Iterator[Result]:
    if not subject.kernel.exact:
        yield Result("", refused="it says of itself that it is not exact")
        return
    for case, refused in cases(subject, tuple(CASES), grad=False):
        if refused:
            yield Result(case, refused=refused)
            continue
        trained = not subject.refuses(asking(case, grad=True))
        ask, given = asking(case, grad=trained), heads()
        with torch.set_grad_enabled(trained):
            pair = [kept(one(given, ask), ask) for one in (subject, Subject("reference"))]
        yield Result(case, gap(*pair), OUTPUT)
        if trained:
            grads = zip(*(pulled(out, given) for out in pair), strict=True)
            yield Result(case, max(gap(*each) for each in grads), GRADIENT, what="gradients")


def gradients(subject: Subject) -> Iterator[Result]:
    for case, refused in cases(subject, ("everything", "causal", "padding", "causal & window(3)", "cells(2, 1)")):
        if refused:
            yield Result(case, refused=refused)
            continue
        ask, own = asking(case, torch.float64, grad=True), subject.own(N)
        right = torch.autograd.gradcheck(
            lambda *given, ask=ask, own=own: subject(list(given), ask, own), heads(dtype=torch.float64),
            raise_exception=False, fast_mode=True,
        )  # fmt: skip
        yield Result(case, 0.0 if right else math.inf, 0.0)


def future(subject: Subject) -> Iterator[Result]:
    now = N // 2
    for case, refused in cases(subject, CAUSAL):
        if refused:
            yield Result(case, refused=refused)
            continue
        ask, given, own = asking(case, grad=True), heads(), subject.own(N)
        out = kept(subject(given, ask, own), ask)[:, :, :now]
        yield Result(case, max(float(x[:, :, now:].abs().max()) for x in pulled(out, given)), what="gradients")
        other = [torch.cat([x[:, :, :now], x[:, :, now:].flip(1) + 1], 2).detach() for x in given]
        yield Result(case, gap(kept(subject(other, ask, own), ask)[:, :, :now], out), OUTPUT)


def padding(subject: Subject) -> Iterator[Result]:
    for case, refused in cases(subject, PADDED):
        if refused:
            yield Result(case, refused=refused)
            continue
        ask, given, own = asking(case, grad=True), heads(), subject.own(N)
        assert ask.k.real is not None
        loud = [torch.where(ask.k.real[:, None, :, None], x, LOUD).detach() for x in given]
        pair = [kept(subject(each, ask, own), ask) for each in (given, loud)]
        yield Result(case, gap(*pair), OUTPUT)


def nobody(subject: Subject) -> Iterator[Result]:
    for case, refused in cases(subject, PADDED):
        if refused:
            yield Result(case, refused=refused)
            continue
        ask, given = asking(case, grad=True), heads()
        assert ask.k.real is not None
        ask.k.real[1] = False
        out = subject(given, ask)
        finite = all(bool(x.isfinite().all()) for x in (out, *pulled(out, given)))
        yield Result(case, gap(out[1], torch.zeros_like(out[1])) if finite else math.nan)


def grouped_heads(subject: Subject) -> Iterator[Result]:
    few = HEADS // 3
    for case, refused in cases(subject, ("everything", "causal", "causal & window(3)", "cells(2, 1)")):
        refused = refused or refusal(lambda: subject.own(N, groups=few))
        if refused:
            yield Result(case, refused=refused)
            continue
        ask, (q, k, v), own = asking(case, grad=True), heads(groups=few), subject.own(N, groups=few)
        whole = [q, *(x.repeat_interleave(3, 1) for x in (k, v))]
        yield Result(case, gap(subject([q, k, v], ask, own), subject(whole, ask, own)), OUTPUT)


def twice(subject: Subject) -> Iterator[Result]:
    for case, refused in cases(subject, ("everything", "causal", "causal & window(3)", "cells(2, 1)")):
        ask, given = asking(case, grad=True), heads()
        yield Result(case, refused=refused) if refused else Result(case, gap(*(subject(given, ask) for _ in range(2))))


def cache(subject: Subject) -> Iterator[Result]:
    x = torch.randn(B, N, HEADS * D, generator=torch.Generator().manual_seed(2))
    for mask in ("causal", "causal & window(3)"):
        with torch.no_grad():
            made: list[Tensor] = []
            refused = refusal(lambda mask=mask, made=made: made.extend(subject.cached(x, mask, [5, 1, N - 6])))  # type: ignore[misc]
        yield Result(mask, refused=refused) if refused else Result(mask, gap(*made), GRADIENT)


def kept(out: Tensor, ask: Ask) -> Tensor:
    """Queries that are there: what padding asks is nobody's affair."""
    return out if ask.q.real is None else out * ask.q.real[:, None, :, None]


LAWS: dict[str, Callable[[Subject], Iterator[Result]]] = {
    "equals reference": equals_reference, "gradients": gradients, "the future": future, "padding": padding,
    "nobody": nobody, "grouped heads": grouped_heads, "the same twice": twice, "cache": cache,
}  # fmt: skip


def grows(subject: Subject, longest: int, exponent: float | None) -> Finding:
    """Measured, with gradients where there are any; a law only where an exponent is asked for."""
    found = grown.growth(subject, longest)
    if isinstance(found, str):
        return Finding("growth", "refused", found)
    told = f"time as n^{found.time:.2f}, memory as n^{found.memory:.2f} from {found.counts[0]:,} to {found.counts[1]:,}"
    told += f" tokens, {'forward and backward' if found.trained else 'forward'}, {found.mask}"
    over = exponent is not None and found.time > exponent
    return Finding("growth", "fail" if over else "pass", told + (f"; more than n^{exponent}" if over else ""))
