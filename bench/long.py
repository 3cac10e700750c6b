"""How long may a text be? 50,000 tokens forward and backward, and a million streamed, each in a process of its own.

    python bench/long.py                     all of it, some minutes on two cores
    python bench/long.py --quick             a twentieth of the lengths, to see that everything runs

Four layers, 128 wide, four heads; the peak of the process' memory includes torch itself. A stream is read in segments
of 2,048 tokens with a memory (regard.models.segment_memory), and the peak is told after a tenth and at the end: they
must be the same. On a GPU the figures are those of its own memory. Kept in bench/results/long-cpu.csv or long-gpu.csv.
"""

import json
import resource
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from common import keep, show, wait

from regard import Model
from regard import config as C
from regard.models.segment_memory import build_segment_memory

VOCAB, SEGMENT, WINDOW = 256, 2048, 256
CUDA = torch.cuda.is_available()
WAYS = {  # a kernel, its mask and the kind of the stack
    "local": ("local", f"causal & window({WINDOW})", "blocks"),
    "local, reversible": ("local", f"causal & window({WINDOW})", "reversible"),
    "linear": ("linear", "causal", "blocks"),
    "linear, reversible": ("linear", "causal", "reversible"),
    "dense (fused)": ("fused", "causal", "blocks"),
}


def model(kernel: str, mask: str, kind: str) -> Model:
    torch.manual_seed(0)
    trunk = C.Trunk(
        kind=kind,
        dim=128,
        depth=4,
        mask=mask,
        position=C.RotaryPosition(),
        attention=C.Attention(heads=4, kernel=kernel),
        dropout=C.NO_DROPOUT,
    )
    made = Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk, init="gpt2"))
    return made.cuda() if CUDA else made


def peak() -> float:
    """GiB at most so far."""
    if CUDA:
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def trained(way: str, count: int) -> dict[str, object]:
    """One step on a text of so many tokens."""
    one, ids = model(*WAYS[way]), torch.randint(VOCAB, (1, count + 1), device="cuda" if CUDA else "cpu")
    wait()
    start = time.perf_counter()
    F.cross_entropy(one(ids[:, :-1])[0], ids[0, 1:]).backward()
    wait()
    return {"work": "forward+backward", "way": way, "tokens": count, "seconds": time.perf_counter() - start,
            "peak_gib": peak()}  # fmt: skip


@torch.no_grad()
def streamed(way: str, count: int) -> dict[str, object]:
    """So many tokens, segment by segment, with a memory that never grows."""
    one = model(*WAYS[way]).eval()
    seen, early = build_segment_memory(one, 1, WINDOW if way == "local" else 1), 0.0
    start = time.perf_counter()
    for begin in range(0, count, SEGMENT):
        one(torch.randint(VOCAB, (1, SEGMENT), device="cuda" if CUDA else "cpu"), cache=seen)
        early = early or (peak() if begin >= count // 10 else 0.0)
    wait()
    return {"work": "streamed", "way": way, "tokens": int(seen.length[0]), "seconds": time.perf_counter() - start,
            "peak_gib": peak(), "peak_after_a_tenth_gib": early}  # fmt: skip


def alone(work: str, way: str, count: int) -> dict[str, object]:
    """In a process of its own, so that its peak is its own."""
    call = [sys.executable, __file__, "--one", work, way, str(count)]
    done = subprocess.run(call, capture_output=True, encoding="utf8")
    if done.returncode:
        return {"work": work, "way": way, "tokens": count, "failed": done.stderr.strip().splitlines()[-1][:100]}
    return json.loads(done.stdout)


def main() -> None:
    if "--one" in sys.argv:
        work, way, count = sys.argv[2:]
        print(json.dumps((trained if work == "forward+backward" else streamed)(way, int(count))))
        return
    short = 20 if "--quick" in sys.argv else 1
    rows = [alone("forward+backward", way, 50_000 // short) for way in WAYS if CUDA or "dense" not in way]
    rows += [alone("streamed", way, 1_000_000 // short) for way in ("local", "linear")]
    show(rows)
    if short == 1:
        keep("long-gpu" if CUDA else "long-cpu", rows)


if __name__ == "__main__":
    main()
