"""GPT-2-shaped and BERT-shaped models on this CPU: ours beside transformers (sdpa) and torch.nn, in one run.

    make bench        # or: python bench/cpu.py --rounds 15

The ratio is the peer's time over ours: above 1 we are faster. Outputs are compared before anything is timed.
"""

import argparse
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from common import Stack, bert, gpt2, keep, show, take_turns, training

SHAPES = {
    # family, batch, tokens, padded
    "gpt2 4x256": (gpt2, 4, 256, False),
    "gpt2 12x64": (gpt2, 12, 64, False),
    "gpt2 1x1024": (gpt2, 1, 1024, False),
    "bert 8x128": (bert, 8, 128, False),
    "bert 8x128 padded": (bert, 8, 128, True),
    "bert 2x512 padded": (bert, 2, 512, True),
}
COMPILED = ("gpt2 4x256", "bert 8x128 padded")  # a shape costs three compilations, twice
SIZES = dict(depth=6, dim=384, heads=6, vocab=4096)


def forwards(name: str, compiled: bool):
    """For each peer its model and a call that makes logits."""
    family, B, N, padded = SHAPES[name]
    torch.manual_seed(0)
    theirs, ours = family(**SIZES, length=N)
    plain = Stack(**SIZES, length=N, causal=family is gpt2)
    ids = torch.randint(1, SIZES["vocab"], (B, N))
    real = (torch.arange(N)[None] < torch.linspace(N // 2, N, B)[:, None]) if padded else None
    long = None if real is None else real.long()
    models = {"regard": ours, "transformers": theirs, "torch.nn": plain}
    runs = {name: torch.compile(model) if compiled else model for name, model in models.items()}
    calls = {
        "regard": lambda: runs["regard"](ids, real=real),
        "transformers": lambda: runs["transformers"](input_ids=ids, attention_mask=long).logits,
        "torch.nn": lambda: runs["torch.nn"](ids, real),
    }
    with torch.no_grad():
        gap = (calls["regard"]() - calls["transformers"]()).abs()
    gap = gap.max() if real is None else gap[real].max()
    return models, calls, ids, float(gap)


def measure(name: str, compiled: bool, rounds: int) -> list[dict[str, object]]:
    models, calls, ids, gap = forwards(name, compiled)
    rows = []
    for what in ("forward", "training"):
        if what == "forward":
            work = {peer: torch.no_grad()(call) for peer, call in calls.items()}
        else:
            work = {peer: training(call, models[peer], ids) for peer, call in calls.items()}
        for model in models.values():
            model.train(what == "training")
        seconds = take_turns(work, rounds)
        rows.append({
            "shape": name, "mode": "compiled" if compiled else "eager", "work": what,
            "regard_ms": 1e3 * seconds["regard"], "x_transformers": seconds["transformers"] / seconds["regard"],
            "x_torch_nn": seconds["torch.nn"] / seconds["regard"], "logit_gap": f"{gap:.1e}",
        })  # fmt: skip
        show(rows[-1:])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--eager", action="store_true", help="leave out the compiled runs")
    asked = parser.parse_args()
    rows = []
    for compiled in (False,) if asked.eager else (False, True):
        for name in asked.shapes:
            if not compiled or name in COMPILED:
                torch._dynamo.reset()
                rows += measure(name, compiled, asked.rounds)
    print()
    show(rows)
    if asked.shapes == list(SHAPES) and not asked.eager:
        keep("cpu", rows)


if __name__ == "__main__":
    main()
