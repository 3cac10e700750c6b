"""A ViT, a ViT of several scales and a CNN of their size, on the same images: how many does each need (S131)?

    python bench/cifar.py cifar              folders of sheets, data_batch_1.webp ... and test_batch.webp (or .png):
                                             images of 32 x 32 row by row, or one in each row of pixels; labels in
                                             data_batch_1.json ...; or folders with train.npz and test.npz
    python bench/cifar.py cifar --sizes 1000 --models vit       one of them, beside others in other processes
    python bench/cifar.py --latency          milliseconds an answer, of models that have learned nothing
    python bench/cifar.py --tell *.log       the table of what such processes said, kept
    python bench/cifar.py --quick            the packaged emoji and a few steps, to see that it runs

A line of JSON for each model and number of training images: accuracy on all test images, parameters, and how far
attention reaches, in pixels, layer by layer. Beside them who always says the most frequent class, and logistic
regression on pixels. With `--npz` the images are also written as train.npz and test.npz into the first folder, for
`regard train cifar10 data.source=cifar/train.npz data.validation=cifar/test.npz`.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from common import keep, machine, show, take_turns
from torch import Tensor

from regard import config as C
from regard.core.hooks import looking
from regard.core.model import Transformer
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

SIZES = [1000, 5000, 20_000]
SIDE = 32
SEEN = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def needed(name: str):
    try:
        return __import__(name)
    except ImportError:
        sys.exit(f"bench/cifar.py: the package {name} is not here; pip install {name}")


# ---------------------------------------------------------------- the images


def prepared(folders: list[Path], into: Path) -> tuple[Path, Path]:
    """train.npz and test.npz: of the first folder that has both, or made of all folders' sheets."""
    for folder in folders:
        if all((folder / name).is_file() for name in ("train.npz", "test.npz")):
            return folder / "train.npz", folder / "test.npz"
    for name, sheets in (("train.npz", "data_batch_*"), ("test.npz", "test_batch*")):
        found = sorted(path for folder in folders for path in folder.glob(sheets) if path.suffix in (".webp", ".png"))
        if not found:
            sys.exit(f"bench/cifar.py: no {name} and no {sheets} in {', '.join(map(str, folders))}")
        parts = [(images_of(path), labels_of(path)) for path in found]
        images, labels = (torch.cat(each) for each in zip(*parts, strict=True))
        needed("numpy").savez(into / name, images=images.numpy(), labels=labels.numpy())
    return into / "train.npz", into / "test.npz"


