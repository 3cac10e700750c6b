"""Pictures and texts: the packaged emoji, 180 of them held out; each figure beside chance or a naive baseline.

    python bench/emoji.py                         three seeds of towers, captions and drawings
    python bench/emoji.py --tasks clip --seeds 1
    python bench/emoji.py --quick                 a few steps of each, to see that all runs
    python bench/emoji.py --part validation train.steps=500      another length, scored on what may be chosen by

A JSON line for each result, and a table of all at the end. Nothing but the package is needed. The test part is only
scored. Pictures that were drawn are written to --out, a sheet for each seed.
"""

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.data.batching import seeded_generator
from regard.data.builtin import EMOJI_GROUPS
from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import find_records
from regard.inference.images import contact_sheet
from regard.inputs import palette
from regard.inputs.processors import build_processor
from regard.report.image_rows import encode_png
from regard.tasks.collate import RowPadding
from regard.tasks.contrastive import recall_at
from regard.tasks.metrics import accuracy, exact_match, token_f1
from regard.tasks.task import build_task
from regard.training.api import fit
from regard.training.loop import train_steps
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

QUICK = [
    "train.steps=4",
    "train.schedule.warmup=2",
    "train.batch_size=32",
    "train.eval_every=none",
    "train.keep_best=false",
]
SMALL = {"clip": ["model.image.embed.widths=[8,8,16]", "train.workers=0"],
         "caption": ["model.depth=1", "model.encoder.embed.widths=[8,8,16]"],
         "prefix": ["model.depth=1", "model.embed.prefix.widths=[8,8,16]"],
         "draw": ["model.depth=1", "task.pixels.grid=[4,4]", "task.pixels.palette=8", "train.context=56"]}  # fmt: skip
Row = dict[str, object]


def read(part: str) -> list[Record]:
    return [record for table in find_records([part]) for record in table.records(BadRecordPolicy())]


@dataclass(frozen=True)
class Asked:
    """What is scored, the changes to a recipe, and where pictures go."""

    part: str
    changes: list[str]
    quick: bool
    out: Path
    eyes: bool = False

    @property
    def held(self) -> list[Record]:
        return read(f"emoji:{self.part}")


def trained(task: str, seed: int, asked: Asked, *more: str) -> tuple[Any, Row]:
    """The model of a recipe: the best by its validation loss, where the recipe keeps that, or the last."""
    changes = [*(QUICK + SMALL[task] if asked.quick else []), *asked.changes, *more]
    recipe = read_recipe(f"emoji-{task}", [f"train.seed={seed}", *changes])
    with tempfile.TemporaryDirectory() as place:
        end = fit(recipe, Path(place) / "run", quiet=True)
        best = end.out / "best"
        model = regard.load(best if best.exists() else end.out)
    where = next(model.parameters()).device.type
    facts = {"parameters": sum(weight.numel() for weight in model.parameters()), "device": where,
             "seconds": round(end.seconds, 1)}  # fmt: skip
    return model, facts


def on_each(measure: Callable[[list[Record]], dict[str, Any]], asked: Asked) -> Row:
    """What is measured on the part that is asked for; and on the one to choose settings by, beside it."""
    more = measure(read("emoji:validation")) if asked.part == "test" else {}
    return measure(asked.held) | {f"validation: {name}": value for name, value in more.items()}


# ---------------------------------------------------------------- towers

EYES: dict[int, Any] = {}  # towers by their seed


def towers(seed: int, asked: Asked) -> Row:
    EYES[seed], facts = trained("clip", seed, asked)
    return facts | on_each(lambda records: found_by(EYES[seed], records), asked)


def found_by(model: Any, test: list[Record]) -> dict[str, float]:
    images, told = (
        model.embed_images([record["image"] for record in test]),
        model.embed_texts([record["both"] for record in test]),
    )
    plain = model.embed_texts([record["text"] for record in test])
    found = scores(images, told) | {f"caption alone, {name}": value for name, value in scores(images, plain).items()}
    for name, classes in CLASSES.items():
        column, texts = classes()
        vectors = torch.stack([F.normalize(model.embed_texts(each).mean(0), dim=-1) for each in texts.values()])
        said = [list(texts)[place] for place in (images @ vectors.mT).argmax(-1).tolist()]
        found |= sorts(name, said, [record[column] for record in test])
    return found


def scores(images: Tensor, texts: Tensor) -> dict[str, float]:
    sides = {"image to text": (images, texts), "text to image": (texts, images)}
    return {f"{name} R@{k}": recall_at(*pair, k) for name, pair in sides.items() for k in (1, 5)}


def sorts(name: str, said: list[str], meant: list[str]) -> dict[str, float]:
    """How many are right, of all and as the mean over classes."""
    right = {each: [a == b for a, b in zip(said, meant, strict=True) if b == each] for each in set(meant)}
    return {
        f"zero-shot, {name}": accuracy(said, meant),
        f"zero-shot, {name}, mean over classes": sum(sum(each) / len(each) for each in right.values()) / len(right),
    }


