"""Who needs the fewest bits for an image? Pixels that know nothing of each other, convolutions, attention (S061).

    python bench/pixels.py                                 the packaged digits, 8 x 8 in 17 greys: minutes on two cores
    python bench/pixels.py mnist/train-images-idx3-ubyte.gz mnist/t10k-images-idx3-ubyte.gz --steps 4000      on a GPU
    python bench/pixels.py ... --models window --ways muon --seeds 1      one of them, beside others in other processes
    python bench/pixels.py --tell *.log                    the table of what such processes said, kept
    python bench/pixels.py --quick                         a few steps, to see that it runs

All that learn have about as many parameters, the same steps, batches and dropout, and are scored on the same images.
Each is trained in every way that is named, which are the same for all, and the table has the best of each; `lowest` is
the least on the way there (with --every), for who learns by heart sooner than others. Bits per dimension are
-log2 p(image) / how many values an image has; here every pixel is one value. A line of JSON for every result.
"""

import argparse
import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from common import keep, machine, show

from regard import config as C
from regard.core.model import Transformer
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

ALONE = dict(mixer=C.NoMixer(), position=C.NoPosition(), attention=C.Attention(heads=1))
WAYS: dict[str, C.AdamW | C.Muon] = {
    "muon": C.Muon(lr=0.02, adam_lr=3e-3, weight_decay=0.05),
    "muon-slow": C.Muon(lr=0.01, adam_lr=1e-3, weight_decay=0.05),
    "adamw-1e-3": C.AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05),
    "adamw-3e-3": C.AdamW(lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05),
}
BITS = "bits per dimension"
SOME = 200_000  # pixels that are scored on the way


def recipe(asked: argparse.Namespace) -> C.Recipe:
    """What is trained: digits by themselves, or the images that are named."""
    changes = [f"train.steps={asked.steps or (1000 if not asked.source else 4000)}", "train.eval_every=none"]
    said = {"batch": asked.batch, "workers": asked.workers}
    changes += [f"train.{name}={value}" for name, value in said.items() if value is not None]
    if not asked.source:
        return read_recipe("pixels", ["train.minutes=none", *changes])
    images = [f"data.source={asked.source[0]}", f"data.validation={asked.source[1]}"]
    return read_recipe("image-transformer", [*images, *changes])


def models(c: C.Transformer) -> dict[str, C.Transformer]:
    """Attention to the rows just before, to everything before, and masked convolutions of about the same size."""
    rows = c.embed.grid[1] * (4 if c.embed.grid[1] > 8 else 3)
    target = size(c)

    def convolutions(width: int) -> C.Transformer:
        embed = C.MaskedConvEmbedding(**{**asdict(c.embed), "kind": "masked_pixels"}, width=width, blocks=8,
                               dropout=c.trunk.dropout.residual)  # fmt: skip
        trunk = C.Trunk(dim=width, depth=1, mask="causal", mlp=c.trunk.mlp, dropout=c.trunk.dropout, **ALONE)
        return replace(c, embed=embed, trunk=trunk)

    width = min(range(32, 640, 8), key=lambda width: abs(size(convolutions(width)) - target))
    return {
        "window": replace(c, trunk=replace(c.trunk, mask=f"causal & window({rows})")),
        "all": replace(c, trunk=replace(c.trunk, mask="causal")),
        "convolutions": convolutions(width),
    }


def size(c: C.Transformer) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in Transformer(c).parameters())


def baselines(run: Run, levels: int) -> dict[str, float]:
    """Bits of who knows how often each value is there: anywhere, or at each place. One is added to every count."""
    sense = run.objective.sense
    ids, asked = (sense.collate(rows[:], None)["ids"].flatten(1) for rows in (run.data.rows, run.validation.rows))
    every = (ids.flatten().bincount(minlength=levels) + 1).double()
    places = torch.ones(ids.shape[1], levels, dtype=torch.double)
    places.scatter_add_(1, ids.mT, torch.ones(ids.mT.shape, dtype=torch.double))
    anywhere = -(every / every.sum())[asked].log2().mean()
    there = -(places / places.sum(-1, keepdim=True)).gather(1, asked.mT).log2().mean()
    return {"all levels alike": math.log2(levels), "pixels alone": float(anywhere), "the same by place": float(there)}


