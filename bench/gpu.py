"""On one GPU, bf16: attention kernels beside raw SDPA and FlexAttention calls, whole models beside transformers.

    PYTHONPATH=src python3 bench/gpu.py attention models

The ratio is the peer's time over ours: above 1 we are faster. Outputs are compared before anything is timed.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
from common import bert, gpt2, keep, show, take_turns, training
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import regard
from regard.core.kernels import AttentionArgs, AttentionSpec, make_plan
from regard.core.masks import CAUSAL

TOKENS, HEADS, WIDTH = 65_536, 16, 64


def attention(length: int, backward: bool) -> dict[str, object]:
    """`auto` against every kernel one could have called by hand, causal."""
    shape = (TOKENS // length, HEADS, length, WIDTH)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
    up = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    where = regard.sequence_tokens(torch.zeros(shape[0], length, 0, device="cuda"))
    ours = make_plan(
        "auto", AttentionSpec(mask=CAUSAL, q=where, k=where, grad=backward, dtype=torch.bfloat16, device="cuda")
    )
    blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device="cuda")
    fast_flex = torch.compile(flex_attention, dynamic=False)

    def sdpa(backend):
        def call():
            with sdpa_kernel([backend]):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return call

    calls = {
        "auto": lambda: ours.run(q, k, v, AttentionArgs(WIDTH**-0.5)),
        "flash": sdpa(SDPBackend.FLASH_ATTENTION),
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "flex": lambda: fast_flex(q, k, v, block_mask=blocks),
    }

    def both(call):
        return lambda: torch.autograd.grad(call(), (q, k, v), up)

    meant = calls["flash"]().float()
    gap = max((call().float() - meant).abs().max().item() for call in calls.values())
    work = {name: many(both(call) if backward else call) for name, call in calls.items()}
    seconds = {name: value / REPEATS for name, value in take_turns(work, rounds=15, warm=3).items()}
    best = min(seconds[name] for name in calls if name != "auto")
    return {
        "n": length, "work": "forward+backward" if backward else "forward",
        **{f"{name}_ms": 1e3 * value for name, value in seconds.items()}, "best_over_auto": best / seconds["auto"],
        "kernel": ours.kernel.name, "gap": f"{gap:.1e}",
    }  # fmt: skip


REPEATS = 10


def many(call):
    def repeat():
        for _ in range(REPEATS):
            call()

    return repeat


def models(name: str, B: int, N: int) -> list[dict[str, object]]:
    family, vocab = (gpt2, 50_257) if name == "GPT-2 124M" else (bert, 30_522)
    torch.manual_seed(0)
    theirs, ours = (m.cuda() for m in family(depth=12, dim=768, heads=12, vocab=vocab, length=N, precision="mixed"))
    ids = torch.randint(1, vocab, (B, N), device="cuda")
    rows = []
    for compiled in (False, True):
        torch._dynamo.reset()
        mine, peer = (torch.compile(m) if compiled else m for m in (ours, theirs))

        def theirs_call(peer=peer):
            with torch.autocast("cuda", torch.bfloat16):
                return peer(input_ids=ids).logits

        calls = {"regard": lambda mine=mine: mine(ids), "transformers": theirs_call}
        with torch.no_grad():
            gap = (calls["regard"]().float() - theirs_call().float()).abs().max().item()
        for what in ("forward", "training"):
            if what == "forward":
                work = {who: torch.no_grad()(call) for who, call in calls.items()}
            else:
                work = {who: training(calls[who], m, ids) for who, m in (("regard", ours), ("transformers", theirs))}
            seconds = take_turns(work, rounds=12, warm=4)
            memory = {}
            for who, call in work.items():
                torch.cuda.reset_peak_memory_stats()
                call()
                memory[who] = torch.cuda.max_memory_allocated() / 2**30
            rows.append({
                "model": name, "batch": f"{B}x{N}", "mode": "compiled" if compiled else "eager", "work": what,
                "regard_tok_s": round(B * N / seconds["regard"]),
                "transformers_tok_s": round(B * N / seconds["transformers"]),
                "x_transformers": seconds["transformers"] / seconds["regard"], "regard_gib": memory["regard"],
                "transformers_gib": memory["transformers"], "logit_gap": f"{gap:.1e}",
            })  # fmt: skip
            show(rows[-1:])
    return rows


def main() -> None:
    asked = sys.argv[1:] or ["attention", "models"]
    if "attention" in asked:
        rows = [attention(n, backward) for n in (1024, 4096, 16_384) for backward in (False, True)]
        show(rows)
        keep("gpu-attention", rows)
    if "models" in asked:
        rows = models("GPT-2 124M", 16, 1024) + models("BERT-base", 64, 256)
        print()
        show(rows)
        keep("gpu-models", rows)


if __name__ == "__main__":
    main()
