"""An estimate as people read it, in calm sections, and as scripts do, in one table.

Sizes are SI here, as lectures and data sheets write them: a GB is 1e9 bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from regard.measure.cost import Count, Estimate
from regard.measure.flops import rule, trained
from regard.measure.memory import Memory
from regard.measure.spend import Pace, Training, rounded

Rows = Iterable[tuple[str, ...]]
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
MEMORY = ("weights", "gradients", "optimizer", "activations", "gathered", "total")


def si(number: float, unit: str) -> str:
    """Four figures and a prefix: 716.8 TFLOP, 33.55 MB."""
    for prefix in PREFIXES[:-1]:
        if float(f"{number:.4g}") < 1000:
            return f"{number:.4g} {prefix}{unit}"
        number /= 1000
    return f"{number:.4g} {PREFIXES[-1]}{unit}"


def power(number: float) -> str:
    """3.15e23: three figures and a power of ten."""
    figures, _, tens = f"{number:.2e}".partition("e")
    return f"{float(figures):g}e{int(tens)}"


def plain(number: float) -> str:
    """Three figures, and all of them before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def lasting(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def section(title: str, rows: Rows, align: str = "<>>>>>>") -> str:
    """A title, and rows whose columns stand under each other; a row of one cell is a remark."""
    cells = list(rows)
    full = [row for row in cells if len(row) > 1]
    wide = [max(len(row[i]) for row in full if i < len(row)) for i in range(max(map(len, full)))]
    lines = ["  ".join(f"{cell:{side}{size}}" for cell, side, size in zip(row, align, wide, strict=False))
             if len(row) > 1 else row[0] for row in cells]  # fmt: skip
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines)])


# ---------------------------------------------------------------- for people


def text(bill: Estimate | Count, name: str = "model") -> str:
    """All sections, in the order in which one asks."""
    if isinstance(bill, Count):
        head = f"{bill.parameters:,} parameters, {bill.precision}; GB = 1e9 bytes"
        parts = [section("memory", memory_rows(bill.memory, bill.rank, bill.ranks))]
    else:
        read = f"{bill.batch:,} x {bill.context:,} tokens" if bill.unit == "token" else f"{bill.batch:,} {bill.unit}"
        head = f"{name}: {bill.parameters:,} parameters, {bill.precision}; {read} a step; GB = 1e9 bytes"
        parts = model_sections(bill)
    if bill.pace is not None or bill.training is not None:
        parts.append(section("a run", run_rows(bill), "<><"))
    notes = [f"  {note}" for note in assumptions(bill)]
    return "\n\n".join([head, *parts, *(["\n".join(["assumed", *notes])] if notes else [])])


def model_sections(bill: Estimate) -> list[str]:
    whole = bill.parameters
    counts = [(part, f"{many:,}", f"{100 * many / whole:.1f}%") for part, many in bill.parts.items()]
    remembered = [] if bill.cache is None else cache_rows(bill)
    return [
        section("parameters", [*counts, ("total", f"{whole:,}", "")]),
        section("arithmetic", arithmetic_rows(bill), "<>><"),
        section("memory of a training step", memory_rows(bill.memory, bill.rank, bill.ranks)),
        section("activations by kernel", [
            ("", "kept", "checkpointed"),
            *((kernel, si(held.kept, "B"), si(held.checkpointed, "B")) for kernel, held in bill.activations.items()),
        ]),
        *([section("memory of writing", remembered)] if remembered else []),
        *(looking_sections(bill) if bill.growth else []),
        section(f"one layer of this width on {tokens(bill):,} tokens", [
            ("", "operations", "", "in sequence", "", "longest path", ""),
            *((row.name, si(row.operations, "FLOP"), row.operations_order, f"{row.sequential:,}", row.sequential_order,
               f"{row.path:,}", row.path_order) for row in bill.complexity),
        ], "<><><><"),
    ]  # fmt: skip


def looking_sections(bill: Estimate) -> list[str]:
    return [
        section("looking's share of the blocks", share_rows(bill)),
        section("weights of attention, if written down", [
            ("tokens", "pairs", "a layer", "all layers"),
            *((f"{row.tokens:,}", f"{row.pairs:,}", si(row.layer, "B"), si(row.model, "B")) for row in bill.growth),
        ]),
    ]  # fmt: skip


