"""How many numbers does a task take? One encoder fine-tuned whole, and by adapters of rank 1, 4 and 16.

    python bench/lora.py                      # pre-trains a small encoder on reviews first
    python bench/lora.py --base FOLDER        # any encoder that is there, such as a sentence-embedding model
    python bench/lora.py --base FOLDER data.source=train.tsv data.validation=dev.tsv task.input=sentence
    python bench/lora.py --quick              # a minute: everything runs, and no figure means anything

The same data, steps and seeds for all; each way has its own learning rates, and every one of them is shown, since the
best rate of adapters is not that of a whole model. Kept in bench/results/lora.csv (not with --quick): accuracy on the
validation data, weights that learn, bytes of what is kept, the optimizer's bytes and the seconds of a step.
"""

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from common import keep, show

import regard
from regard.hub import peft_save
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

RANKS = (1, 4, 16)
RATES = {"whole": (1e-4, 3e-4), "adapters": (1e-3, 3e-3)}
TARGETS = "q", "v"
SHAPE = ['task={kind="masked_lm"}', 'tokenizer={kind="wordpiece", vocab=8000, lowercase=true}',
         "model.preset=bert-base",
         "model.mask=full", "model.dim=128", "model.depth=4", "model.heads=4",
         'model.head={kind="lm", transform=true, bias=true}', "train.optimizer.lr=1e-3",
         "train.schedule.kind=cosine", "train.schedule.warmup=200"]  # fmt: skip
EMPTY = '[data]\nsource = "movie-reviews"\n[train]\neval_every = "none"\n'


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--base", help="a folder with an encoder to begin with")
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--quick", action="store_true")
    words.add_argument("changes", nargs="*", help="settings of the recipe finetune-classify, such as data.source=...")
    given = words.parse_args()
    with TemporaryDirectory() as place:
        (Path(place) / "reviews.toml").write_text(EMPTY)
        base = given.base or pretrained(Path(place), 10 if given.quick else 4000)
        seeds = range(1 if given.quick else given.seeds)
        ways = [("whole", None), *(("adapters", rank) for rank in (RANKS[:1] if given.quick else RANKS))]
        short = ["train.steps=4", "train.epochs=none"] if given.quick else []
        rows = [told([f"train.init_from={base}", *given.changes, *short], rank, rate, list(seeds))
                for way, rank in ways for rate in (RATES[way][:1] if given.quick else RATES[way])]  # fmt: skip
    show(rows)
    if not given.quick:
        keep("lora", rows)


def pretrained(place: Path, steps: int) -> Path:
    """A small encoder that has learned which word was hidden."""
    run = regard.Run.from_recipe(place / "reviews.toml", [*SHAPE, f"train.steps={steps}", "train.context=128"])
    for _ in regard.train(run):
        pass
    run.save(place / "base")
    return place / "base"


def told(changes: list[str], rank: int | None, rate: float, seeds: list[int]) -> dict[str, object]:
    """One way of fine-tuning at one rate: the mean over seeds, and how far they lie apart."""
    runs = [tuned(changes, rank, rate, seed) for seed in seeds]
    marks = [float(run["accuracy"]) for run in runs]
    spread = statistics.stdev(marks) if len(marks) > 1 else 0.0
    return {"way": "whole" if rank is None else f"rank {rank}", "lr": f"{rate:g}", "accuracy": statistics.mean(marks),
            "spread": spread, "seeds": len(marks), "learn": runs[0]["learn"], "kept_bytes": runs[0]["kept"],
            "optimizer_bytes": runs[0]["optimizer"],
            "step_s": statistics.median(run["step_s"] for run in runs)}  # fmt: skip


def tuned(changes: list[str], rank: int | None, rate: float, seed: int) -> dict[str, float]:
    adapted = [] if rank is None else [f"train.lora.rank={rank}", f"train.lora.targets={list(TARGETS)}"]
    more = [f"train.seed={seed}", f"train.optimizer.lr={rate}"]
    run = regard.Run.from_recipe(read_recipe("finetune-classify", [*changes, *more, *adapted]))
    times, last = [], time.perf_counter()
    for _ in regard.train(run):
        now = time.perf_counter()
        times.append(now - last)
        last = now
    assert run.validation is not None
    score = validate(run.model, run.validation.batches(), run.task, True)
    learn = [weight for weight in run.model.parameters() if weight.requires_grad]
    kept = peft_save.collect_adapter(run.model).tensors.values() if rank else run.model.parameters()
    return {"accuracy": score.scores["accuracy"], "learn": sum(weight.numel() for weight in learn),
            "kept": sum(tensor.numel() * tensor.element_size() for tensor in kept),
            "optimizer": sum(x.numel() * x.element_size() for x in run.optimizer.state().values()),
            "step_s": statistics.median(times)}  # fmt: skip


if __name__ == "__main__":
    main()
