"""Laws that every attention kernel must satisfy, built-in or custom.

    equals reference     output and gradients equal the formula's, under every mask that it accepts
    gradients            they equal finite differences, in float64
    the future           no output depends on later tokens where the mask is causal
    padding              no output depends on padding
    empty row            a query without any visible key gets zeros, and gradients are finite
    grouped heads        heads that share keys equal heads with equal keys
    the same twice       two calls give the same output
    cache                cached equals uncached
    growth               how time and memory grow with the length

A kernel may refuse a mask, a bias or a cache; what it accepts must be right. A custom kernel is a Python file that
registers it as ours do, with @register_kernel("mine") above a function.
"""

import math
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.core.kernels import KERNELS, AttentionSpec
from regard.doctor import kernel_cases
from regard.doctor.kernel_cases import HEADS, KERNEL_CASES, B, D, KernelSubject, N, build_spec, random_qkv, refusal_of
from regard.hub.check.parity import max_difference

OUTPUT, GRADIENT, LOUD = 1e-5, 1e-4, 1e3
CAUSAL = ("causal", "causal & padding", "causal & window(3)", "causal & window(3) & padding")

PADDED = ("padding", "causal & padding", "causal & window(3) & padding")


@dataclass(frozen=True)
class KernelFinding:
    """The result for one law: pass, fail, or refused by the kernel."""

    check: str
    verdict: Literal["pass", "fail", "refused"]
    evidence: str


@dataclass(frozen=True)
class CaseResult:
    """The error in one case, with its tolerance; or the reason why the kernel refused the case."""

    case: str
    gap: float = 0.0
    most: float = 0.0
    refused: str = ""
    what: str = ""


def check_kernel_laws(call: str, longest: int = 4096, exponent: float | None = None) -> list[KernelFinding]:
    """Check all laws for a kernel, given as in a config. `exponent` is the allowed growth of time, if any."""
    subject = KernelSubject(call)  #: S184
    found = [try_law(name, lambda: judge_results(name, list(KERNEL_LAWS[name](subject)))) for name in KERNEL_LAWS]  # noqa: B023  called at once
    return [*found, try_law("growth", lambda: check_growth(subject, longest, exponent))]


def try_law(name: str, attempt: Callable[[], KernelFinding]) -> KernelFinding:
    """Check one law; an exception of the kernel is a failure, and the other laws are still checked."""
    try:
        return attempt()
    except Exception as problem:
        told = " ".join(str(problem).split())
        return KernelFinding(name, "fail", f"{type(problem).__name__}: {told[:200]}")


def judge_results(name: str, results: list[CaseResult]) -> KernelFinding:
    asked, rest = ([each for each in results if bool(each.refused) is refused] for refused in (False, True))
    if not asked:
        return KernelFinding(name, "refused", results[0].refused if results else "there is no case to check")
    worst = max(asked, key=lambda each: math.inf if math.isnan(each.gap) else each.gap - each.most)
    if not worst.gap <= worst.most:
        where = f"{worst.what} under {worst.case}".removeprefix(" under ")
        return KernelFinding(name, "fail", f"{where}: off by {worst.gap:.1e}, at most {worst.most:.0e} is allowed")
    taken, beside = (", ".join(dict.fromkeys(each.case for each in some)) for some in (asked, rest))
    told = f"off by {max(each.gap for each in asked):.1e} under {taken}"
    return KernelFinding(name, "pass", told + (f"; refuses {beside}" if beside else ""))


def cases(subject: KernelSubject, names: tuple[str, ...], grad: bool = True) -> Iterator[tuple[str, str]]:
    """Each case, with the reason why the kernel refuses it."""
    for case in names:
        yield case, subject.refuses(build_spec(case, grad=grad))


