"""A ViT, a ViT of several scales and a CNN of their size, on the same images: how many does each need (S131)?

    python bench/cifar.py cifar                   a folder of data_batch_1.png ... and test_batch.png, each row of a PNG
                                                  one image of 32 x 32 pixels, with the labels in .json files; or of
                                                  train.npz and test.npz with arrays images and labels
    python bench/cifar.py cifar --sizes 1000 50000 --steps 3000 --models vit cnn
    python bench/cifar.py --quick                 the packaged emoji and a few steps, to see that it runs

A row for each model and number of training images: accuracy on all test images, parameters, milliseconds for one image
and for 256, and how far attention reaches, in pixels. Beside them who always says the most frequent class, and logistic
regression on pixels. Files that are made: train.npz and test.npz in the folder, so that `regard train cifar10
data.source=cifar/train.npz data.validation=cifar/test.npz` reads them too.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from common import keep, machine, show, take_turns
from torch import Tensor

from regard import config as C
from regard.core.watch import looking
from regard.data import Tally, tables
from regard.train import Run, evaluate, train
from regard.zoo import read_recipe

SIZES = [1000, 5000, 20_000, 50_000]
SEEN = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def needed(name: str):
    try:
        return __import__(name)
    except ImportError:
        sys.exit(f"bench/cifar.py: the package {name} is not here; pip install {name}")


# ---------------------------------------------------------------- the images


def prepared(folder: Path) -> tuple[Path, Path]:
    """train.npz and test.npz of a folder, made of its PNGs where they are not there."""
    files = folder / "train.npz", folder / "test.npz"
    if all(file.is_file() for file in files):
        return files
    parts = {"train": sorted(folder.glob("**/data_batch_*.png")), "test": sorted(folder.glob("**/test_batch*.png"))}
    for (part, pictures), file in zip(parts.items(), files, strict=True):
        if not pictures:
            sys.exit(f"bench/cifar.py: {folder} has no {file.name}, and no pictures to make it of")
        said = [path for path in sorted(folder.glob("**/*.json")) if part in path.name and "lab" in path.name]
        labels = [json.loads(path.read_text()) for path in said]
        images = torch.cat([rows_of(path) for path in pictures])
        if len(labels) != 1 or len(labels[0]) != len(images):
            sys.exit(f"bench/cifar.py: {len(images):,} images to {part}, and {[len(each) for each in labels]} labels")
        needed("numpy").savez(file, images=images.numpy(), labels=torch.tensor(labels[0]).numpy())
    return files


def rows_of(path: Path) -> Tensor:
    """(N, 32, 32, 3) of a PNG, each of whose rows is one image."""
    image = needed("PIL.Image").Image.open(path).convert("RGB")
    if image.size[0] != 32 * 32:
        sys.exit(f"bench/cifar.py: {path} is {image.size[0]} pixels wide, and a row should be one image of 32 x 32")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(-1, 32, 32, 3)


def emoji(folder: Path) -> tuple[Path, Path]:
    """The packaged pictures with their categories, as if they were CIFAR's."""
    parts = {name: [record for table in tables((part,)) for record in table.records(Tally())]
             for part, name in (("emoji", "train.npz"), ("emoji:test", "test.npz"))}  # fmt: skip
    classes = sorted({record["label"] for record in parts["train.npz"]})
    for name, found in parts.items():
        labels = torch.tensor([classes.index(record["label"]) for record in found])
        images = torch.stack([record["image"] for record in found])
        needed("numpy").savez(folder / name, images=images.numpy(), labels=labels.numpy())
    return folder / "train.npz", folder / "test.npz"


def part_of(file: Path, count: int, folder: Path) -> Path:
    """So many of the images, as many of each class as can be; always the same, the smaller set in the larger."""
    numpy = needed("numpy")
    whole = numpy.load(file)
    labels = torch.from_numpy(whole["labels"])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    turn = torch.zeros_like(labels)
    for one in labels.unique():
        mine = order[labels[order] == one]
        turn[mine] = torch.arange(len(mine))
    chosen = turn.argsort(stable=True)[:count].sort().values.numpy()
    out = folder / f"train-{count}.npz"
    numpy.savez(out, images=whole["images"][chosen], labels=whole["labels"][chosen])
    return out


# ---------------------------------------------------------------- the models


def models(asked: argparse.Namespace) -> dict[str, C.Transformer]:
    """Three of about four million parameters."""
    vit, swin = read_recipe("cifar10").model, read_recipe("cifar10-swin").model
    trunk = C.Trunk(dim=256, depth=1, mixer=C.Nothing(), position=C.Nowhere(), attention=C.Attention(heads=1),
                    mlp=C.MLP(hidden=256), dropout=C.Dropout(embed=0.0, sublayer=0.1))  # fmt: skip
    cnn = C.Transformer(embed=C.Convolutions(widths=(64, 128, 256), blocks=3, **SEEN), trunk=trunk,
                        head=C.Pooled(place="mean"))  # fmt: skip
    if asked.quick:
        vit = replace(vit, trunk=replace(vit.trunk, depth=1, dim=24))
        cnn = replace(cnn, embed=replace(cnn.embed, widths=(8, 8, 8), blocks=1))
    found = {"vit": vit, "swin": swin, "cnn": cnn}
    return {name: found[name] for name in asked.models}


