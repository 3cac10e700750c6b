"""Which attention, and what does it cost? Every kernel at four lengths: time, with gradients too, and peak memory.

    python bench/kernels.py                     all kernels, 1,024 to 65,536 tokens
    python bench/kernels.py linear local        some of them
    python bench/kernels.py --quick             two short lengths, to see that everything runs

On a GPU in bf16 with 16 heads of 64 and 65,536 tokens in all, eager and compiled; on a CPU in fp32 with 4 heads of 32,
one row, eager. A length is left out where the one before took longer than it is worth. Kept in
bench/results/kernels-cpu.csv or kernels-gpu.csv.
"""

import gc
import sys
from collections.abc import Callable

import torch
from common import keep, show, take_turns
from torch import Tensor

import regard
from regard import config as C
from regard.config.errors import parse_call
from regard.core.kernels import KERNELS, AttentionArgs, AttentionSpec, make_plan
from regard.core.layers import Attention
from regard.core.masks import mask
from regard.measure.peak_memory import peak_tensor_bytes

CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
HEADS, WIDTH, TOKENS = (16, 64, 65_536) if CUDA else (4, 32, 1)
LENGTHS = (1024, 4096, 16_384, 65_536)
SLOW = 0.5 if CUDA else 4.0  # seconds: four times the length is not tried after that
NEAR, MARKED = "causal & window(256)", "causal & (window(256) | global_tokens(64))"

# kernels as a config says them, and the masks they are measured under
SAID: dict[str, tuple[str, ...]] = {
    "reference": ("causal",), "fused": ("causal", NEAR), "flex": ("causal", NEAR, MARKED),
    "tiled_flash(128)": ("causal",),
    "local": (NEAR, MARKED, "causal & dilated(64, 4)"), "linear": ("causal", "full"),
    "performer(256)": ("causal", "full"), "linformer(256)": ("full",), "lsh(64, 4)": ("causal",),
    "topk(32)": ("causal",), "additive(32)": ("causal",),
}  # fmt: skip


def owned(said: str, count: int) -> torch.nn.Module | None:
    """The weights of the kernel's own, as a layer makes them."""
    name, given = parse_call(said)
    if KERNELS[name].weights is None:
        return None
    said = f"linformer({given[0]}, {count})" if name == "linformer" else said
    maps = ("q", "v", "out") if name == "lsh" else ("q", "k", "v", "out")
    c = C.Attention(heads=HEADS, head_dim=WIDTH, kernel=said, projections=maps)
    return Attention(c, C.Trunk(dim=HEADS * WIDTH, attention=c), 0).own.to(DEVICE, DTYPE)


def called_with(said: str, text: str, count: int, grad: bool, compiled: bool) -> Callable[[], object] | str:
    """One call, forward or forward and backward; or why there is none."""
    rows = max(1, TOKENS // count)
    where = regard.sequence_tokens(torch.zeros(rows, count, 0, device=DEVICE))
    try:
        made = make_plan(said, AttentionSpec(mask=mask(text), q=where, k=where, grad=grad, dtype=DTYPE, device=DEVICE))
    except ValueError as problem:
        return str(problem)
    how, shape = AttentionArgs(WIDTH**-0.5, weights=owned(said, count)), (rows, HEADS, count, WIDTH)
    given = [torch.randn(shape, device=DEVICE, dtype=DTYPE, requires_grad=grad) for _ in range(3)]
    up = torch.randn(shape, device=DEVICE, dtype=DTYPE)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return made.run(q, k, v, how)

    torch._dynamo.reset()
    run = torch.compile(run, dynamic=False) if compiled else run

    def call() -> object:
        with torch.set_grad_enabled(grad):
            out = run(*given)
        return torch.autograd.grad(out, given, up, allow_unused=True) if grad else out

    return call


def held(call: Callable[[], object]) -> float:
    """Peak MiB beyond what was there."""
    gc.collect()
    return peak_tensor_bytes(call, "cuda" if CUDA else "cpu") / 2**20


def measured(said: str, text: str, count: int, compiled: bool, rounds: int) -> dict[str, object]:
    row: dict[str, object] = {"kernel": said, "mask": text, "n": count, "mode": "compiled" if compiled else "eager"}
    for name, grad in (("forward", False), ("both", True)):
        call = called_with(said, text, count, grad, compiled)
        if isinstance(call, str):
            row["refused"] = call
            continue
        call()
        row[f"{name}_mib"] = held(call)
        row[f"{name}_ms"] = 1e3 * take_turns({"it": call}, rounds=rounds, warm=1)["it"]
    return row


def main() -> None:
    quick = "--quick" in sys.argv
    asked = [word for word in sys.argv[1:] if not word.startswith("-")]
    usual = [parse_call(said)[0] for said in SAID if CUDA or said != "flex"]  # which has no gradient on a CPU
    chosen = {said: texts for said, texts in SAID.items() if parse_call(said)[0] in (asked or usual)}
    rows: list[dict[str, object]] = []
    for said, texts in chosen.items():
        for text in texts:
            for compiled in (False, True) if CUDA and said != "flex" else (False,):
                for count in (256, 512) if quick else LENGTHS:
                    rows.append(measured(said, text, count, compiled, rounds=3 if quick or not CUDA else 10))
                    show(rows[-1:])
                    if float(str(rows[-1].get("both_ms", rows[-1].get("forward_ms", 0)))) > 1e3 * SLOW:
                        break
    print()
    show(rows)
    if not quick:
        keep("kernels-gpu" if CUDA else "kernels-cpu", rows)


if __name__ == "__main__":
    main()
