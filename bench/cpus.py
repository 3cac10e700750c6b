"""The main demo on CPUs of two kinds: the one at hand, and the same one told to do without AVX-512 and bf16.

    python bench/cpus.py               tokens a second, compiled and as written, a few minutes
    python bench/cpus.py demo          the recipe as it is shipped, three minutes on each, and what it has learned

The second kind is simulated: torch and oneDNN at AVX2, inductor at 256 bits; for speeds also MKL, which multiplies in
fp32, as far as it obeys. Each kind and each way runs in a process and a compile cache of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import keep, show

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
KINDS = {"as it is": {}, "AVX2": AVX2}
SPEEDS = KINDS | {"AVX2, MKL too": AVX2 | {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
WAYS = {"compiled": "auto", "as written": "false"}
ROUNDS = 3
STEPS = """
import sys, time, torch
from regard.training import Run, train_steps as train
run = Run.from_recipe("shakespeare", sys.argv[1:])
steps, times = train(run), []
for _ in range(13):
    begun = time.perf_counter()
    tokens = next(steps).tokens
    times.append(time.perf_counter() - begun)
print(tokens / sorted(times[1:])[6], times[0], str(run.products).removeprefix("torch."))
"""


def speeds() -> None:
    found: dict[tuple[str, str], list[list[str]]] = {}
    for _ in range(ROUNDS):
        for kind, settings in SPEEDS.items():
            for way, word in WAYS.items():
                words = [sys.executable, "-c", STEPS, f"train.compile={word}"]
                done = subprocess.run(words, env=os.environ | settings, capture_output=True, text=True, check=True)
                found.setdefault((kind, way), []).append(done.stdout.split())
    rows = []
    for kind in SPEEDS:
        whole = statistics.median(float(each[0]) for each in found[kind, "compiled"])
        for way in WAYS:
            each = found[kind, way]
            speed = statistics.median(float(one[0]) for one in each)
            first = max(float(one[1]) for one in each)
            rows.append({"cpu": kind, "step": way, "products": each[0][2], "tokens_a_second": round(speed),
                         "times_as_long": round(whole / speed, 2), "first_step_s": round(first, 1)})  # fmt: skip
    keep("cpus", rows)
    show(rows)


def demo() -> None:
    rows = []
    for kind, settings in KINDS.items():
        with tempfile.TemporaryDirectory() as desk:
            words = [sys.executable, "-m", "regard", "train", "shakespeare", "--out", f"{desk}/run"]
            subprocess.run(words, env=os.environ | settings, check=True)
            log = [json.loads(line) for line in Path(desk, "run/log.jsonl").read_text().splitlines()]
            known = json.loads(Path(desk, "run/run.json").read_text())
        last = next(line for line in reversed(log) if line.get("whole"))
        rows.append({"cpu": kind, "precision": known["precision"], "steps": last["step"],
                     "validation": round(last["eval_loss"], 4), "seconds": round(known["seconds"], 1),
                     "compile_seconds": round(known["measured"]["compile_seconds"], 1)})  # fmt: skip
    keep("cpus-demo", rows)
    show(rows)


if __name__ == "__main__":
    demo() if sys.argv[1:] == ["demo"] else speeds()