def trained(
    name: str, model: C.Transformer, train_on: Path, test: Path, asked: argparse.Namespace
) -> dict[str, object]:  # fmt: skip
    small = ["train.batch=8", "train.workers=0", "train.precision=fp32", "train.compile=false"] if asked.quick else []
    base = read_recipe("cifar10", [f"data.source={train_on}", f"data.validation={test}", f"train.steps={asked.steps}",
                                   "train.eval_every=none", f"train.seed={asked.seed}", *small])  # fmt: skip
    if name == "cnn":  # convolutions are no matrices of blocks: theirs is the usual optimizer
        usual = C.AdamW(lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
        base = replace(base, train=replace(base.train, optimizer=usual))
    model = replace(model, precision=base.train.precision)
    run = Run.from_recipe(replace(base, model=model, train=replace(base.train, context=model.embed.count)))
    began = time.perf_counter()
    for _ in train(run):
        pass
    seconds = time.perf_counter() - began
    score = evaluate(run.model, run.validation.batches(8192 if asked.quick else None), run.objective, scores=True)
    size = sum(weight.numel() for weight in run.model.parameters())
    return {"accuracy": score.scores["accuracy"], "loss": score.loss, "seconds": round(seconds, 1), "parameters": size,
            **asked_once(run, name)}  # fmt: skip


# ---------------------------------------------------------------- what else there is to know


@torch.no_grad()
def asked_once(run: Run, name: str) -> dict[str, object]:
    """How long an answer takes, and how far attention reaches on average, layer by layer."""
    model, images = run.model.eval(), next(iter(run.validation.batches(1)))["ids"]
    many = images[:1].expand(256, -1, -1, -1).contiguous().to(run.device)
    times = take_turns({"one": lambda: model(many[:1]), "many": lambda: model(many)}, rounds=5)
    told = {f"ms for {count}": round(times[which] * 1000, 2) for which, count in (("one", 1), ("many", 256))}
    if name != "vit":
        return told
    with looking(model, "trunk.*.attn.pattern") as seen:
        model(images[:64].to(run.device))
    c = run.recipe.model
    reach = [distance(seen[f"trunk.{layer}.attn.pattern"], c.embed) for layer in range(c.trunk.depth)]
    return told | {"attention in pixels": " ".join(f"{each:.1f}" for each in reach)}


def distance(pattern: Tensor, c: C.Patches) -> float:
    """The mean way from a patch to what it looks at, in pixels, by how much (Dosovitskiy et al. 2021, figure 7)."""
    places = torch.cartesian_prod(*[torch.arange(c.side, device=pattern.device)] * 2).float() * c.size
    inner = pattern[..., 1:, 1:].float()  # without the class token
    return float((inner * torch.cdist(places, places)).sum() / inner.sum())


def regression(train_on: Path, test: Path, steps: int) -> float:
    """Logistic regression on pixels: all images in every step."""
    numpy, device = needed("numpy"), "cuda" if torch.cuda.is_available() else "cpu"
    files = [numpy.load(file) for file in (train_on, test)]
    x, u = (torch.from_numpy(file["images"]).flatten(1).to(device).float() / 255 - 0.5 for file in files)
    y, v = (torch.from_numpy(file["labels"]).to(device) for file in files)
    weight = torch.zeros(int(max(y.max(), v.max())) + 1, x.shape[1] + 1, device=device, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=3e-3, weight_decay=0.1)
    for _ in range(steps):
        loss = F.cross_entropy(F.linear(x, weight[:, :-1], weight[:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float((F.linear(u, weight[:, :-1], weight[:, -1]).argmax(-1) == v).float().mean())


def frequent(test: Path) -> float:
    labels = torch.from_numpy(needed("numpy").load(test)["labels"])
    return float(labels.bincount().max()) / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--models", nargs="+", default=["vit", "swin", "cnn"], choices=["vit", "swin", "cnn"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.folder is None and not asked.quick:
        parser.error("name the folder with the images, or --quick")
    if asked.quick:
        asked.sizes, asked.steps = [40], 2
    with tempfile.TemporaryDirectory() as there:
        whole, test = prepared(asked.folder) if asked.folder else emoji(Path(there))
        rows: list[dict[str, object]] = [{"model": "most frequent class", "accuracy": frequent(test)}]
        for size in asked.sizes:
            some = part_of(whole, size, Path(there))
            told = regression(some, test, 3 if asked.quick else 300)
            rows.append({"model": "logistic regression", "images": size, "accuracy": told})
            for name, model in models(asked).items():
                rows.append({"model": name, "images": size, "steps": asked.steps, "seed": asked.seed,
                             **trained(name, model, some, test, asked)})  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
    show(rows)
    print(machine())
    if not asked.quick:
        keep("cifar", rows)


if __name__ == "__main__":
    main()
