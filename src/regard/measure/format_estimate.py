"""Formats an estimate: as text in sections, and as one table for scripts.

Units are SI, as in data sheets: a GB is 1e9 bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from regard.measure.estimate import ModelEstimate, ParameterEstimate
from regard.measure.flops import rule_of_thumb, training_flops
from regard.measure.hardware import TrainingCost, TrainingSpeed, round_figures
from regard.measure.memory import TrainingMemory

Rows = Iterable[tuple[str, ...]]
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
TITLES = {"attention": "attention projections", "looking": "attention products", "mixing": "mixers"}  # of FLOP rows
MEMORY = ("weights", "gradients", "optimizer", "activations", "gathered", "total")


def format_si(number: float, unit: str) -> str:
    """Four significant figures and a prefix: 716.8 TFLOP, 33.55 MB."""
    for prefix in PREFIXES[:-1]:
        if float(f"{number:.4g}") < 1000:
            return f"{number:.4g} {prefix}{unit}"
        number /= 1000
    return f"{number:.4g} {PREFIXES[-1]}{unit}"


def format_power(number: float) -> str:
    """Three significant figures and a power of ten: 3.15e23."""
    figures, _, tens = f"{number:.2e}".partition("e")
    return f"{float(figures):g}e{int(tens)}"


def format_plain(number: float) -> str:
    """Three significant figures, or all digits before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def format_duration(seconds: float) -> str:
    """A duration in a suitable unit."""
    for unit, size in (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def format_section(title: str, rows: Rows, align: str = "<>>>>>>") -> str:
    """A titled section with aligned columns; a row of one cell is a remark."""
    cells = list(rows)
    full = [row for row in cells if len(row) > 1]
    wide = [max(len(row[i]) for row in full if i < len(row)) for i in range(max(map(len, full)))]
    lines = ["  ".join(f"{cell:{side}{size}}" for cell, side, size in zip(row, align, wide, strict=False))
             if len(row) > 1 else row[0] for row in cells]  # fmt: skip
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines)])


# ---------------------------------------------------------------- text


def format_estimate(bill: ModelEstimate | ParameterEstimate, name: str = "model") -> str:
    """All sections of an estimate, as text."""
    if isinstance(bill, ParameterEstimate):
        head = f"{bill.parameters:,} parameters, {bill.precision}; GB = 1e9 bytes"
        parts = [format_section("memory", memory_rows(bill.memory, bill.rank, bill.ranks))]
    else:
        read = f"{bill.batch:,} x {bill.context:,} tokens" if bill.unit == "token" else f"{bill.batch:,} {bill.unit}"
        head = f"{name}: {bill.parameters:,} parameters, {bill.precision}; {read} a step; GB = 1e9 bytes"
        parts = model_sections(bill)
    if bill.pace is not None or bill.training is not None:
        parts.append(format_section("a run", training_rows(bill), "<><"))
    notes = [f"  {note}" for note in list_assumptions(bill)]
    return "\n\n".join([head, *parts, *(["\n".join(["assumed", *notes])] if notes else [])])


def model_sections(bill: ModelEstimate) -> list[str]:
    whole = bill.parameters
    counts = [(part, f"{many:,}", f"{100 * many / whole:.1f}%") for part, many in bill.parts.items()]
    remembered = [] if bill.cache is None else cache_rows(bill)
    return [
        format_section("parameters", [*counts, ("total", f"{whole:,}", "")]),
        format_section("arithmetic", flop_rows(bill), "<>><"),
        format_section("memory of a training step", memory_rows(bill.memory, bill.rank, bill.ranks)),
        format_section(
            "activations by kernel",
            [
                ("", "kept", "checkpointed"),
                *(
                    (kernel, format_si(held.kept, "B"), format_si(held.checkpointed, "B"))
                    for kernel, held in bill.activations.items()
                ),
            ],
        ),
        *([format_section("memory of generation", remembered)] if remembered else []),
        *(attention_sections(bill) if bill.growth else []),
        format_section(
            f"one layer of this width on {trunk_tokens(bill):,} tokens",
            [
                ("", "operations", "", "in sequence", "", "longest path", ""),
                *(
                    (
                        row.name,
                        format_si(row.operations, "FLOP"),
                        row.operations_order,
                        f"{row.sequential:,}",
                        row.sequential_order,
                        f"{row.path:,}",
                        row.path_order,
                    )
                    for row in bill.complexity
                ),
            ],
            "<><><><",
        ),
    ]


