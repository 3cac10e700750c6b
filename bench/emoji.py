"""Pictures and texts: the packaged emoji, 180 of them held out; each figure beside chance or a naive baseline.

    python bench/emoji.py                         three seeds of towers, captions and drawings
    python bench/emoji.py --tasks clip --seeds 1
    python bench/emoji.py --quick                 a few steps of each, to see that all runs

A JSON line for each result, and a table of all at the end. Nothing but the package is needed. The test part is only
scored. Pictures that were drawn are written to --out.
"""

import argparse
import json
import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.data import Record, Tally, chance, tables
from regard.inputs import palette
from regard.inputs.senses import sense
from regard.report.pictures import png
from regard.tasks import Rows, build
from regard.tasks.contrast import recall
from regard.tasks.metrics import accuracy, exact, overlap
from regard.train import evaluate, fit
from regard.zoo import read_recipe

QUICK = ["train.steps=4", "train.schedule.warmup=2", "train.batch=32", "train.eval_every=none", "train.best=false"]
SMALL = {"clip": ["model.image.depth=1", "model.text.depth=1", "model.image.embed.size=8"],
         "caption": ["model.depth=1", "model.encoder.embed.size=8"],
         "prefix": ["model.depth=1", "model.embed.seen.size=8", "model.mask=prefix(16)"],
         "draw": ["model.depth=1", "task.pixels.grid=[4,4]", "task.pixels.palette=8", "train.context=56"]}  # fmt: skip
Row = dict[str, object]


def read(part: str) -> list[Record]:
    return [record for table in tables([part]) for record in table.records(Tally())]


def trained(task: str, seed: int, quick: bool) -> tuple[Any, Row]:
    """The model of a recipe: the best by its validation loss, where the recipe keeps that, or the last."""
    recipe = read_recipe(f"emoji-{task}", [f"train.seed={seed}", *(QUICK + SMALL[task] if quick else [])])
    with tempfile.TemporaryDirectory() as place:
        end = fit(recipe, Path(place) / "run", quiet=True)
        best = end.out / "best"
        model = regard.load(best if best.exists() else end.out)
    where = next(model.parameters()).device.type
    facts = {"parameters": sum(weight.numel() for weight in model.parameters()), "device": where,
             "seconds": round(end.seconds, 1)}  # fmt: skip
    return model, facts


# ---------------------------------------------------------------- towers


def towers(seed: int, quick: bool) -> Row:
    model, facts = trained("clip", seed, quick)
    test, known = read("emoji:test"), read("emoji")
    images, told = model.see([record["image"] for record in test]), model.read([record["both"] for record in test])
    plain = model.read([record["text"] for record in test])
    found = scores(images, told) | {f"caption alone, {name}": value for name, value in scores(images, plain).items()}
    classes = sorted({record["label"] for record in known})
    meant = [classes.index(record["label"]) for record in test]
    for name, texts in (("name", names(classes)), ("groups", groups(classes, known))):
        vectors = torch.stack([F.normalize(model.read(each).mean(0), dim=-1) for each in texts])
        found[f"zero-shot by {name}"] = accuracy((images @ vectors.mT).argmax(-1).tolist(), meant)
    return facts | found


def scores(images: Tensor, texts: Tensor) -> dict[str, float]:
    sides = {"image to text": (images, texts), "text to image": (texts, images)}
    return {f"{name} R@{k}": recall(*pair, k) for name, pair in sides.items() for k in (1, 5)}


def names(classes: list[str]) -> list[list[str]]:
    return [[name.replace(" & ", ", ")] for name in classes]


def groups(classes: list[str], known: list[Record]) -> list[list[str]]:
    """Of each class the names that Unicode gives to its groups, such as animal-bird: their mean stands for it."""
    found = {name: sorted({record["group"] for record in known if record["label"] == name}) for name in classes}
    return [[group.replace("-", ", ") for group in found[name]] for name in classes]


def nearest(test: list[Record], known: list[Record]) -> list[Record]:
    """Of each picture the one to train on that differs least, pixel by pixel."""
    theirs = torch.stack([record["image"] for record in known]).flatten(1).float()
    mine = torch.stack([record["image"] for record in test]).flatten(1).float()
    return [known[place] for place in torch.cdist(mine, theirs).argmin(-1).tolist()]


def without_towers() -> list[Row]:
    """Chance; and who finds the most similar picture to train on, and compares words with its text."""
    test, known = read("emoji:test"), read("emoji")
    count, labels = len(test), Counter(record["label"] for record in known)
    often = labels.most_common(1)[0][0]
    guess: Row = {f"{name} R@{k}": k / count for name in ("image to text", "text to image") for k in (1, 5)}
    guess |= {f"caption alone, {name}": value for name, value in list(guess.items())}
    guess |= {"zero-shot by name": 1 / len(labels), "zero-shot by groups": 1 / len(labels)}
    like, bags = nearest(test, known), [words(record["both"]) for record in test]
    near = torch.tensor([[shared(words(each["both"]), bag) for bag in bags] for each in like])
    near = near + 1e-6 * torch.rand(near.shape, generator=torch.Generator().manual_seed(0))  # equals in any order
    pixels: Row = {f"image to text R@{k}": hits(near, k) for k in (1, 5)}
    pixels |= {f"text to image R@{k}": hits(near.mT, k) for k in (1, 5)}
    right = accuracy([each["label"] for each in like], [each["label"] for each in test])
    usual = accuracy([often] * count, [each["label"] for each in test])
    return [{"model": "chance", **guess}, {"model": "nearest pixels, shared words", **pixels},
            {"model": "nearest pixels, its label (trained on labels)", "zero-shot by name": right},
            {"model": f"always {often}", "zero-shot by name": usual}]  # fmt: skip


