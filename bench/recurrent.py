"""The old architectures beside the new one, asked what they are said to be good and bad at.

    python bench/recurrent.py copy     copying words of 10 to 50 letters: an alignment, one vector, a transformer
    python bench/recurrent.py first    the first of n letters, n from 10 to 500: how far back can each remember?
    python bench/recurrent.py pull     how much the last token hears of one n places before it, in gradients
    python bench/recurrent.py time     seconds for n tokens, forward and backward, and the exponent in n

One JSON line for each result, then a table. `--quick` takes seconds and proves nothing but that it runs. Chance is 1/16
wherever letters are told.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import regard
from regard import config as C
from regard import lens
from regard.train import Run, train
from regard.train.evaluate import moved
from regard.zoo import read_recipe

LETTERS = "abcdefghijklmnop"
CHANCE = 1 / len(LETTERS)
OUT: list[dict[str, Any]] = []


def tell(**row: Any) -> None:
    OUT.append(row)
    print(json.dumps(row), flush=True)


def table(rows: str, columns: str, value: str) -> None:
    """What was told, as a table: a line for each of `rows`, a column for each of `columns`."""
    heads = list(dict.fromkeys(row[columns] for row in OUT))
    print(f"\n{value}\n{'':<14}" + "".join(f"{head:>10}" for head in heads))
    for name in dict.fromkeys(row[rows] for row in OUT):
        known = {row[columns]: row.get(value) for row in OUT if row[rows] == name}
        cells = [known.get(head) for head in heads]
        print(f"{name:<14}" + "".join(f"{'-' if cell is None else f'{cell:.3g}':>10}" for cell in cells))


# ---------------------------------------------------------------- copying


def copy(quick: bool) -> None:
    """Trained on words of 1 to 50 letters; asked for words of one length that it has not seen. #: S126 S127"""
    steps, lengths = (30, (10, 50)) if quick else (3000, (10, 20, 30, 40, 50))
    recipes = {
        "alignment": ("bahdanau", []), "fixed vector": ("fixed-vector", []),
        "transformer": ("toy", ["data.source=toy:copy(50)", "train.context=52", "train.schedule.decay=0.5"]),
    }  # fmt: skip
    for name, (recipe, more) in recipes.items():
        few = [f"train.steps={steps}", "train.minutes=none", "train.eval_every=none", "train.batch=64", *more]
        run, seconds = trained(recipe, few)
        for length in lengths:
            letters, words = copied(run, length)
            tell(model=name, length=length, letters=letters, words=words, steps=steps, seconds=round(seconds))
    for length in lengths:
        tell(model="chance", length=length, letters=CHANCE, words=CHANCE**length)
    table("model", "length", "letters")
    table("model", "length", "words")


def trained(recipe: str, changes: list[str]) -> tuple[Run, float]:
    run, began = Run.from_recipe(read_recipe(recipe, changes)), time.perf_counter()
    for _ in train(run):
        pass
    return run, time.perf_counter() - began


def copied(run: Run, length: int, count: int = 200) -> tuple[float, float]:
    """The part of letters told right, each after the right ones; and of whole words, told alone by greedy steps."""
    chance = torch.Generator().manual_seed(length)
    words = ["".join(LETTERS[i] for i in torch.randint(16, (length,), generator=chance)) for _ in range(count)]
    assert run.tokenizer is not None
    ids = [run.tokenizer.encode(word) for word in words]
    batch = moved(run.task.batch(ids, ids), run.device)  # type: ignore[attr-defined]
    run.model.eval()
    with torch.no_grad():
        said = run.model(**{name: table for name, table in batch.items() if name != "labels"}).argmax(-1)
    asked = batch["labels"] != -100
    told = run.model.translate(words, new=length + 1, beams=1)
    right = statistics.mean(word == other for word, other in zip(words, told, strict=True))
    return float((said == batch["labels"])[asked].float().mean()), right


# ---------------------------------------------------------------- remembering