def attention_sections(bill: ModelEstimate) -> list[str]:
    return [
        format_section("attention's share of the blocks", attention_share_rows(bill)),
        format_section(
            "attention weights, if stored",
            [
                ("tokens", "pairs", "a layer", "all layers"),
                *(
                    (f"{row.tokens:,}", f"{row.pairs:,}", format_si(row.layer, "B"), format_si(row.model, "B"))
                    for row in bill.growth
                ),
            ],
        ),
    ]


def trunk_tokens(bill: ModelEstimate) -> int:
    """The number of tokens in the reported trunk, from the row of the recurrent layer."""
    return next(row.sequential for row in bill.complexity if row.name == "recurrent")


def flop_rows(bill: ModelEstimate) -> Iterator[tuple[str, ...]]:
    yield "", "forward", "training", ""
    for part, count in bill.flops.parts.items():
        training = training_flops(part, count, bill.recompute)
        title, share = TITLES.get(part, part), f"{100 * count / bill.flops.forward:.1f}%"
        yield title, format_si(count, "FLOP"), format_si(training, "FLOP"), share
    one = "an image" if bill.unit == "image" else f"a {bill.unit}"
    yield one, format_si(bill.flops.forward, "FLOP"), format_si(bill.flops.training, "FLOP"), ""
    if bill.unit == "token":
        yield "a sequence", format_si(bill.flops.sequence, "FLOP"), format_si(bill.flops.training_sequence, "FLOP"), ""
        forward, training = (rule_flops(bill, training) for training in (False, True))
        said = format_power(round_figures(bill.parameters))
        yield f"by the rule, N = {said}", format_si(forward, "FLOP"), format_si(training, "FLOP"), "2N, 6N"


def rule_flops(bill: ModelEstimate, training: bool) -> float:
    return rule_of_thumb(round_figures(bill.parameters), bill.flops.tokens, training)


def memory_rows(whole: TrainingMemory, rank: TrainingMemory, ranks: int) -> Iterator[tuple[str, ...]]:
    if ranks > 1:
        yield "", "unsharded", f"each of {ranks:,} ranks"
    for name in MEMORY:
        alone, shared = getattr(whole, name), getattr(rank, name)
        if alone or shared:
            yield (name, format_si(alone, "B"), format_si(shared, "B")) if ranks > 1 else (name, format_si(alone, "B"))


def cache_rows(bill: ModelEstimate) -> Iterator[tuple[str, ...]]:
    assert bill.cache is not None
    yield "weights", format_si(bill.memory.weights, "B")
    yield "keys and values", format_si(bill.cache.own, "B")
    if bill.cache.source:
        yield "cross-attention's keys and values", format_si(bill.cache.source, "B")


def attention_share_rows(bill: ModelEstimate) -> Iterator[tuple[str, ...]]:
    yield "n/(6d + n)", f"{100 * bill.share.formula:.1f}%"
    yield "counted", f"{100 * bill.share.counted:.1f}%"
    if not bill.share.applies:
        yield ("the formula is for full attention, 4·d² weights, a feed-forward 4·d wide; this model differs",)


def training_rows(bill: ModelEstimate | ParameterEstimate) -> Iterator[tuple[str, ...]]:
    training, pace = bill.training, bill.pace
    if training is not None:
        yield "tokens", format_power(training.tokens), f"{training.tokens_per_parameter:.3g} per parameter"
        if training.flops is not None:
            yield "FLOPs, counted", f"{format_power(training.flops)} FLOP"
        yield (
            f"by the rule, N = {format_power(round_figures(training.parameters))}",
            f"{format_power(training.rounded_rule)} FLOP",
            "6ND",
        )
    if pace is not None:
        yield from speed_rows(bill, pace)
    if training is not None and training.seconds is not None and training.device_hours is not None:
        yield "time", format_duration(training.seconds), f"{format_plain(training.device_hours)} device hours"
        if training.cost is not None:
            yield "cost", f"{training.cost:,.2f}"


def speed_rows(bill: ModelEstimate | ParameterEstimate, pace: TrainingSpeed) -> Iterator[tuple[str, ...]]:
    yield "speed", format_si(pace.rate, "FLOP/s"), f"{pace.ranks:,} x {pace.device.name}"
    if pace.exaflop_cost is not None:
        yield "cost of 1e18 FLOP", f"{pace.exaflop_cost:,.4g}"
    if isinstance(bill, ModelEstimate):
        if bill.step_seconds is not None:
            yield "a step", format_duration(bill.step_seconds)
        if bill.decoding is not None:
            yield "generation, at most", f"{format_plain(bill.decoding)} tokens/s", "bound by reading weights and cache"
    if bill.fit is not None:
        verdict = "fits" if bill.fit.fits else "does not fit"
        yield "memory of a rank", format_si(bill.fit.needs, "B"), f"{verdict} in {format_si(bill.fit.has, 'B')}"
        yield from (("  it would with", remedy) for remedy in bill.fit.remedies)


