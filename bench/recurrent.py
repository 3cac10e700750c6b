"""The old architectures beside the new one, asked what they are said to be good and bad at.

    python bench/recurrent.py copy     copying words of 10 to 50 letters: an alignment, one vector, a transformer
    python bench/recurrent.py first    the first of n letters, n from 10 to 500: how far back can each remember?
    python bench/recurrent.py recipes  the recipes of recurrent models to their end, beside transformers as large
    python bench/recurrent.py pull     how much the last token hears of one n places before it, in gradients
    python bench/recurrent.py time     seconds for n tokens, forward and backward, and the exponent in n

One JSON line for each result, then a table. `--quick` takes seconds and proves nothing but that it runs. Chance is 1/16
wherever letters are told.

Rows are independent: `--jobs 14 --rates 0.5 1 2` runs each row with each of these times its rate of learning, as
processes of one thread, so many at once, and keeps what each told in the folder `--into`. The table then shows the best
rate in each cell; `--told rows/first-*.jsonl` makes it again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

import regard
from regard import config as C
from regard import lens
from regard.data.batching import batch_to_device
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import ValidationScore
from regard.zoo.recipe import read_recipe

LETTERS = "abcdefghijklmnop"
CHANCE = 1 / len(LETTERS)
OUT: list[dict[str, Any]] = []
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Asked:
    """Which rows, and what all of them share."""

    quick: bool = False
    only: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    steps: int | None = None
    rate: float = 1.0  # times what a recipe says
    device: str = "auto"

    def chosen(self, kinds: dict[str, Kind]) -> Iterator[tuple[str, Kind]]:
        for name in self.only or kinds:
            if name not in kinds:
                raise SystemExit(f"--only: no row {name!r}; there are {', '.join(kinds)}")
            yield name, kinds[name]

    def run(self, recipe: str, changes: list[str]) -> Run:
        made = read_recipe(recipe, [*changes, f"train.device={self.device}"])
        was = made.train.optimizer
        rates = {name: self.rate * getattr(was, name) for name in ("lr", "adam_lr") if hasattr(was, name)}
        return Run.from_recipe(replace(made, train=replace(made.train, optimizer=replace(was, **rates))))


def tell(**row: Any) -> None:
    OUT.append(row)
    print(json.dumps(row), flush=True)


def table(rows: str, columns: str, value: str) -> None:
    """What was told, as a table: a line for each of `rows`, a column for each of `columns`."""
    heads = sorted({row[columns] for row in OUT})
    print(f"\n{value}\n{'':<22}" + "".join(f"{head:>10}" for head in heads))
    for name in dict.fromkeys(row[rows] for row in OUT):
        known = {row[columns]: row.get(value) for row in OUT if row[rows] == name}
        cells = [known.get(head) for head in heads]
        print(f"{name:<22}" + "".join(f"{'-' if cell is None else f'{cell:.4g}':>10}" for cell in cells))


def best(rows: list[dict[str, Any]], columns: str) -> list[dict[str, Any]]:
    """Of those that differ in the rate of learning alone, the one with the least loss, or the most letters."""
    found: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.get("loss", -row.get("letters", 0.0))):
        found.setdefault((row["model"], row[columns]), row)
    return list(found.values())


# ---------------------------------------------------------------- copying


COPIES: dict[str, tuple[str, list[str]]] = {  # about 82,000 weights in each
    "alignment": ("bahdanau", []),
    "fixed vector": ("fixed-vector", ["model.trunk.dim=76", "model.encoder.trunk.dim=76", "model.embed.scale=8.7"]),
    "transformer": ("toy", ["data.source=toy:copy(50)", "tokenizer.byte_fallback=false", "train.context=52",
                            "model.dim=36",
                            "train.minutes=none"]),
}  # fmt: skip


def copy(asked: Asked) -> None:
    """Trained on words of 1 to 50 letters; asked for words of one length that it has not seen. #: S126 S127"""
    lengths, steps = asked.lengths or ((10, 50) if asked.quick else (10, 20, 30, 40, 50)), asked.steps or 1500
    for name, (recipe, more) in asked.chosen(COPIES):
        run = asked.run(recipe, [f"train.steps={steps}", "train.eval_every=none", "train.batch_size=32", *more])
        seconds = trained(run)
        for length in lengths:
            letters, words = copied(run, length)
            tell(model=name, length=length, letters=letters, words=words, weights=weights(run), steps=steps,
                 rate=asked.rate, lr=run.settings.optimizer.lr, seconds=round(seconds))  # fmt: skip