def trained(r: C.Recipe, every: int, tokens: int | None) -> dict[str, object]:
    """Bits at the end, and every so many steps, of 200,000 pixels at most."""
    run, began, on_the_way = Run.from_recipe(r), time.perf_counter(), list[float]()
    for step in train_steps(run):
        if every and step.number % every == 0:
            on_the_way.append(bits(run, SOME))
            print(json.dumps({"step": step.number, BITS: on_the_way[-1]}), flush=True)
    seconds, at_the_end = time.perf_counter() - began, bits(run, tokens)
    return {BITS: at_the_end, "lowest": min([at_the_end, *on_the_way]), "parameters": size(r.model),
            "steps": run.step, "batch": r.train.batch_size, "seconds": round(seconds, 1)}  # fmt: skip


def bits(run: Run, tokens: int | None) -> float:
    return validate(run.model, run.validation.batches(tokens), run.objective, scores=True).scores[BITS]


def tell(rows: list[dict[str, object]], kept: bool = True) -> None:
    """Of each model and seed the way that went best; all rows are kept."""
    best: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        key = tuple(row.get(name) for name in ("data", "model", "seed", "steps"))
        best[key] = min(row, best.get(key, row), key=lambda each: each[BITS])
    told = sorted(best.values(), key=lambda row: -row[BITS])
    show(told)
    print(machine())
    if kept:
        keep("pixels-digits" if rows[0]["data"] == "digits" else "pixels-images", rows)


def said(logs: list[Path]) -> list[dict[str, object]]:
    lines = [line for log in logs for line in log.read_text(encoding="utf8").splitlines() if line.startswith("{")]
    return [row for row in map(json.loads, lines) if "model" in row]


def main() -> None:
    asked = arguments()
    if asked.tell:
        rows = said(asked.tell)
        return tell(rows)
    r = recipe(asked)
    if asked.quick:
        train_ = replace(r.train, steps=3, batch_size=4, workers=0, compile=False)
        r = replace(r, train=train_, model=replace(r.model, trunk=replace(r.model.trunk, depth=1, dim=24)))
    first, rows = Run.from_recipe(replace(r, train=replace(r.train, workers=0))), list[dict[str, object]]()

    def note(model: str, found: dict[str, object]) -> None:
        rows.append({"data": Path(asked.source[1]).name if asked.source else "digits", "model": model, **found})
        print(json.dumps(rows[-1]), flush=True)

    for name, found in baselines(first, r.model.embed.palette).items():
        note(name, {BITS: found})
    for seed in asked.seeds:
        for name in asked.models:
            for way in asked.ways:
                train_ = replace(r.train, optimizer=WAYS[way], seed=seed)
                one = replace(r, model=models(r.model)[name], train=train_)
                note(name, {**trained(one, asked.every, 20_000 if asked.quick else None), "way": way, "seed": seed})
    tell(rows, kept=not asked.quick)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="*", help="images to train on, and to validate on")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--models", nargs="+", default=["window", "convolutions"],
                        choices=["window", "all", "convolutions"])  # fmt: skip
    parser.add_argument("--ways", nargs="+", default=["muon", "adamw-1e-3", "adamw-3e-3"], choices=[*WAYS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--every", type=int, default=100, help="steps from one score to the next on the way")
    parser.add_argument("--tell", type=Path, nargs="+", default=[])
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if len(asked.source) not in (0, 2):
        parser.error("name two sources, one to train on and one to validate on, or none")
    return asked


if __name__ == "__main__":
    main()
