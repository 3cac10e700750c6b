"""What does it cost to open a model? Time and memory of `regard.load` beside `from_pretrained` and the disk itself.

    python bench/loading.py                  GPT-2 with 355M numbers in fp32 and a Llama of the same size, one after the
                                             other: some minutes and 1.5 GB of disk
    python bench/loading.py --large          GPT-2 with 1.5B in bf16: 3 GB of disk

Each opening is a process of its own that has imported all it needs; turns are taken, once with the file in the memory
of the system and once with that emptied. `seconds` is until the model is there, `ready` until every weight was added
up once: what is mapped into memory has not been read before. Memory is the highest mark of the process over what it
had before, and of it what is private, both as multiples of the weights; the marks are read from outside. `disk` reads
the file and does nothing with it; `copy` maps it and copies each tensor once, as it stands, into memory of its own.
Kept in bench/results/loading-cpu.csv.

What differs between the two models: GPT-2's matrices are stored the other way round, so ours are turned on the way.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import keep, show
from safetensors.torch import save_file
from torch import nn

FILE, ROUNDS = "model.safetensors", 5
SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "GPT-2 355M fp32": ("GPT2", dict(n_embd=1024, n_layer=24, n_head=16)),
    "Llama 352M fp32": ("Llama", dict(vocab_size=32_000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=24,
                                      num_attention_heads=16, num_key_value_heads=8)),
    "GPT-2 1.5B bf16": ("GPT2", dict(n_embd=1600, n_layer=48, n_head=25)),
}  # fmt: skip
LARGE = "GPT-2 1.5B bf16"
WHO = ("regard", "transformers", "copy", "disk")


def write(folder: Path, name: str) -> int:
    """A model of random numbers as `transformers` stores it; the bytes of its weights."""
    import transformers as hf

    kind = torch.bfloat16 if name.endswith("bf16") else torch.float32
    family, sizes = SHAPES[name]
    c = getattr(hf, f"{family}Config")(**sizes, bos_token_id=0, eos_token_id=0)
    with torch.device("meta"):
        shell = hf.AutoModelForCausalLM.from_config(c)
    tied = shell.config.tie_word_embeddings
    chance = torch.Generator().manual_seed(0)
    tensors = {key: torch.empty(weight.shape, dtype=kind).normal_(0, 0.02, generator=chance)
               for key, weight in shell.named_parameters() if not tied or key != "lm_head.weight"}  # fmt: skip
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    shell.config.architectures, shell.config.dtype = [type(shell).__name__], kind
    shell.config.save_pretrained(folder)
    return sum(tensor.nbytes for tensor in tensors.values())


# ---------------------------------------------------------------- in a process of its own


def opening(who: str, folder: str) -> None:
    """Open the model when told to, and say how long it took."""
    open_it = dict(zip(WHO, (by_regard, by_transformers, by_a_copy, by_the_disk), strict=True))[who](folder)
    print("imported", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    model = open_it()
    there = time.perf_counter() - start
    held = model.parameters() if isinstance(model, nn.Module) else model or ()
    total = sum(weight.sum(dtype=torch.float32).item() for weight in held)
    print(json.dumps({"seconds": there, "ready": time.perf_counter() - start, "sum": total}), flush=True)
    sys.stdin.readline()


def by_regard(folder: str):
    import regard
    import regard.hub.read_folder
    import regard.measure.fake_model

    def opened() -> nn.Module:
        return regard.load(folder, device="cpu")

    return opened


def by_transformers(folder: str):
    from transformers import GPT2LMHeadModel, LlamaForCausalLM

    known = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM}
    kind = known[json.loads((Path(folder) / "config.json").read_text())["model_type"]]
    return lambda: kind.from_pretrained(folder, dtype="auto")


def by_a_copy(folder: str):
    from safetensors.torch import load_file

    return lambda: [tensor.clone() for tensor in load_file(f"{folder}/{FILE}").values()]


def by_the_disk(folder: str):
    def read() -> None:
        room = bytearray(1 << 24)
        with open(f"{folder}/{FILE}", "rb", buffering=0) as file:
            while file.readinto(room):
                pass

    return read


# ---------------------------------------------------------------- from outside


def measured(who: str, folder: Path, cold: bool) -> dict[str, float]:
    words = [sys.executable, __file__, "--open", who, "--folder", str(folder)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdin and child.stdout and child.stdout.readline() == "imported\n"
        empty(folder / FILE) if cold else (folder / FILE).read_bytes()
        before, most = mark(child.pid), 0
        child.stdin.write("\n")
        child.stdin.flush()
        os.set_blocking(child.stdout.fileno(), False)
        while not (said := child.stdout.readline()):
            most = max(most, mark(child.pid)["RssAnon"])
            time.sleep(0.002)
        after = mark(child.pid)
        child.stdin.close()
    private = max(most, after["RssAnon"]) - before["RssAnon"]
    return {**json.loads(said), "peak": after["VmHWM"] - before["VmRSS"], "private": private}


def mark(process: int) -> dict[str, int]:
    """Bytes in memory now and at most, and those that are its own."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[0][:-1] in KEYS}


KEYS = ("VmRSS", "VmHWM", "RssAnon")


def empty(path: Path) -> None:
    """Let the system forget what it has of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compared(name: str, rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as place:
        weights = write(Path(place), name)
        for cold in (False, True):
            told: dict[str, list[dict[str, float]]] = {who: [] for who in WHO}
            for _ in range(rounds):
                for who, seen in told.items():
                    seen.append(measured(who, Path(place), cold))
            sums = {who: seen[0]["sum"] for who, seen in told.items() if who != "disk"}
            assert max(sums.values()) - min(sums.values()) <= 1e-3 * abs(sums["regard"]) + 1, sums
            for who, seen in told.items():
                middle = {key: statistics.median(one[key] for one in seen) for key in seen[0] if key != "sum"}
                rows.append({"model": name, "file": "cold" if cold else "warm", "who": who,
                             "seconds": middle["seconds"], "ready": middle["ready"],
                             "peak": middle["peak"] / weights, "private": middle["private"] / weights,
                             "GB": weights / 1e9, "rounds": rounds})  # fmt: skip
                print(name, "cold" if cold else "warm", who, {k: round(v, 3) for k, v in middle.items()}, flush=True)
    return rows


if __name__ == "__main__":
    read = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    read.add_argument("--large", action="store_true")
    read.add_argument("--rounds", type=int, default=ROUNDS)
    read.add_argument("--open", choices=WHO, help=argparse.SUPPRESS)
    read.add_argument("--folder", help=argparse.SUPPRESS)
    asked = read.parse_args()
    if asked.open:
        opening(asked.open, asked.folder)
    else:
        rows = [row for name in SHAPES if asked.large == (name == LARGE) for row in compared(name, asked.rounds)]
        show(rows)
        keep("loading-large-cpu" if asked.large else "loading-cpu", rows)