def trained(run: Run) -> float:
    began = time.perf_counter()
    for _ in train_steps(run):
        pass
    return time.perf_counter() - began


def weights(run: Run) -> int:
    """Of the whole model, but for what a table of places holds, which grows with the length alone."""
    return sum(weight.numel() for name, weight in run.model.named_parameters() if ".positions." not in name)


def copied(run: Run, length: int, count: int = 200) -> tuple[float, float]:
    """The part of letters told right, each after the right ones; and of whole words, told alone by greedy steps."""
    chance = torch.Generator().manual_seed(length)
    words = ["".join(LETTERS[i] for i in torch.randint(16, (length,), generator=chance)) for _ in range(count)]
    assert run.tokenizer is not None
    ids = [run.tokenizer.encode(word) for word in words]
    batch = batch_to_device(run.task.batch(ids, ids), run.device)  # type: ignore[attr-defined]
    run.model.eval()
    with torch.no_grad():
        said = run.model(**{name: table for name, table in batch.items() if name != "labels"}).argmax(-1)
    asked = batch["labels"] != -100
    told = run.model.translate(words, max_new_tokens=length + 1, num_beams=1)
    right = statistics.mean(word == other for word, other in zip(words, told, strict=True))
    return float((said == batch["labels"])[asked].float().mean()), right


# ---------------------------------------------------------------- remembering


def older(cell: str, dim: int, more: str = "depth=1") -> list[str]:
    """A stack that reads from left to right, with a unit for each channel of a letter."""
    said = f"{{kind='recurrent', cell='{cell}', dim={dim}, mask='causal', dropout=0.0, {more}}}"
    return [f"model.trunk={said}", f"model.embed.scale={dim**0.5:.2f}"]


def block(dim: int, more: str) -> list[str]:
    said = f"{{dim={dim}, depth=1, mask='causal', attention={{heads=4}}, dropout={{embed=0.0, sublayer=0.0}}, {more}}}"
    return [f"model.trunk={said}", f"model.embed.scale={dim**0.5:.2f}"]


KINDS: dict[str, list[str]] = {  # about 33,000 weights in each
    "rnn": older("rnn", 120), "gru": older("gru", 71), "lstm": older("lstm", 62),
    "dilated cnn": older("cnn", 30, "depth=6, size=3, dilation=3"),
    "state space": block(56, "mixer={kind='ssm', states=32}, position={kind='none'}"),
    "transformer": block(52, "position={kind='learned'}"),
}  # fmt: skip
FIRST = """
[data]
source = "toy:first(10)"
validation = 0.01
[tokenizer]
byte_fallback = false
[task]
kind = "classification"
input = "source"
label = "target"
[model]
head = {kind = "pooling", pooling = "last"}
[train]
batch_size = 32
compile = false
eval_every = "none"
save_every = "none"
[train.optimizer]
lr = 3e-3
betas = [0.9, 0.99]
weight_decay = 0.0
[train.schedule]
kind = "constant"
warmup = 50
"""
ENOUGH = 0.99  # of the answers: the letter is kept, and more steps would say no more


