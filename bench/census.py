"""How long does a census take? All heads of two models whose weights are drawn: what is timed does not depend on them.

    python bench/census.py

The model of recipes/shakespeare.toml on 100,000 characters of Shakespeare, and one of GPT-2's size on random ids: 4,096
on a CPU, a million on a GPU. Kept in bench/results/census-cpu.csv or census-gpu.csv.
"""

import resource
import tempfile
import time
from pathlib import Path

import torch
from common import keep, show

import regard
from regard import lens
from regard.lens.head_census.census_circuits import measure_circuits
from regard.training.run import Run
from regard.zoo.recipe import read_recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "shakespeare.toml"

def lab_model():
    """The recipe's model with its tokenizer, as its training begins."""
    return Run.from_recipe(read_recipe(str(RECIPE), ["train.compile=false"])).model.eval(), Path("shakespeare")


def gpt2_model(tokens):
    """GPT-2's shape, 124 million weights, and ids for it to read."""
    model = regard.build(regard.preset("gpt2", vocab=50257)).eval()
    model.context = 1024
    return model, torch.randint(50257, (tokens,))


def measure(name, model, text, tokens, context=None):
    """One census, and the circuits by themselves."""
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        found = lens.census(model, text, out=Path(folder) / "census", tokens=tokens, context=context, circuits=False)
        read = time.perf_counter()
        measure_circuits(model, found.state.counts)
        done = time.perf_counter()
    return {
        "model": name, "weights": sum(weight.numel() for weight in model.parameters()), "heads": len(found.heads),
        "tokens": found.state.tokens, "context": found.settings["context"], "reading_seconds": round(read - start, 2),
        "circuits_seconds": round(done - read, 2), "tokens_per_second": round(found.state.tokens / (read - start)),
        "process_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "gpu_mb": round(torch.cuda.max_memory_allocated() / 2**20) if torch.cuda.is_available() else 0,
    }  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    many, context = (1_000_000, 1024) if gpu else (4096, 256)
    rows = [measure("recipes/shakespeare.toml", *lab_model(), 100_000),
            measure("gpt2", *gpt2_model(many), many, context)]  # fmt: skip
    show(rows)
    keep("census-gpu" if gpu else "census-cpu", rows)


if __name__ == "__main__":
    main()