def tokens(bill: Estimate) -> int:
    """Those that the trunk spoken of reads: a recurrent layer takes as many steps."""
    return next(row.sequential for row in bill.complexity if row.name == "recurrent")


def arithmetic_rows(bill: Estimate) -> Iterator[tuple[str, ...]]:
    yield "", "forward", "training", ""
    for part, count in bill.flops.parts.items():
        training = trained(part, count, bill.recompute)
        yield part, si(count, "FLOP"), si(training, "FLOP"), f"{100 * count / bill.flops.forward:.1f}%"
    one = "an image" if bill.unit == "image" else f"a {bill.unit}"
    yield one, si(bill.flops.forward, "FLOP"), si(bill.flops.training, "FLOP"), ""
    if bill.unit == "token":
        yield "a sequence", si(bill.flops.sequence, "FLOP"), si(bill.flops.training_sequence, "FLOP"), ""
        forward, training = (ruled(bill, training) for training in (False, True))
        said = power(rounded(bill.parameters))
        yield f"by the rule, N = {said}", si(forward, "FLOP"), si(training, "FLOP"), "2N, 6N"


def ruled(bill: Estimate, training: bool) -> float:
    return rule(rounded(bill.parameters), bill.flops.tokens, training)


def memory_rows(whole: Memory, rank: Memory, ranks: int) -> Iterator[tuple[str, ...]]:
    if ranks > 1:
        yield "", "in one place", f"each of {ranks:,} ranks"
    for name in MEMORY:
        alone, shared = getattr(whole, name), getattr(rank, name)
        if alone or shared:
            yield (name, si(alone, "B"), si(shared, "B")) if ranks > 1 else (name, si(alone, "B"))


def cache_rows(bill: Estimate) -> Iterator[tuple[str, ...]]:
    assert bill.cache is not None
    yield "weights", si(bill.memory.weights, "B")
    yield "keys and values", si(bill.cache.own, "B")
    if bill.cache.source:
        yield "what is kept of a source", si(bill.cache.source, "B")


def share_rows(bill: Estimate) -> Iterator[tuple[str, ...]]:
    yield "n/(6d + n)", f"{100 * bill.share.formula:.1f}%"
    yield "counted", f"{100 * bill.share.counted:.1f}%"
    if not bill.share.applies:
        yield ("the formula is for full attention, 4·d² weights, a feed-forward 4·d wide; this model differs",)


def run_rows(bill: Estimate | Count) -> Iterator[tuple[str, ...]]:
    training, pace = bill.training, bill.pace
    if training is not None:
        yield "tokens", power(training.tokens), f"{training.ratio:.3g} for each parameter"
        if training.flops is not None:
            yield "arithmetic, counted", f"{power(training.flops)} FLOP"
        yield f"by the rule, N = {power(rounded(training.parameters))}", f"{power(training.rounded_rule)} FLOP", "6ND"
    if pace is not None:
        yield from pace_rows(bill, pace)
    if training is not None and training.seconds is not None and training.device_hours is not None:
        yield "time", lasting(training.seconds), f"{plain(training.device_hours)} device hours"
        if training.cost is not None:
            yield "money", f"{training.cost:,.2f}"


def pace_rows(bill: Estimate | Count, pace: Pace) -> Iterator[tuple[str, ...]]:
    yield "speed", si(pace.rate, "FLOP/s"), f"{pace.ranks:,} x {pace.device.name}"
    if pace.exaflop_cost is not None:
        yield "money for 1e18 FLOP", f"{pace.exaflop_cost:,.4g}"
    if isinstance(bill, Estimate):
        if bill.step_seconds is not None:
            yield "a step", lasting(bill.step_seconds)
        if bill.decoding is not None:
            yield "writing, at most", f"{plain(bill.decoding)} tokens/s", "bound by reading weights and cache"
    if bill.fit is not None:
        verdict = "fits" if bill.fit.fits else "does not fit"
        yield "memory of a rank", si(bill.fit.needs, "B"), f"{verdict} in {si(bill.fit.has, 'B')}"
        yield from (("  it would with", remedy) for remedy in bill.fit.remedies)