def first(asked: Asked) -> None:
    """The label is the first letter; the answer is given after the last. It ends when nearly all are right. #: S194"""
    lengths, steps = asked.lengths or ((10, 50) if asked.quick else (10, 50, 100, 200, 500)), asked.steps or 2000
    with TemporaryDirectory() as folder:
        path = Path(folder) / "first.toml"
        path.write_text(FIRST)
        for name, changes in asked.chosen(KINDS):
            for length in lengths:
                more = [f"data.source=toy:first({length}, {max(10_000, 32 * steps)})", f"train.context={length + 4}"]
                run, began = asked.run(str(path), [*changes, *more, f"train.steps={steps}"]), time.perf_counter()
                step, score = remembered(run)
                tell(model=name, distance=length, accuracy=score.scores["accuracy"], loss=score.loss, steps=step,
                     rate=asked.rate, lr=run.settings.optimizer.lr, weights=weights(run),
                     seconds=round(time.perf_counter() - began))  # fmt: skip


def remembered(run: Run, every: int = 100) -> tuple[int, ValidationScore]:
    """Trained until it is right; looked at now and then."""
    for step in train_steps(run):
        if step.number % every and step.number != run.settings.steps:
            continue
        score = regard.training.validate(run.model, run.validation.batches(), run.task, scores=True)
        if score.scores["accuracy"] >= ENOUGH:
            break
    return step.number, score


# ---------------------------------------------------------------- the recipes


NANO = "shakespeare-nano"
RECIPES: dict[str, tuple[str, list[str]]] = {  # the steps, tokens and weights of the transformer beside them
    **{name: (name, ["train.compile=false"]) for name in ("rnn", "gru", "lstm", "cnn")},
    NANO: (NANO, ["train.precision=fp32", "train.compile=false"]),
    "bilstm": ("bilstm", []),
    "bilstm's transformer": ("bilstm", ["model.trunk={kind='blocks', mask='full', dim=128, depth=1, "
                                        "attention={heads=4}, mlp={hidden=128}, dropout={embed=0.5, sublayer=0.5}}"]),
}  # fmt: skip


def recipes(asked: Asked) -> None:
    """Each recipe to its end, and the whole of its validation data. #: S124"""
    for name, (recipe, more) in asked.chosen(RECIPES):
        few = [] if not asked.steps else [f"train.steps={asked.steps}", "train.epochs=none"]
        run = asked.run(
            recipe, ["train.eval_every=none", "train.save_every=none", "train.keep_best=false", *more, *few]
        )
        seconds = trained(run)
        score = regard.training.validate(run.model, run.validation.batches(), run.task, scores=True)
        tell(model=name, rate=asked.rate, lr=run.settings.optimizer.lr, loss=score.loss, **score.scores,
             weights=sum(weight.numel() for weight in run.model.parameters()), steps=run.step,
             seconds=round(seconds))  # fmt: skip


# ---------------------------------------------------------------- gradients and time


def shapes(dim: int = 128) -> dict[str, Any]:
    """A layer of each kind, `dim` wide."""
    trunk = {"dim": dim, "depth": 1, "mask": "causal", "attention": C.Attention(heads=4), "dropout": C.NO_DROPOUT}
    older = {"dim": dim, "depth": 1, "dropout": 0.0}
    return {
        "rnn": C.RecurrentStack(cell="rnn", **older),
        "gru": C.RecurrentStack(cell="gru", **older),
        "lstm": C.RecurrentStack(cell="lstm", **older),
        "dilated cnn": C.RecurrentStack(cell="cnn", dim=dim, depth=6, dilation=3, dropout=0.0),
        "state space": C.Trunk(mixer=C.StateSpaceMixer(), position=C.NoPosition(), **trunk),
        "transformer": C.Trunk(**trunk),
    }


def built(trunk: Any, device: str = "cpu") -> Any:
    torch.manual_seed(0)
    return regard.build(C.Transformer(embed=C.TextEmbedding(vocab=65, scale=trunk.dim**0.5), trunk=trunk)).to(device)


def pull(asked: Asked) -> None:
    """|d y_T / d x_t| against T - t, of models as they begin. #: S128"""
    far, places = 200, (1, 2, 5, 10, 20, 50, 100, 199)
    ids = torch.randint(65, (2 if asked.quick else 8, far), generator=torch.Generator().manual_seed(0))
    for name, trunk in asked.chosen(shapes()):
        found = lens.jacobian_norms(built(trunk), ids)
        for place in places:
            tell(model=name, distance=place, pull=float(found[-1 - place]), factor=lens.gradient_decay(found))


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