def words(text: str) -> set[str]:
    return set(text.lower().replace(",", " ").split())


def shared(one: set[str], other: set[str]) -> float:
    return 2 * len(one & other) / max(1, len(one) + len(other))


def hits(near: Tensor, best: int) -> float:
    own = near.diagonal()[:, None]
    return float(((near >= own).sum(-1) <= best).float().mean())


# ---------------------------------------------------------------- captions


def captions(task: str, seed: int, quick: bool) -> Row:
    model, facts = trained(task, seed, quick)
    test = read("emoji:test")
    said = model.caption([record["image"] for record in test], **({"new": 4, "beams": 1} if quick else {}))
    return facts | judged(said, test) | {"some": dict(zip([each["text"] for each in test[:6]], said[:6], strict=True))}


def judged(said: list[str], test: list[Record]) -> dict[str, float]:
    pairs = list(zip(said, [record["text"] for record in test], strict=True))
    return {"exact": sum(exact(a, [b]) for a, b in pairs) / len(pairs),
            "word F1": sum(overlap(a, [b]) for a, b in pairs) / len(pairs)}  # fmt: skip


def without_captions() -> list[Row]:
    test, known = read("emoji:test"), read("emoji")
    often = Counter(word for record in known for word in record["text"].split()).most_common(1)[0][0]
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0)).tolist()
    guess = [known[order[place]]["text"] for place in range(len(test))]
    return [{"model": "caption of another picture", **judged(guess, test)},
            {"model": f"always '{often}'", **judged([often] * len(test), test)},
            {"model": "caption of the nearest pixels", **judged([each["text"] for each in nearest(test, known)], test)}]


# ---------------------------------------------------------------- drawings


def drawings(seed: int, quick: bool, out: Path) -> list[Row]:
    """Bits a pixel with the right text, with another's, and of pixels drawn one by one by how often colours are."""
    model, facts = trained("draw", seed, quick)
    c, test = model.task.pixels, read("emoji:test")
    task = build(model.task, model.tokenizer, model.c, rows=Rows(model.context), sense=sense(c))
    examples = [task.example(record, model.tokenizer) for record in test]
    others = [*examples[7:], *examples[:7]]
    wrong = [mine | {"words": other["words"]} for mine, other in zip(examples, others, strict=True)]
    found = {name: bits(model, task, each) for name, each in (("bits a pixel", examples), ("with another text", wrong))}
    known = palette.ids(torch.stack([sense(c).example(each, "image")["image"] for each in read("emoji")]), c)
    often = torch.bincount(known.flatten(), minlength=c.palette).double() + 1
    here = palette.ids(torch.stack([example["image"] for example in examples]), c).flatten()
    alone = float(-(often / often.sum()).log2()[here].mean())
    out.mkdir(parents=True, exist_ok=True)
    for place, record in enumerate(test[:: max(1, len(test) // 8)][:8]):
        images = model.paint([record["text"]] * 2, seed=seed, temperature=0.9).cpu()
        large = images.repeat_interleave(8, -1).repeat_interleave(8, -2)
        (out / f"{seed}-{place}-{record['text'].replace(' ', '-').replace('/', '-')}.png").write_bytes(
            png(torch.cat(list(large), -1)))  # fmt: skip
    return [{"model": "emoji-draw", **facts, **found},
            {"model": "colours by how often they are", "bits a pixel": alone}]  # fmt: skip


def bits(model: Any, task: Any, examples: list[dict[str, Tensor]]) -> float:
    batches = (task.plain(examples[start : start + 60], chance(0, "bench")) for start in range(0, len(examples), 60))
    score = evaluate(model, batches, task)
    total, part = score.parts["image"]
    return total / part.count / math.log(2)


# ---------------------------------------------------------------- all of it


def table(rows: list[Row], about: str) -> None:
    """The mean over seeds, and from where to where."""
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, float)))
    print(f"\n{about}")
    for name in dict.fromkeys(str(row["model"]) for row in rows):
        some = [row for row in rows if row["model"] == name]
        print(f"  {name}" + f" ({len(some)} seeds)" * (len(some) > 1))
        for column in columns:
            values = [float(row[column]) for row in some if column in row]  # type: ignore[arg-type]
            if values:
                spread = f"   ({min(values):.4g} to {max(values):.4g})" * (len(values) > 1)
                print(f"    {column:<32} {sum(values) / len(values):8.4g}{spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="clip,caption,prefix,draw")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/emoji-drawn"))
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    tables: dict[str, list[Row]] = {}
    for task in asked.tasks.split(","):
        kind = "caption" if task == "prefix" else task
        if kind not in tables:
            tables[kind] = {"clip": without_towers, "caption": without_captions, "draw": list}[kind]()
            for row in tables[kind]:
                print(json.dumps(row), flush=True)
        for seed in range(1 if asked.quick else asked.seeds):
            if kind == "draw":
                made = drawings(seed, asked.quick, asked.out)
            else:
                found = towers(seed, asked.quick) if kind == "clip" else captions(task, seed, asked.quick)
                made = [{"model": f"emoji-{task}", **found}]
            for row in made:
                print(json.dumps({"seed": seed, **row}), flush=True)
            tables[kind] += made
    for kind, rows in tables.items():
        table(rows, f"{kind}, {len(read('emoji:test'))} pictures held out")


if __name__ == "__main__":
    main()