def list_assumptions(bill: ModelEstimate | ParameterEstimate) -> Iterator[str]:
    """The assumptions of the estimate, one sentence each."""
    if isinstance(bill, ModelEstimate) and bill.pace is not None and bill.pace.device.name != "here":
        yield "Activations are those of a CPU's kernels, without attention's dropout: fused kernels recompute it."
    if isinstance(bill, ModelEstimate) and bill.precision == "mixed" and bill.ranks == 1 and not bill.recompute:
        yield "Activations include the 16-bit copies of the weights that mixed precision keeps for backward."
    if bill.ranks > 1:
        yield ("Ranks are fully sharded: each holds its part of weights, gradients and optimizer, gathers one block "
               "at a time, and runs its own batch.")  # fmt: skip
    pace = bill.pace
    if pace is not None:
        peak = f"{format_si(pace.peak, 'FLOP/s')} in {'fp32' if pace.precision == 'fp32' else pace.device.type}"
        yield f"{pace.device.title}: {peak}, of which {pace.utilization:.3g} is reached ({pace.device.source})."
        twice = isinstance(bill, ModelEstimate) and bill.recompute
        again = "blocks run forward once more in backward" if twice else "nothing is computed twice"
        yield f"Training is forward and twice that backward; {again}, and no rank ever waits or fails."
        yield "Generation reads all weights and the cache for every token, from all ranks at once, as if they were one."
    if pace is not None and pace.price is not None:
        yield f"Every rank costs {pace.price:g} an hour while it trains; nothing else is counted."
    if isinstance(bill, ParameterEstimate):
        yield "Activations, cache and attention depend on the model; name a model to include them."


# ---------------------------------------------------------------- tables


def estimate_table(bill: ModelEstimate | ParameterEstimate, name: str | None = None) -> dict[str, Any]:
    """The estimate as plain numbers, with more detail; times in seconds, sizes in bytes."""
    told: dict[str, Any] = {"model": name, "parameters": bill.parameters, "precision": bill.precision}
    told |= {"ranks": bill.ranks, "memory": memory_table(bill.memory), "rank": memory_table(bill.rank)}
    if isinstance(bill, ModelEstimate):
        told |= model_estimate_table(bill)
    pace, fit = bill.pace, bill.fit
    told["pace"] = None if pace is None else asdict(pace) | {"peak": pace.peak, "rate": pace.rate,
                                                             "exaflop_cost": pace.exaflop_cost}  # fmt: skip
    told["fit"] = None if fit is None else asdict(fit) | {"fits": fit.fits}
    told["training"] = None if bill.training is None else training_cost_table(bill.training)
    return told | {"assumptions": list(list_assumptions(bill))}


def model_estimate_table(bill: ModelEstimate) -> dict[str, Any]:
    flops = {
        "unit": bill.unit, "parts": bill.flops.parts, "forward": bill.flops.forward, "training": bill.flops.training,
        "tokens": bill.flops.tokens, "sequence": bill.flops.sequence, "training_sequence": bill.flops.training_sequence,
        "step": bill.step_flops,
        "rule": {"parameters": round_figures(bill.parameters), "forward_sequence": rule_flops(bill, False),
                 "training_sequence": rule_flops(bill, True)},
    }  # fmt: skip
    return {
        "batch": bill.batch, "context": bill.context, "recompute": bill.recompute, "parts": bill.parts, "flops": flops,
        "activations": {kernel: asdict(held) for kernel, held in bill.activations.items()},
        "cache": None if bill.cache is None else asdict(bill.cache) | {"total": bill.cache.total},
        "share": asdict(bill.share), "growth": [asdict(row) for row in bill.growth],
        "complexity": [asdict(row) for row in bill.complexity],
        "step_seconds": bill.step_seconds, "decoding": bill.decoding,
    }  # fmt: skip


def memory_table(memory: TrainingMemory) -> dict[str, int]:
    return asdict(memory) | {"total": memory.total}


def training_cost_table(run: TrainingCost) -> dict[str, Any]:
    return {
        "tokens": run.tokens, "flops": run.flops, "rule": run.rule, "rounded_rule": run.rounded_rule,
        "tokens_per_parameter": run.tokens_per_parameter, "wanted": run.wanted, "enough": run.enough,
        "seconds": run.seconds, "device_hours": run.device_hours, "cost": run.cost,
    }  # fmt: skip