def things() -> tuple[str, dict[str, list[str]]]:
    return "thing", {word: [word] for word in EMOJI_GROUPS}


def categories() -> tuple[str, dict[str, list[str]]]:
    """Of each category the words for what is in it: their mean stands for it, as its name says little."""
    known = read("emoji")
    names = sorted({record["label"] for record in known})
    return "label", {each: sorted({record["thing"] for record in known if record["label"] == each}) for each in names}


CLASSES = {"58 things": things, "10 categories": categories}


def nearest(test: list[Record], known: list[Record]) -> list[Record]:
    """Of each picture the one to train on that differs least, pixel by pixel."""
    theirs = torch.stack([record["image"] for record in known]).flatten(1).float()
    mine = torch.stack([record["image"] for record in test]).flatten(1).float()
    return [known[place] for place in torch.cdist(mine, theirs).argmin(-1).tolist()]


def without_towers(asked: Asked) -> list[Row]:
    """Chance; and who finds the most similar picture to train on, and compares words with its text or has its class."""
    test, known = asked.held, read("emoji")
    count = len(test)
    guess: Row = {f"{name} R@{k}": k / count for name in ("image to text", "text to image") for k in (1, 5)}
    guess |= {f"caption alone, {name}": value for name, value in list(guess.items())}
    like, bags = nearest(test, known), [words(record["both"]) for record in test]
    near = torch.tensor([[shared(words(each["both"]), bag) for bag in bags] for each in like])
    near = near + 1e-6 * torch.rand(near.shape, generator=torch.Generator().manual_seed(0))  # equals in any order
    pixels: Row = {f"image to text R@{k}": hits(near, k) for k in (1, 5)}
    pixels |= {f"text to image R@{k}": hits(near.mT, k) for k in (1, 5)}
    usual: Row = {}
    for name, classes in CLASSES.items():
        column, texts = classes()
        meant, often = [each[column] for each in test], Counter(each[column] for each in known).most_common(1)[0][0]
        guess |= {each: 1 / len(texts) for each in sorts(name, meant, meant)}
        pixels |= sorts(name, [each[column] for each in like], meant)
        usual |= sorts(name, [often] * count, meant)
    return [{"model": "chance", **guess}, {"model": "always the most frequent class", **usual},
            {"model": "nearest pixels: shared words, and the class it is told", **pixels}]  # fmt: skip


def words(text: str) -> set[str]:
    return set(text.lower().replace(",", " ").split())


def shared(one: set[str], other: set[str]) -> float:
    return 2 * len(one & other) / max(1, len(one) + len(other))


def hits(near: Tensor, best: int) -> float:
    own = near.diagonal()[:, None]
    return float(((near >= own).sum(-1) <= best).float().mean())


# ---------------------------------------------------------------- captions


def taught(task: str, seed: int, asked: Asked) -> tuple[Any, Row]:
    """A model that writes captions, and begins with the eyes of towers that were trained before it."""
    image = (EYES.get(seed) or trained("clip", seed, asked)[0]).towers[0]
    changes = [*(QUICK + SMALL[task] if asked.quick else []), *asked.changes, f"train.seed={seed}"]
    run = regard.Run.from_recipe(read_recipe(f"emoji-{task}", changes))
    model: Any = run.model
    (model.encoder_embed or model.embed.prefix).load_state_dict(image.embed.state_dict())
    if model.encoder is not None:
        model.encoder.load_state_dict(image.trunk.state_dict())
    for _ in train_steps(run):
        pass
    with tempfile.TemporaryDirectory() as place:
        model = regard.load(run.save(Path(place) / "end"))
    return model, {"parameters": sum(weight.numel() for weight in model.parameters()), "seconds": round(run.seconds, 1)}


def captions(task: str, seed: int, asked: Asked) -> Row:
    model, facts = (taught if asked.eyes else trained)(task, seed, asked)
    most = {"new": 4, "beams": 1} if asked.quick else {"new": model.context - 1}

    def written(test: list[Record]) -> dict[str, Any]:
        said = model.caption([record["image"] for record in test], **most)
        some = dict(zip([record["text"] for record in test], said, strict=True))
        return judged(said, test) | {"some": {name: some[name] for name in list(some)[::12]}}

    return facts | on_each(written, asked)


def judged(said: list[str], test: list[Record]) -> dict[str, float]:
    """How many captions are right to the word, and F1 between their words."""
    pairs = list(zip(said, [record["text"] for record in test], strict=True))
    return {"exact": sum(exact_match(a, [b]) for a, b in pairs) / len(pairs),
            "word F1": sum(token_f1(a, [b]) for a, b in pairs) / len(pairs)}  # fmt: skip


def without_captions(asked: Asked) -> list[Row]:
    test, known = asked.held, read("emoji")
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0)).tolist()
    guess = [known[order[place]]["text"] for place in range(len(test))]
    near = [each["text"] for each in nearest(test, known)]
    return [{"model": "caption of another picture", **judged(guess, test)},
            {"model": "always 'flag'", **judged(["flag"] * len(test), test)},
            {"model": "caption of the nearest pixels", **judged(near, test)}]  # fmt: skip