KINDS: dict[str, list[str]] = {
    "rnn": ["model.trunk={kind='recurrent', cell='rnn', dim=128, depth=1, dropout=0.0}"],
    "gru": ["model.trunk={kind='recurrent', cell='gru', dim=76, depth=1, dropout=0.0}"],
    "lstm": ["model.trunk={kind='recurrent', cell='lstm', dim=64, depth=1, dropout=0.0}"],
    "dilated cnn": ["model.trunk={kind='recurrent', cell='cnn', dim=36, depth=6, size=3, dilation=3, dropout=0.0}"],
    "state space": ["model.trunk={dim=48, depth=1, mask='causal', attention={heads=4}, mixer={kind='ssm', states=32}, "
                    "position={kind='none'}, dropout={embed=0.0, sublayer=0.0}}"],
    "transformer": ["model.trunk={dim=48, depth=1, mask='causal', attention={heads=4}, position={kind='learned'}, "
                    "dropout={embed=0.0, sublayer=0.0}}"],
}  # fmt: skip
FIRST = """
[data]
source = "toy:first(10)"
validation = 0.02
[text]
fallback = false
[task]
kind = "classify"
text = "source"
label = "target"
[model]
embed = {scale = 7.0}
head = {kind = "pooled", place = "last"}
[train]
batch = 64
eval_every = "none"
save_every = "none"
[train.optimizer]
lr = 3e-3
weight_decay = 0.0
[train.schedule]
kind = "cosine"
warmup = 50
"""


def first(quick: bool) -> None:
    """The label is the first letter; the answer is given after the last. About 33,000 weights in each. #: S194"""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    steps, lengths = (20, (10, 50)) if quick else (1000, (10, 50, 100, 200, 500))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "first.toml"
        path.write_text(FIRST)
        for name, changes in KINDS.items():
            for length in lengths:
                more = [f"data.source=toy:first({length}, 20000)", f"train.context={length + 4}"]
                more.append(f"train.steps={steps}")
                run, seconds = trained(str(path), [*changes, *more])
                score = regard.train.evaluate(run.model, run.validation.batches(), run.task, scores=True)
                count = sum(weight.numel() for weight in run.model.parameters())
                tell(model=name, distance=length, accuracy=score.scores["accuracy"], loss=score.loss, weights=count,
                     steps=steps, seconds=round(seconds))  # fmt: skip
    for length in lengths:
        tell(model="chance", distance=length, accuracy=CHANCE)
    table("model", "distance", "accuracy")


# ---------------------------------------------------------------- gradients and time


def shapes(dim: int = 128) -> dict[str, Any]:
    """A layer of each kind, `dim` wide."""
    trunk = {"dim": dim, "depth": 1, "mask": "causal", "attention": C.Attention(heads=4), "dropout": C.NO_DROPOUT}
    older = {"dim": dim, "depth": 1, "dropout": 0.0}
    return {
        "rnn": C.Recurrent(cell="rnn", **older), "gru": C.Recurrent(cell="gru", **older),
        "lstm": C.Recurrent(cell="lstm", **older),
        "dilated cnn": C.Recurrent(cell="cnn", dim=dim, depth=6, dilation=3, dropout=0.0),
        "state space": C.Trunk(mixer=C.Space(), position=C.Nowhere(), **trunk), "transformer": C.Trunk(**trunk),
    }  # fmt: skip


def built(trunk: Any, device: str = "cpu") -> Any:
    torch.manual_seed(0)
    return regard.build(C.Transformer(embed=C.Embed(vocab=65, scale=trunk.dim**0.5), trunk=trunk)).to(device)


def pull(quick: bool) -> None:
    """|d y_T / d x_t| against T - t, of models as they begin. #: S128"""
    far, places = 200, (1, 2, 5, 10, 20, 50, 100, 199)
    ids = torch.randint(65, (2 if quick else 8, far), generator=torch.Generator().manual_seed(0))
    for name, trunk in shapes().items():
        found = lens.pulls(built(trunk), ids)
        for place in places:
            tell(model=name, distance=place, pull=float(found[-1 - place]), factor=lens.decay(found))
    table("model", "distance", "pull")


def spent(call: Callable[[], object], device: str, turns: int = 5) -> float:
    """The median of some turns, in seconds."""
    times = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def timed(quick: bool) -> None:
    """Forward and backward of one row; the exponent is between the two longest. #: S129"""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = (64, 128) if quick else (128, 256, 512, 1024, 2048, 4096)
    for name, trunk in shapes().items():
        made, before = built(trunk, device), 0.0
        for length in lengths:
            ids = torch.randint(65, (1, length), device=device)
            seconds = spent(lambda made=made, ids=ids: made(ids).square().mean().backward(), device)
            grows = None if not before else round(torch.tensor(seconds / before).log2().item(), 2)
            tell(model=name, tokens=length, milliseconds=1000 * seconds, exponent=grows, device=device)
            before = seconds
    table("model", "tokens", "milliseconds")
    table("model", "tokens", "exponent")


STUDIES = {"copy": copy, "first": first, "pull": pull, "time": timed}

if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("study", choices=STUDIES)
    asked.add_argument("--quick", action="store_true")
    given = asked.parse_args()
    STUDIES[given.study](given.quick)
