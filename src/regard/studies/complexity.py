"""Demo: formulas of a layer's cost compared with measured FLOPs, time and memory (S139, S141, S122).

Widths are small, so that token mixing dominates at lengths that run on a laptop.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard import config, measure, zoo
from regard.core.kernels import KERNELS, AttentionArgs, AttentionSpec, make_plan
from regard.core.masks import FULL
from regard.core.tokens import TokenLayout
from regard.measure.format_estimate import format_si
from regard.measure.peak_memory import peak_tensor_bytes
from regard.studies.demo import DemoFigure, DemoSettings, DemoTable, register_demo
from regard.studies.kernel_error import time_exponent
from regard.studies.trials import refusal_sentence

WIDTH, HEADS, WINDOW = 32, 2, 32
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {  # the row of `measure.complexity`, and the mixer of the block
    "attention": ("attention", {"attention": {"heads": HEADS, "kernel": "reference"}}),
    "attention, fused": ("attention", {"attention": {"heads": HEADS, "kernel": "fused"}}),
    f"attention, window {WINDOW}": (f"attention, window {WINDOW}", {
        "attention": {"heads": HEADS, "kernel": "local"}, "mask": f"window({WINDOW})"}),
    "recurrent": ("recurrent", {"mixer": {"kind": "recurrent", "cell": "rnn"}, "mask": "causal"}),
    "convolution, kernel 3": ("convolution, kernel 3", {"mixer": {"kind": "conv", "kernel_size": 3}, "mask": "causal"}),
}  # fmt: skip
SHARES = {"gpt3-175b": 2048, "bert-base": 512, "transformer-base": 1024}  # tokens that each reads
MODELS = {"transformer-base": {"encoder": "none", "trunk": {"cross": "none", "mask": "full"}}}
LONGEST, SHORT = 2048, 1024


@register_demo(
    "complexity",
    "Predicted and measured growth of time and memory",
    "How a layer's time grows with the length, the memory of its weights, and attention's share of a model's cost.",
)
def demo_complexity(settings: DemoSettings) -> list[DemoTable]:
    return [layer_table(settings), memory_table(settings), share_table()]


def layer_table(settings: DemoSettings) -> DemoTable:
    """Each layer's formula, and the measured exponent of its time in n."""
    n = SHORT
    known = {row.name: row for row in measure.layer_complexities(n, WIDTH, window=WINDOW)}
    numbers, drawn, notes = [], {}, []
    for name, (row, parts) in LAYERS.items():
        found, formula = measure_layers(parts, 4096 if settings.quick else 131_072), known[row]
        settings.tell(f"{name}: {found.get('refused') or format_exponent(found['exponent'])}")
        notes += [f"{name}: {found['refused']}"] if "refused" in found else []
        drawn[name] = list(zip(found.get("lengths", []), (1000 * s for s in found.get("seconds", [])), strict=True))
        numbers.append({"name": name, "operations": formula.operations, "order": formula.operations_order,
                        "sequential": formula.sequential, "path": formula.path, **found})  # fmt: skip
    columns = {
        f"operations at n={n}, d={WIDTH}": [f"{each['operations']:,}" for each in numbers],
        "formula": [each["order"] for each in numbers],
        "in sequence": [f"{each['sequential']:,}" for each in numbers],
        "path": [f"{each['path']:,}" for each in numbers],
        "grows": [format_exponent(each["exponent"]) if "exponent" in each else "" for each in numbers],
        "should": [f"n^{each['power']:g}" if "power" in each else "" for each in numbers],
    }
    question = DemoFigure("How does the time of mixing grow?", "tokens", "milliseconds", drawn, (True, True))
    return DemoTable("How does a layer's cost grow?", [each["name"] for each in numbers], columns, numbers, notes,
                 [question] if any(drawn.values()) else [])  # fmt: skip


def format_exponent(exponent: float) -> str:
    return f"n^{exponent:.2f}"