def assumptions(bill: Estimate | Count) -> Iterator[str]:
    """What was taken for granted, each in a sentence."""
    if isinstance(bill, Estimate) and bill.pace is not None and bill.pace.device.name != "here":
        yield "Activations are those of a CPU's kernels, without attention's dropout: fused kernels draw it again."
    if isinstance(bill, Estimate) and bill.precision == "mixed" and bill.ranks == 1 and not bill.recompute:
        yield "Activations include the 16-bit copies of the weights that mixed precision keeps for backward."
    if bill.ranks > 1:
        yield ("Ranks are fully sharded: each holds its part of weights, gradients and optimizer, gathers one block "
               "at a time, and runs its own batch.")  # fmt: skip
    pace = bill.pace
    if pace is not None:
        peak = f"{si(pace.peak, 'FLOP/s')} in {'fp32' if pace.precision == 'fp32' else pace.device.type}"
        yield f"{pace.device.title}: {peak}, of which {pace.utilisation:.3g} is reached ({pace.device.source})."
        twice = isinstance(bill, Estimate) and bill.recompute
        again = "blocks run forward once more in backward" if twice else "nothing is computed twice"
        yield f"Training is forward and twice that backward; {again}, and no rank ever waits or fails."
        yield "Writing reads all weights and the cache for every token, from all ranks at once, as if they were one."
    if pace is not None and pace.price is not None:
        yield f"Every rank is paid {pace.price:g} an hour while it trains, and nothing else is paid."
    if isinstance(bill, Count):
        yield "Activations, cache and attention depend on the model; name one to have them."


# ---------------------------------------------------------------- for scripts


def table(bill: Estimate | Count, name: str | None = None) -> dict[str, Any]:
    """The same and more as plain numbers; times in seconds, sizes in bytes."""
    told: dict[str, Any] = {"model": name, "parameters": bill.parameters, "precision": bill.precision}
    told |= {"ranks": bill.ranks, "memory": summed(bill.memory), "rank": summed(bill.rank)}
    if isinstance(bill, Estimate):
        told |= model_table(bill)
    pace, fit = bill.pace, bill.fit
    told["pace"] = None if pace is None else asdict(pace) | {"peak": pace.peak, "rate": pace.rate,
                                                             "exaflop_cost": pace.exaflop_cost}  # fmt: skip
    told["fit"] = None if fit is None else asdict(fit) | {"fits": fit.fits}
    told["training"] = None if bill.training is None else training_table(bill.training)
    return told | {"assumptions": list(assumptions(bill))}


def model_table(bill: Estimate) -> dict[str, Any]:
    flops = {
        "unit": bill.unit, "parts": bill.flops.parts, "forward": bill.flops.forward, "training": bill.flops.training,
        "tokens": bill.flops.tokens, "sequence": bill.flops.sequence, "training_sequence": bill.flops.training_sequence,
        "step": bill.step_flops,
        "rule": {"parameters": rounded(bill.parameters), "forward_sequence": ruled(bill, False),
                 "training_sequence": ruled(bill, True)},
    }  # fmt: skip
    return {
        "batch": bill.batch, "context": bill.context, "recompute": bill.recompute, "parts": bill.parts, "flops": flops,
        "activations": {kernel: asdict(held) for kernel, held in bill.activations.items()},
        "cache": None if bill.cache is None else asdict(bill.cache) | {"total": bill.cache.total},
        "share": asdict(bill.share), "growth": [asdict(row) for row in bill.growth],
        "complexity": [asdict(row) for row in bill.complexity],
        "step_seconds": bill.step_seconds, "decoding": bill.decoding,
    }  # fmt: skip


def summed(memory: Memory) -> dict[str, int]:
    return asdict(memory) | {"total": memory.total}


def training_table(run: Training) -> dict[str, Any]:
    return {
        "tokens": run.tokens, "flops": run.flops, "rule": run.rule, "rounded_rule": run.rounded_rule,
        "ratio": run.ratio, "wanted": run.wanted, "enough": run.enough, "seconds": run.seconds,
        "device_hours": run.device_hours, "cost": run.cost,
    }  # fmt: skip