def images_of(sheet: Path) -> Tensor:
    """(N, 32, 32, 3) of a sheet: square images row by row, or one image in each row of 1,024 pixels."""
    Image = needed("PIL.Image").Image
    Image.MAX_IMAGE_PIXELS = None  # ours, of known size
    image = Image.open(sheet).convert("RGB")
    (wide, high), flat = image.size, torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    if wide == SIDE * SIDE:
        return flat.view(-1, SIDE, SIDE, 3)
    if wide % SIDE or high % SIDE:
        sys.exit(f"bench/cifar.py: {sheet} is {wide} x {high} pixels, which are no images of {SIDE} x {SIDE}")
    tiles = flat.view(high // SIDE, SIDE, wide // SIDE, SIDE, 3).transpose(1, 2)
    return tiles.reshape(-1, SIDE, SIDE, 3)


def labels_of(sheet: Path) -> Tensor:
    """The labels of as many images: a list in the .json of the same name."""
    path = sheet.with_suffix(".json")
    if not path.is_file():
        sys.exit(f"bench/cifar.py: {sheet} has no labels beside it; write them as a list into {path.name}")
    return torch.tensor(json.loads(path.read_text()))


def emoji(folder: Path) -> tuple[Path, Path]:
    """The packaged pictures with their categories, as if they were CIFAR's."""
    parts = {name: [record for table in find_records((part,)) for record in table.records(BadRecordPolicy())]
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
    trunk = C.Trunk(dim=256, depth=1, mixer=C.NoMixer(), position=C.NoPosition(), attention=C.Attention(heads=1),
                    mlp=C.MLP(hidden=256), dropout=C.Dropout(embed=0.0, residual=0.1))  # fmt: skip
    cnn = C.Transformer(embed=C.ConvEmbedding(widths=(64, 128, 256), blocks_per_stage=3, **SEEN), trunk=trunk,
                        head=C.PoolingHead(pooling="mean"))  # fmt: skip
    if asked.quick:
        vit = replace(vit, trunk=replace(vit.trunk, depth=1, dim=24))
        cnn = replace(cnn, embed=replace(cnn.embed, widths=(8, 8, 8), blocks_per_stage=1))
    found = {"vit": vit, "swin": swin, "cnn": cnn}
    return {name: found[name] for name in asked.models if name in found}


def trained(name: str, train_on: Path, test: Path, asked: argparse.Namespace) -> dict[str, object]:
    small = (
        ["train.batch_size=8", "train.workers=0", "train.precision=fp32", "train.compile=false"] if asked.quick else []
    )
    base = read_recipe("cifar10", [f"data.source={train_on}", f"data.validation={test}", f"train.steps={asked.steps}",
                                   "train.eval_every=none", f"train.seed={asked.seed}",
                                   f"train.workers={asked.workers}", *small])  # fmt: skip
    if name == "cnn":  # convolutions are no matrices of blocks: theirs is the usual optimizer
        usual = C.AdamW(lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
        base = replace(base, train=replace(base.train, optimizer=usual))
    model = replace(models(asked)[name], precision=base.train.precision)
    run = Run.from_recipe(replace(base, model=model, train=replace(base.train, context=model.embed.count)))
    began = time.perf_counter()
    for _ in train_steps(run):
        pass
    seconds = time.perf_counter() - began
    score = validate(run.model, run.validation.batches(8192 if asked.quick else None), run.objective, scores=True)
    size = sum(weight.numel() for weight in run.model.parameters())
    return {"accuracy": score.scores["accuracy"], "loss": score.loss, "seconds": round(seconds, 1), "parameters": size,
            "steps": run.step, "seed": asked.seed, **reach(run)}  # fmt: skip


# ---------------------------------------------------------------- what else there is to know


@torch.no_grad()
def reach(run: Run) -> dict[str, object]:
    """How far attention looks on average, layer by layer, in pixels; nothing where there is none."""
    model = run.model.eval()
    watched = [name for name in model.addresses() if name.endswith("attn.pattern")]
    if not watched:
        return {}
    images = next(iter(run.validation.batches(1)))["ids"][:64].to(run.device)
    with looking(model, *watched) as seen:
        model(images)
    return {"attention in pixels": " ".join(f"{distance(seen[name]):.1f}" for name in watched)}


def distance(pattern: Tensor) -> float:
    """The mean way from a patch to what it looks at, in pixels, by how much (Dosovitskiy et al. 2021, figure 7)."""
    side = int(pattern.shape[-1] ** 0.5)
    first = pattern.shape[-1] - side * side  # the class token
    inner = pattern[..., first:, first:].float()
    places = torch.cartesian_prod(*[torch.arange(side, device=pattern.device)] * 2).float() * SIDE / side
    return float((inner * torch.cdist(places, places)).sum() / inner.sum())


@torch.no_grad()
def latency(asked: argparse.Namespace) -> list[dict[str, object]]:
    """Milliseconds for one image and for 256, as models run when they are asked; what they learned does not matter."""
    device, rows = "cuda" if torch.cuda.is_available() else "cpu", []
    for name, c in models(asked).items():
        precision = "mixed" if device == "cuda" else "fp32"
        model = Transformer(replace(c, head=replace(c.head, out=10), precision=precision)).to(device).eval()
        many = torch.randint(256, (256, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
        times = take_turns({"1": partial(model, many[:1]), "256": partial(model, many)}, rounds=9)
        told = {f"ms for {count}": round(seconds * 1000, 2) for count, seconds in times.items()}
        rows.append({"model": name, **told, "parameters": sum(weight.numel() for weight in model.parameters())})
        print(json.dumps(rows[-1]), flush=True)
    return rows


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


def compared(asked: argparse.Namespace, there: Path) -> list[dict[str, object]]:
    """A row for each, told as soon as it is known."""
    whole, test = prepared(asked.folders, there) if asked.folders else emoji(there)
    rows: list[dict[str, object]] = []

    def note(model: str, size: int, **found: object) -> None:
        rows.append({"model": model, "images": size, **found})
        print(json.dumps(rows[-1]), flush=True)

    for size in asked.sizes:
        some = part_of(whole, size, there)
        for name in asked.models:
            if name == "naive":
                note("most frequent class", size, accuracy=frequent(test))
                note("logistic regression", size, accuracy=regression(some, test, 3 if asked.quick else 300))
            else:
                note(name, size, **trained(name, some, test, asked))
    return rows


def said(logs: list[Path]) -> list[dict[str, object]]:
    lines = [line for log in logs for line in log.read_text(encoding="utf8").splitlines() if line.startswith("{")]
    return sorted((row for row in map(json.loads, lines) if "model" in row), key=lambda row: row.get("images", 0))


def main() -> None:
    asked = arguments()
    if asked.tell:
        rows = said(asked.tell)
    elif asked.latency:
        rows = latency(asked)
    else:
        with tempfile.TemporaryDirectory() as there:
            folder = asked.folders[0] if asked.npz and asked.folders else Path(there)
            rows = compared(asked, folder)
    show(rows)
    print(machine())
    if not asked.quick:
        keep("cifar-latency" if asked.latency else "cifar", rows)


def arguments() -> argparse.Namespace:
    names = ["vit", "swin", "cnn"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--models", nargs="+", default=["naive", *names], choices=["naive", *names])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--npz", action="store_true")
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--tell", type=Path, nargs="+", default=[])
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if not (asked.folders or asked.quick or asked.latency or asked.tell):
        parser.error("name the folders with the images, or --quick")
    if asked.quick:
        asked.sizes, asked.steps = [40], 2
    if asked.latency:
        asked.models = [name for name in asked.models if name != "naive"]
    return asked


if __name__ == "__main__":
    main()
