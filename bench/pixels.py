"""Who needs the fewest bits for an image? Pixels that know nothing of each other, convolutions, attention (S061).

    python bench/pixels.py                                 the packaged digits, 8 x 8 in 17 greys: minutes on two cores
    python bench/pixels.py mnist/train-images-idx3-ubyte.gz mnist/t10k-images-idx3-ubyte.gz [--steps 6000]   on a GPU
    python bench/pixels.py --quick                         a few steps, to see that it runs

All that learn have about as many parameters, the same steps and batches, AdamW at the better of two learning rates, and
are scored on the same images.
Bits per dimension are -log2 p(image) / how many values an image has; here every pixel is one value.
"""

import argparse
import json
import math
import time
from dataclasses import asdict, replace

import torch
from common import keep, machine, show

from regard import config as C
from regard.core.model import Transformer
from regard.train import Run, evaluate, train
from regard.zoo import read_recipe

ALONE = dict(mixer=C.Nothing(), position=C.Nowhere(), attention=C.Attention(heads=1))


def recipe(asked: argparse.Namespace) -> C.Recipe:
    """What is trained: digits by themselves, or the images that are named."""
    if not asked.source:
        changes = [f"train.steps={asked.steps or 2000}", "train.minutes=none", "train.eval_every=none"]
        return read_recipe("pixels", changes)
    changes = [f"data.source={asked.source[0]}", f"data.validation={asked.source[1]}", "train.eval_every=none"]
    return read_recipe("image-transformer", [*changes, *([f"train.steps={asked.steps}"] if asked.steps else [])])


def models(c: C.Transformer) -> dict[str, C.Transformer]:
    """Attention to everything before, to the rows just before, and masked convolutions of about the same size."""
    rows = c.embed.grid[1] * (4 if c.embed.grid[1] > 8 else 3)
    target = size(c)

    def convolutions(width: int) -> C.Transformer:
        embed = C.MaskedPixels(**{**asdict(c.embed), "kind": "masked_pixels"}, width=width, blocks=8)
        trunk = C.Trunk(dim=width, depth=1, mask="causal", mlp=c.trunk.mlp, dropout=c.trunk.dropout, **ALONE)
        return replace(c, embed=embed, trunk=trunk)

    width = min(range(32, 640, 8), key=lambda width: abs(size(convolutions(width)) - target))
    return {
        "attention to all before": replace(c, trunk=replace(c.trunk, mask="causal")),
        f"attention {rows} back": replace(c, trunk=replace(c.trunk, mask=f"causal & window({rows})")),
        "masked convolutions": convolutions(width),
    }


def size(c: C.Transformer) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in Transformer(c).parameters())


def baselines(run: Run, levels: int) -> dict[str, float]:
    """Bits of who knows how often each value is there: anywhere, or at each place. One is added to every count."""
    sense = run.objective.sense
    ids, asked = (sense.batch(rows[:], None)["ids"].flatten(1) for rows in (run.data.rows, run.validation.rows))
    every = (ids.flatten().bincount(minlength=levels) + 1).double()
    places = torch.ones(ids.shape[1], levels, dtype=torch.double)
    places.scatter_add_(1, ids.mT, torch.ones(ids.mT.shape, dtype=torch.double))
    anywhere = -(every / every.sum())[asked].log2().mean()
    there = -(places / places.sum(-1, keepdim=True)).gather(1, asked.mT).log2().mean()
    return {"all levels alike": math.log2(levels), "pixels alone": float(anywhere), "the same by place": float(there)}


def best(r: C.Recipe, rates: list[float], tokens: int | None) -> dict[str, object]:
    """Trained at each rate; the better one is shown."""
    ways = [replace(r.train, optimizer=C.AdamW(lr=rate, betas=(0.9, 0.95))) for rate in rates]
    return min((trained(replace(r, train=way), tokens) for way in ways), key=lambda row: row["bits per dimension"])


def trained(r: C.Recipe, tokens: int | None) -> dict[str, object]:
    run = Run.from_recipe(r)
    began = time.perf_counter()
    for _ in train(run):
        pass
    seconds = time.perf_counter() - began
    score = evaluate(run.model, run.validation.batches(tokens), run.objective, scores=True)
    return {"bits per dimension": score.scores["bits per dimension"], "parameters": size(r.model), "steps": run.step,
            "rate": r.train.optimizer.lr, "seconds": round(seconds, 1)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="*", help="images to train on, and to validate on")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3])
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if len(asked.source) not in (0, 2):
        parser.error("name two sources, one to train on and one to validate on, or none")
    r = recipe(asked)
    if asked.quick:
        train_ = replace(r.train, steps=3, batch=4, workers=0, compile=False)
        r = replace(r, train=train_, model=replace(r.model, trunk=replace(r.model.trunk, depth=1, dim=24)))
    first = Run.from_recipe(replace(r, train=replace(r.train, workers=0)))
    rows: list[dict[str, object]] = [
        {"model": name, "bits per dimension": bits} for name, bits in baselines(first, r.model.embed.palette).items()
    ]
    for name, model in models(r.model).items():
        rows.append({"model": name, **best(replace(r, model=model), asked.rates, 20_000 if asked.quick else None)})
        print(json.dumps(rows[-1]), flush=True)
    for row in rows:
        row |= {"data": first.validation.name, "seed": r.train.seed}
    show(rows)
    print(machine())
    if not asked.quick:
        keep("pixels-" + ("mnist" if asked.source else "digits"), rows)


if __name__ == "__main__":
    main()