# ---------------------------------------------------------------- drawings


def drawings(seed: int, asked: Asked) -> list[Row]:
    """Bits a pixel with the right text, with another's, without any, and of colours by how often they are."""
    model, facts = trained("draw", seed, asked)
    task = build_task(
        model.task, model.tokenizer, model.c, rows=RowPadding(model.context), sense=build_processor(model.task.pixels)
    )
    examples = [task.example(record, model.tokenizer) for record in asked.held]
    others = [*examples[7:], *examples[:7]]
    wrong = [mine | {"words": other["words"]} for mine, other in zip(examples, others, strict=True)]
    found = {"bits a pixel": bits(model, task, examples), "with another text": bits(model, task, wrong)}
    told = list(dict.fromkeys(record[model.task.input] for record in asked.held[::7]))[:12]
    asked.out.mkdir(parents=True, exist_ok=True)
    images = model.generate_images([text for text in told for _ in range(6)], seed=seed, temperature=0.9).cpu()
    large = images.repeat_interleave(4, -1).repeat_interleave(4, -2)
    (asked.out / f"drawn-{seed}.png").write_bytes(encode_png(contact_sheet(large, 6)))
    return [{"model": "emoji-draw", **facts, **found, "rows of the sheet": told},
            {"model": "the same, told nothing", **untold(seed, asked)},
            {"model": "colours by how often they are", "bits a pixel": alone(model, examples)}]  # fmt: skip


SAME = {"text": "picture", "thing": "picture", "both": "picture, picture"}


def untold(seed: int, asked: Asked) -> Row:
    """The same recipe, where every text is the same."""
    with tempfile.TemporaryDirectory() as place:
        names = {part: f"{place}/{part}.jsonl" for part in ("train", "validation", asked.part)}
        for part, name in names.items():
            Path(place, part).mkdir()
            for number, record in enumerate(read(f"emoji:{part}")):
                Path(place, part, f"{number}.png").write_bytes(encode_png(record["image"]))
            same = [SAME | {"image": f"{part}/{number}.png"} for number in range(len(read(f"emoji:{part}")))]
            Path(name).write_text("".join(json.dumps(each) + "\n" for each in same))
        model, facts = trained("draw", seed, asked, f"data.source={names['train']}",
                               f"data.validation={names['validation']}")  # fmt: skip
        task = build_task(
            model.task,
            model.tokenizer,
            model.c,
            rows=RowPadding(model.context),
            sense=build_processor(model.task.pixels),
        )
        told = [Record({**record, **SAME}, record.where) for record in asked.held]
        examples = [task.example(record, model.tokenizer) for record in told]
    return facts | {"bits a pixel": bits(model, task, examples)}


def alone(model: Any, examples: list[dict[str, Tensor]]) -> float:
    """Bits of pixels that know nothing of each other, only how often their colour is."""
    c = model.task.pixels
    known = palette.quantize_colors(
        torch.stack([build_processor(c).example(each, "image")["image"] for each in read("emoji")]), c
    )
    often = torch.bincount(known.flatten(), minlength=c.palette).double() + 1
    here = palette.quantize_colors(torch.stack([example["image"] for example in examples]), c).flatten()
    return float(-(often / often.sum()).log2()[here].mean())


def bits(model: Any, task: Any, examples: list[dict[str, Tensor]]) -> float:
    batches = (
        task.collate_eval(examples[start : start + 60], seeded_generator(0, "bench"))
        for start in range(0, len(examples), 60)
    )
    score = validate(model, batches, task)
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


BASELINES: dict[str, Any] = {"clip": without_towers, "caption": without_captions, "draw": lambda asked: []}


def results(task: str, seed: int, asked: Asked) -> list[Row]:
    if task == "draw":
        return drawings(seed, asked)
    return [{"model": f"emoji-{task}", **(towers(seed, asked) if task == "clip" else captions(task, seed, asked))}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="clip,caption,prefix,draw")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/emoji-drawn"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--eyes", action="store_true", help="captions begin with the eyes of towers")
    parser.add_argument("--part", default="test", choices=("test", "validation"), help="what is scored")
    parser.add_argument("changes", nargs="*", help="settings of the recipes")
    given = parser.parse_intermixed_args()  # options and settings in any order
    asked = Asked(given.part, given.changes, given.quick, given.out, given.eyes)
    tables: dict[str, list[Row]] = {}
    for task in given.tasks.split(","):
        kind = "caption" if task == "prefix" else task
        if kind not in tables:
            tables[kind] = BASELINES[kind](asked)
            for row in tables[kind]:
                print(json.dumps(row), flush=True)
        for seed in range(given.first, given.first + (1 if asked.quick else given.seeds)):
            for row in results(task, seed, asked):
                print(json.dumps({"seed": seed, **row}), flush=True)
                tables[kind].append(row)
    for kind, rows in tables.items():
        table(rows, f"{kind}, {len(asked.held)} pictures held out")


if __name__ == "__main__":
    main()