def random_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The gradients of a random projection of the output."""
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
    found = torch.autograd.grad((out * probe).sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, found, strict=True)]


# ---------------------------------------------------------------- the laws


def equals_reference(subject: KernelSubject) -> Iterator[CaseResult]:
    if not subject.kernel.exact:
        yield CaseResult("", refused="it is registered as not exact")
        return
    for case, refused in cases(subject, tuple(KERNEL_CASES), grad=False):
        if refused:
            yield CaseResult(case, refused=refused)
            continue
        trained = not subject.refuses(build_spec(case, grad=True))
        spec, given = build_spec(case, grad=trained), random_qkv()
        with torch.set_grad_enabled(trained):
            pair = [real_queries(one(given, spec), spec) for one in (subject, KernelSubject("reference"))]
        yield CaseResult(case, max_difference(pair[:1], pair[1:]), OUTPUT)
        if trained:
            grads = (random_gradients(out, given) for out in pair)
            yield CaseResult(case, max_difference(*grads), GRADIENT, what="gradients")


def gradients(subject: KernelSubject) -> Iterator[CaseResult]:
    for case, refused in cases(subject, ("full", "causal", "padding", "causal & window(3)", "window2d(2, 1)")):
        if refused:
            yield CaseResult(case, refused=refused)
            continue
        spec, own = build_spec(case, torch.float64, grad=True), subject.kernel_weights(N)
        right = torch.autograd.gradcheck(
            lambda *given, spec=spec, own=own: subject(list(given), spec, own), random_qkv(dtype=torch.float64),
            raise_exception=False, fast_mode=True,
        )  # fmt: skip
        yield CaseResult(case, 0.0 if right else math.inf, 0.0)


def no_future(subject: KernelSubject) -> Iterator[CaseResult]:
    now = N // 2
    for case, refused in cases(subject, CAUSAL):
        if refused:
            yield CaseResult(case, refused=refused)
            continue
        spec, given, own = build_spec(case, grad=True), random_qkv(), subject.kernel_weights(N)
        out = real_queries(subject(given, spec, own), spec)[:, :, :now]
        late = [x[:, :, now:] for x in random_gradients(out, given)]
        yield CaseResult(case, max_difference(late, [torch.zeros_like(x) for x in late]), what="gradients")
        other = [torch.cat([x[:, :, :now], x[:, :, now:].flip(1) + 1], 2).detach() for x in given]
        yield CaseResult(
            case, max_difference([real_queries(subject(other, spec, own), spec)[:, :, :now]], [out]), OUTPUT
        )


def ignores_padding(subject: KernelSubject) -> Iterator[CaseResult]:
    for case, refused in cases(subject, PADDED):
        if refused:
            yield CaseResult(case, refused=refused)
            continue
        spec, given, own = build_spec(case, grad=True), random_qkv(), subject.kernel_weights(N)
        assert spec.k.is_real is not None
        loud = [torch.where(spec.k.is_real[:, None, :, None], x, LOUD).detach() for x in given]
        pair = [real_queries(subject(each, spec, own), spec) for each in (given, loud)]
        yield CaseResult(case, max_difference(pair[:1], pair[1:]), OUTPUT)


def empty_rows_are_zero(subject: KernelSubject) -> Iterator[CaseResult]:
    for case, refused in cases(subject, PADDED):
        if refused:
            yield CaseResult(case, refused=refused)
            continue
        spec, given = build_spec(case, grad=True), random_qkv()
        assert spec.k.is_real is not None
        spec.k.is_real[1] = False
        out = subject(given, spec)
        finite = all(bool(x.isfinite().all()) for x in (out, *random_gradients(out, given)))
        yield CaseResult(case, max_difference([out[1]], [torch.zeros_like(out[1])]) if finite else math.nan)


def grouped_heads(subject: KernelSubject) -> Iterator[CaseResult]:
    few = HEADS // 3
    for case, refused in cases(subject, ("full", "causal", "causal & window(3)", "window2d(2, 1)")):
        refused = refused or refusal_of(lambda: subject.kernel_weights(N, groups=few))
        if refused:
            yield CaseResult(case, refused=refused)
            continue
        spec, (q, k, v), own = (
            build_spec(case, grad=True),
            random_qkv(groups=few),
            subject.kernel_weights(N, groups=few),
        )
        whole = [q, *(x.repeat_interleave(3, 1) for x in (k, v))]
        yield CaseResult(case, max_difference([subject([q, k, v], spec, own)], [subject(whole, spec, own)]), OUTPUT)


def is_repeatable(subject: KernelSubject) -> Iterator[CaseResult]:
    for case, refused in cases(subject, ("full", "causal", "causal & window(3)", "window2d(2, 1)")):
        spec, given = build_spec(case, grad=True), random_qkv()
        yield (
            CaseResult(case, refused=refused)
            if refused
            else CaseResult(case, max_difference(*([subject(given, spec)] for _ in range(2))))
        )


def cached_equals_uncached(subject: KernelSubject) -> Iterator[CaseResult]:
    x = torch.randn(B, N, HEADS * D, generator=torch.Generator().manual_seed(2))
    for mask in ("causal", "causal & window(3)"):
        with torch.no_grad():
            made: list[Tensor] = []
            refused = refusal_of(lambda mask=mask, made=made: made.extend(subject.run_cached(x, mask, [5, 1, N - 6])))  # type: ignore[misc]
        yield (
            CaseResult(mask, refused=refused)
            if refused
            else CaseResult(mask, max_difference(made[:1], made[1:]), GRADIENT)
        )


def real_queries(out: Tensor, spec: AttentionSpec) -> Tensor:
    """The outputs with those of padding queries set to zero."""
    return out if spec.q.is_real is None else out * spec.q.is_real[:, None, :, None]


KERNEL_LAWS: dict[str, Callable[[KernelSubject], Iterator[CaseResult]]] = {
    "equals reference": equals_reference,
    "gradients": gradients,
    "the future": no_future,
    "padding": ignores_padding,
    "empty row": empty_rows_are_zero,
    "grouped heads": grouped_heads,
    "the same twice": is_repeatable,
    "cache": cached_equals_uncached,
}


def check_growth(subject: KernelSubject, longest: int, exponent: float | None) -> KernelFinding:
    """Measure the growth, with gradients if supported; it can fail only if an exponent is given."""
    found = kernel_cases.measure_kernel_growth(subject, longest)
    if isinstance(found, str):
        return KernelFinding("growth", "refused", found)
    told = f"time as n^{found.time:.2f}, memory as n^{found.memory:.2f} from {found.counts[0]:,} to {found.counts[1]:,}"
    told += f" tokens, {'forward and backward' if found.trained else 'forward'}, {found.mask}"
    over = exponent is not None and found.time > exponent
    return KernelFinding("growth", "fail" if over else "pass", told + (f"; more than n^{exponent}" if over else ""))


def load_custom_kernel(path: Path) -> list[str]:
    """Run a Python file and return the kernels that it registers. It is executed: use trusted files only."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; name a Python file that registers a kernel")
    before = dict(KERNELS)
    spec = spec_from_file_location(f"yours_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: this is no Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and inspect look for it
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        told = f"{error_line(problem, path)}{type(problem).__name__}: {problem}"
        raise DataError(f"{path}: {told}; correct it first") from problem
    names = [name for name, one in KERNELS.items() if before.get(name) is not one]
    if not names:
        raise DataError(f'{path}: it registers no kernel; write @register_kernel("name") above a function')
    return names


def error_line(problem: Exception, path: Path) -> str:
    """The line of the file that raised an error."""
    if isinstance(problem, SyntaxError):
        return f"line {problem.lineno}: "
    lines = [each.lineno for each in traceback.extract_tb(problem.__traceback__) if each.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""