def measure_layers(parts: dict[str, Any], longest: int) -> dict[str, Any]:
    table = {"dim": WIDTH, "depth": 1, "mask": "full", "position": {"kind": "none"}, **parts}
    try:
        recipe = config.Recipe(model=config.from_dict(config.Transformer, {"trunk": table}))
        return time_exponent(lambda length: recipe, longest)
    except Exception as problem:
        if (said := refusal_sentence(problem)) is None:
            raise
        return {"refused": said}


def memory_table(settings: DemoSettings) -> DemoTable:
    """Memory of attention weights: h·n²·4 bytes if stored, and the peak of each kernel."""
    heads, longest = 8, SHORT if settings.quick else LONGEST
    lengths = tuple(n for n in measure.attention_growth((heads,)) if n.tokens <= longest)
    held = {name: [attention_peak_bytes(name, heads, n.tokens) for n in lengths] for name in ("reference", "fused")}
    columns = {
        "pairs": [f"{n.pairs:,}" for n in lengths],
        "h·n²·4": [format_si(n.layer, "B") for n in lengths],
        **{f"{name} holds": [format_si(size, "B") for size in sizes] for name, sizes in held.items()},
    }
    numbers = [{"tokens": n.tokens, "pairs": n.pairs, "formula": n.layer, **{name: sizes[i] for name, sizes in
               held.items()}} for i, n in enumerate(lengths)]  # fmt: skip
    lines: dict[str, list[tuple[float, float]]] = {
        "h·n²·4": [(n.tokens, float(n.layer)) for n in lengths],
        **{name: [(n.tokens, float(size)) for n, size in zip(lengths, held[name], strict=True)] for name in held},
    }
    note = "reference holds scores and weights at once, twice the formula; memory inside a fused kernel is not measured"
    drawing = DemoFigure("Memory of attention weights", "tokens", "bytes", lines, (True, True))
    return DemoTable(f"Memory of the attention weights of {heads} heads", [f"n={n.tokens:,}" for n in lengths],
                 columns, numbers, [note], [drawing])  # fmt: skip


def attention_peak_bytes(kernel: str, heads: int, n: int, width: int = 16) -> int:
    """The peak memory of one call of a kernel, beyond q, k and v."""
    q, k, v = (torch.randn(1, heads, n, width) for _ in range(3))
    places = TokenLayout(order=torch.arange(n)[None], coords=torch.arange(n)[None, :, None])
    made = make_plan(kernel, AttentionSpec(mask=FULL, q=places, k=places))

    def call() -> Tensor:
        return KERNELS[kernel].run(q, k, v, made, AttentionArgs(width**-0.5))

    return peak_tensor_bytes(call)


def share_table() -> DemoTable:
    """The attention share of FLOPs, n/(6d + n), compared with torch's FLOP counter."""
    numbers: list[dict[str, Any]] = []
    for name, n in SHARES.items():
        c = zoo.preset(name, **MODELS.get(name, {}))
        assert isinstance(c, config.Transformer)
        d = c.trunk.dim
        numbers.append(
            {"name": name, "tokens": n, "dim": d, "formula": n / (6 * d + n), "counted": attention_share_of(c, n)}
        )
    columns = {
        "d": [f"{each['dim']:,}" for each in numbers], "n": [f"{each['tokens']:,}" for each in numbers],
        "n/(6d+n)": [f"{100 * each['formula']:.1f}%" for each in numbers],
        "counted": [f"{100 * each['counted']:.1f}%" for each in numbers],
    }  # fmt: skip
    return DemoTable("Attention's share of the cost", [each["name"] for each in numbers], columns, numbers)


def attention_share_of(c: config.Transformer, tokens: int) -> float:
    """The fraction of a block's FLOPs in scores and mixing, on the meta device with full attention."""
    assert isinstance(c.trunk, config.Trunk)
    attention = replace(c.trunk.attention, kernel="reference")
    one = measure.build_fake_model(replace(c, trunk=replace(c.trunk, depth=1, mask="full", attention=attention)))
    with one.mode, FlopCounterMode(display=False) as counter:
        one.run(1, tokens)
    counted = counter.get_flop_counts()
    block = next(table for name, table in counted.items() if name.endswith("trunk"))
    return float(block[torch.ops.aten.bmm] / sum(block.values()))
