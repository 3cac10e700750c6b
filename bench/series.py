"""ETTh1, 96 hours ahead from 336: a patched transformer beside the last value, the same hours before, and a line.

    python bench/series.py --data ETTh1.csv          all test windows, no batch dropped; mean over seeds
    python bench/series.py --data ETTh1.csv --quick  a few steps, to see that all runs

A JSON line for each result, and a table of all at the end. Errors are in deviations of the training rows.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

from regard import Run
from regard.training.loop import train_steps
from regard.training.validation import validate

DAY = 24


def windows(run: Run, part: object) -> tuple[Tensor, Tensor]:
    """All windows of a part, standardised: (windows, 336, channels) and (windows, 96, channels)."""
    front = run.recipe.model.embed
    batches = list(part.batches())
    center, scale = torch.tensor(front.center), torch.tensor(front.scale)
    x, y = ((torch.cat([batch[name] for batch in batches]) - center) / scale for name in ("ids", "target"))
    return x, y


def marks(said: Tensor, came: Tensor) -> dict[str, float]:
    return {"mse": float((said - came).square().mean()), "mae": float((said - came).abs().mean())}


def line(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], ridge: float) -> dict[str, float]:
    """Least squares from a window to its horizon, one map for all channels, each less its window's mean."""
    x, y = train
    level = x.mean(1, keepdim=True)
    a, b = (each.mT.flatten(0, 1).double() for each in (x - level, y - level))
    weight = torch.linalg.solve(a.mT @ a + ridge * len(a) * torch.eye(a.shape[1], dtype=a.dtype), a.mT @ b).float()
    x, y = test
    level = x.mean(1, keepdim=True)
    return marks(((x - level).mT @ weight).mT + level, y)


def ours(source: str, seed: int, quick: bool, more: list[str]) -> dict[str, float]:
    steps = ["train.steps=6", "train.schedule.warmup=2"] if quick else []
    given = [f"data.source={source}", f"train.seed={seed}", *more, *steps]
    run = Run.from_recipe("etth1", given)
    test = Run.from_recipe("etth1", [*given, "task.eval_split=test"]).validation
    began, best, kept = time.perf_counter(), float("inf"), {}
    every = run.settings.eval_every or 100
    for step in train_steps(run):
        if step.number % every == 0 or run.is_over:  # what validates best is scored, as train.keep_best keeps it
            with run.ema.applied() if run.ema is not None else torch.no_grad():
                loss = validate(run.model, run.validation.batches(), run.task).loss
                if loss < best:
                    best, kept = loss, {name: table.detach().clone() for name, table in run.model.state_dict().items()}
    seconds = time.perf_counter() - began
    run.model.load_state_dict(kept)
    scores = validate(run.model, test.batches(), run.task, True).scores
    count = sum(weight.numel() for weight in run.model.parameters())
    return {**scores, "validation": best, "parameters": count, "seconds": seconds, "device": run.device.type}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/ett/ETTh1.csv.xz"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("overrides", nargs="*", help="settings of the recipe that differ, such as task.loss=huber")
    asked = parser.parse_args()
    if not asked.data.exists():
        raise SystemExit(f"{asked.data}: no such file; name ETTh1.csv by --data")
    known = Run.from_recipe("etth1", [f"data.source={asked.data}", "task.eval_split=test"])
    train_windows, test = windows(known, known.data), windows(known, known.validation)
    x, y = test
    again = x[:, -DAY:].repeat(1, -(-y.shape[1] // DAY), 1)[:, : y.shape[1]]
    rows = [{"model": "the last value", **marks(x[:, -1:].expand_as(y), y)},
            {"model": "the last day again", **marks(again, y)},
            {"model": "a line, least squares", **line(train_windows, test, 0.0)},
            {"model": "a line, ridge", **line(train_windows, test, 0.1)}]  # fmt: skip
    for row in rows:
        print(json.dumps(row), flush=True)
    for seed in range(1 if asked.quick else asked.seeds):
        rows.append({"model": "transformer, patches", "seed": seed,
                     **ours(str(asked.data), seed, asked.quick, asked.overrides)})  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    print(f"\n{len(y):,} test windows\n{'model':<24} {'MSE':>20} {'MAE':>8} {'seconds':>8}")
    for name in dict.fromkeys(row["model"] for row in rows):
        some = [row for row in rows if row["model"] == name]
        errors = [row["mse"] for row in some]
        spread = f" ({min(errors):.4f}-{max(errors):.4f})" if len(some) > 1 else ""
        mean = sum(errors) / len(errors)
        print(f"{name:<24} {f'{mean:.4f}{spread}':>20} {sum(row['mae'] for row in some) / len(some):>8.4f} "
              f"{some[0].get('seconds', 0):>8.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