def timed(asked: Asked) -> None:
    """Forward and backward of one row; the exponent is between the two longest. #: S129"""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = (64, 128) if asked.quick else (128, 256, 512, 1024, 2048, 4096)
    for name, trunk in asked.chosen(shapes()):
        made, before = built(trunk, device), 0.0
        for length in lengths:
            ids = torch.randint(65, (1, length), device=device)
            seconds = spent(lambda made=made, ids=ids: made(ids).square().mean().backward(), device)
            grows = None if not before else round(torch.tensor(seconds / before).log2().item(), 2)
            tell(model=name, tokens=length, milliseconds=1000 * seconds, exponent=grows, device=device)
            before = seconds


# ---------------------------------------------------------------- rows side by side


def spread(given: argparse.Namespace, study: "Study") -> list[Path]:
    """Every row with every rate in a process of its own, the longest first; what each told is kept in a file."""
    given.into.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * given.minutes
    rows = product(sorted(given.length or study.lengths, reverse=True), given.only or study.rows, given.rates)

    def alone(row: tuple[int, str, float]) -> Path:
        length, name, rate = row
        path = given.into / f"{given.study}-{name.replace(' ', '-')}-{length}-{rate}.jsonl"
        asks = ["--only", name, "--rate", str(rate), *(["--length", str(length)] if length else [])]
        asks += [*(["--steps", str(given.steps)] if given.steps else []), "--device", given.device]
        with open(path, "w", encoding="utf8") as told, open(path.with_suffix(".err"), "w", encoding="utf8") as err:
            try:
                subprocess.run([sys.executable, __file__, given.study, *asks], stdout=told, stderr=err, check=False,
                               env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=ends - time.monotonic())  # fmt: skip
            except subprocess.TimeoutExpired:
                print(f"{path.stem}: no time left", file=sys.stderr)
        return path

    with ThreadPoolExecutor(given.jobs) as pool:
        return list(pool.map(alone, rows))


@dataclass(frozen=True)
class Study:
    """Who asks, what stands above the columns of its tables, and what is in them; its rows and lengths, if parted."""

    ask: Callable[[Asked], None]
    columns: str
    values: tuple[str, ...]
    rows: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (0,)


STUDIES = {
    "copy": Study(copy, "length", ("letters", "words"), tuple(COPIES)),
    "first": Study(first, "distance", ("accuracy", "steps", "lr"), tuple(KINDS), (10, 50, 100, 200, 500)),
    "recipes": Study(recipes, "rate", ("loss", "accuracy", "lr"), tuple(RECIPES)),
    "pull": Study(pull, "distance", ("pull",)), "time": Study(timed, "tokens", ("milliseconds", "exponent")),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[], help="a row by its name; may be said again")
    parser.add_argument("--length", action="append", type=int, default=[], help="a column; may be said again")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rate", type=float, default=1.0, help="of learning, times the row's own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--told", nargs="+", type=Path, help="the table of what other processes told; nothing is run")
    parser.add_argument("--jobs", type=int, default=0, help="so many rows at once, each a process")
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0], help="with --jobs: each row with each")
    parser.add_argument("--minutes", type=float, default=60.0, help="with --jobs: rows that take longer are given up")
    parser.add_argument("--into", type=Path, default=Path("runs/recurrent"), help="with --jobs: what rows told")
    given = parser.parse_args()
    study = STUDIES[given.study]
    told = spread(given, study) if given.jobs and study.rows else given.told
    if told:
        OUT.extend(json.loads(line) for path in told for line in path.read_text().splitlines() if line[:1] == "{")
    else:
        steps = given.steps or (20 if given.quick else None)
        study.ask(Asked(given.quick, tuple(given.only), tuple(given.length), steps, given.rate, given.device))
    OUT[:] = best(OUT, study.columns)
    for value in study.values if OUT else ():
        table("model", study.columns, value)


if __name__ == "__main__":
    main()
