"""Fine-tuning beside the Hugging Face Trainer: MiniLM on five tasks of GLUE, the same settings and seeds for both.

    python bench/glue.py                                    # all of it; a GPU's work, some ten minutes on an H200
    python bench/glue.py --tasks rte --seeds 1 --limit 64   # whether it runs at all; no figure means anything
    python bench/glue.py pack glue-kit.tar.xz               # all it needs in one file, for a machine without a network
    python bench/glue.py --kit glue-kit.tar.xz --minutes 9  # there; no run begins after nine minutes

Settings are those of the recipes glue-*.toml, and the Trainer is told the same: AdamW and its decay on the same
weights, a warm-up and a line down to zero, clipping at 1, 128 tokens, padding to the longest of a batch, fp32, the
checkpoint's dropout, a new head from N(0, 0.02). In three things the two are not alike, and tests say that nothing else
is (tests/training/test_hf_trainer.py):

- the random numbers: order of rows, dropout and the new head are drawn from the same seed in another way;
- the last batch of an epoch: the Trainer's is short, ours is filled from the next epoch;
- the first step: the Trainer's warm-up begins at 0, ours at 1/warmup.

There is no dropout between pooler and classifier here, so theirs has classifier_dropout=0. Scored is the last step, on
the dev part. Seconds are those of training alone, without reading, tokenizing and scoring. Every run is a row of
bench/results/glue.csv as soon as it ends, and one that is there is not run again; the table at the end is of all
rows of this machine. What is carried where, and that packed weights were rounded to fp16, is in glue_kit.py.
"""

import argparse
import csv
import lzma
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import glue_kit
import torch
from common import RESULTS, machine, show, wait
from glue_kit import Kit

from regard import config
from regard.evaluation.glue import GLUE_TASKS
from regard.tasks.classification import classification_scores, regression_scores
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe


@dataclass(frozen=True)
class Task:
    """One of GLUE's: the stem of its files, the columns of its texts and of its label, how many seeds it is worth."""

    stem: str
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    label: str = "label"
    seeds: int = 5


TASKS = {"rte": Task("RTE"), "mrpc": Task("MRPC"), "cola": Task("CoLA", ("sentence",)),
         "stsb": Task("STS-B", label="score"), "sst2": Task("SST-2", ("sentence",), seeds=2)}  # fmt: skip
SHORT = ["train.epochs=1", "train.schedule.warmup=1"]  # with a limit
SAME = ("task", "by", "seed", "precision", "rows", "machine")  # what makes a run the same as one that is there
METRICS = ("matthews", "accuracy", "f1", "pearson", "spearman")
COLUMNS = (*SAME, "steps", "seconds", *METRICS, "torch", "transformers", "date")
Row = dict[str, Any]


def recipe_of(name: str, kit: Kit, changes: list[str]) -> config.Recipe:
    """The packaged recipe of a task, for these files and weights."""
    task = TASKS[name]
    columns = [f"task.{place}={column}" for place, column in zip(("text", "pair"), task.texts, strict=False)]
    files = [f"data.source={kit.file(task.stem, 'train')}", f"data.validation={kit.file(task.stem, 'dev')}"]
    rest = ["data.column_names=[]", f"task.label={task.label}", f"train.init_from={kit.weights}"]
    return read_recipe(f"glue-{name}", [*files, *columns, *rest, *changes])


def short(kit: Kit, limit: int, desk: Path) -> Kit:
    """The same kit with so many rows in each file."""
    desk.mkdir(exist_ok=True)
    for path in kit.data.glob("*.tsv.xz"):
        with lzma.open(path, "rt", encoding="utf8", newline="") as file:
            lines = [line for line, _ in zip(file, range(limit + 1), strict=False)]
        with lzma.open(desk / path.name, "wt", encoding="utf8", newline="") as file:
            file.writelines(lines)
    return replace(kit, data=desk)


# ---------------------------------------------------------------- by regard


def ours(recipe: config.Recipe) -> Row:
    run = Run.from_recipe(recipe, notice=lambda line: None)
    begun = clock()
    taken = [step.taken for step in train_steps(run)]
    seconds = clock() - begun
    if refused := len(taken) - int(torch.stack(taken).sum()):
        print(f"  {refused} steps were not taken", flush=True)
    assert run.validation is not None
    score = validate(run.model, run.validation.batches(), run.task, scores=True)
    return {"steps": run.step, "seconds": seconds, **score.scores}


def clock() -> float:
    wait()
    return time.perf_counter()


# ---------------------------------------------------------------- by the Trainer


def theirs(recipe: config.Recipe) -> Row:
    import transformers as hf

    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    c, task = recipe.train, recipe.task
    assert isinstance(task, config.Classification | config.Regression) and c.init_from is not None
    tokenizer = hf.AutoTokenizer.from_pretrained(c.init_from)
    parts = [read(path, recipe, tokenizer) for path in (recipe.data.source, recipe.data.validation)]
    hf.set_seed(c.seed)
    count = len(task.classes) if isinstance(task, config.Classification) else 1
    model = hf.AutoModelForSequenceClassification.from_pretrained(
        c.init_from, num_labels=count, classifier_dropout=0.0, dtype=torch.float32
    )
    with TemporaryDirectory() as place:
        trainer = hf.Trainer(model, asked(c, place), hf.DataCollatorWithPadding(tokenizer), *parts)
        trainer.remove_callback(hf.PrinterCallback)
        begun = clock()
        trainer.train()
        seconds = clock() - begun
        logits = torch.from_numpy(trainer.predict(parts[1]).predictions)
    return {"steps": trainer.state.global_step, "seconds": seconds,
            **scored(logits, [row["labels"] for row in parts[1]])}  # fmt: skip


def scored(logits: torch.Tensor, meant: list[Any]) -> dict[str, float]:
    """By the same metrics as ours, which are held to scikit-learn's."""
    count = logits.shape[1]
    if count == 1:
        return regression_scores(logits[:, 0].tolist(), meant)
    return classification_scores(logits.argmax(-1).tolist(), meant, count)


def asked(c: config.Train, place: str) -> Any:
    """The recipe's settings in the Trainer's words."""
    import transformers as hf

    adam, slope = c.optimizer, c.schedule
    assert isinstance(adam, config.AdamW) and isinstance(slope, config.WarmupSchedule) and slope.kind == "linear"
    return hf.TrainingArguments(
        place, num_train_epochs=c.epochs, per_device_train_batch_size=c.batch_size, per_device_eval_batch_size=64,
        learning_rate=adam.lr, weight_decay=adam.weight_decay, adam_beta1=adam.betas[0], adam_beta2=adam.betas[1],
        adam_epsilon=adam.eps, optim="adamw_torch_fused", max_grad_norm=c.max_grad_norm, lr_scheduler_type="linear",
        warmup_steps=slope.warmup, bf16=c.precision == "mixed", seed=c.seed, use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(), logging_strategy="no", save_strategy="no", report_to=[],
        disable_tqdm=True,
    )  # fmt: skip


def read(path: Any, recipe: config.Recipe, tokenizer: Any) -> list[Row]:
    """Rows as the Trainer takes them, made by the tokenizer of transformers."""
    task, length, found = recipe.task, recipe.train.context, glue_kit.rows(Path(path))
    texts = [[row[column] for row in found] for column in (task.input, task.input_pair) if column is not None]
    tokens = tokenizer(*texts, truncation=True, padding=False, max_length=length)
    labels = [row[task.label] for row in found]
    if isinstance(task, config.Regression):
        meant: list[Any] = [float(label) for label in labels]
    else:
        meant = [task.classes.index(label) if label in task.classes else int(label) for label in labels]
    return [{**{name: tokens[name][place] for name in tokens}, "labels": label} for place, label in enumerate(meant)]


def compared(name: str, recipe: config.Recipe) -> None:
    """Equal work: how many examples are the same ids to both."""
    import transformers as hf

    run = Run.from_recipe(recipe, notice=lambda line: None)
    mine, tokenizer = run.data.rows, hf.AutoTokenizer.from_pretrained(recipe.train.init_from)  # type: ignore[attr-defined]
    others = read(recipe.data.source, recipe, tokenizer)
    assert len(mine) == len(others), f"{len(mine)} rows here and {len(others)} there"
    equal = sum(list(mine[place]["ids"]) == row["input_ids"] for place, row in enumerate(others))
    print(f"{name}: {equal:,} of {len(others):,} examples are the same tokens to both", flush=True)


# ---------------------------------------------------------------- rows, kept as they come


def kept(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf8") as file:
        return list(csv.DictReader(file))


def keep(row: Row, path: Path) -> None:
    """One more row, written at once: a machine may be taken back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf8") as file:
        table = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        if fresh:
            table.writeheader()
        table.writerow(row)


def same(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in SAME)


def done(jobs: list[tuple[str, int]], kit: Kit, given: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """Every run that is not among the rows: both sides in turn, until the time is over."""
    import transformers

    about = {"precision": given.precision, "machine": machine(), "torch": torch.__version__,
             "transformers": transformers.__version__, "date": date.today().isoformat()}  # fmt: skip
    there, ends, seen = {same(row) for row in rows}, time.monotonic() + 60 * (given.minutes or math.inf), set[str]()
    for name, seed in jobs:
        recipe = recipe_of(name, kit, [f"train.precision={given.precision}", f"train.seed={seed}",
                                       *(SHORT if given.limit else [])])  # fmt: skip
        size = len(glue_kit.rows(kit.file(TASKS[name].stem, "train")))
        for by, way in (("regard", ours), ("Trainer", theirs)):
            row = {"task": TASKS[name].stem, "by": by, "seed": seed, "rows": size, **about}
            if same(row) in there or time.monotonic() > ends:
                continue
            if name not in seen:
                compared(name, recipe)
                seen.add(name)
            yield row | way(recipe)


# ---------------------------------------------------------------- the table


def table(rows: list[Row]) -> list[Row]:
    """For each metric that counts both means and spreads; equal if they differ by less than twice their error."""
    found = []
    kinds = [(row["task"], row["precision"], str(row["rows"])) for row in rows]  # read again, a number is a word
    for kind in dict.fromkeys(kinds):
        task, some = kind[0], [row for row, other in zip(rows, kinds, strict=True) if other == kind]
        sides = [[row for row in some if row["by"] == by] for by in ("regard", "Trainer")]
        if not all(sides):
            continue
        took = [statistics.fmean(float(row["seconds"]) for row in side) for side in sides]
        for metric in GLUE_TASKS[task].metrics:
            marks = [[100 * float(row[metric]) for row in side] for side in sides]
            (mean, spread), (other, width) = (summed(values) for values in marks)
            error = math.sqrt(spread**2 / len(marks[0]) + width**2 / len(marks[1]))
            few = min(map(len, marks)) < 2
            found.append({
                "task": task, "metric": metric, "seeds": "/".join(str(len(values)) for values in marks),
                "regard": f"{mean:.2f} ± {spread:.2f}", "Trainer": f"{other:.2f} ± {width:.2f}",
                "difference": f"{mean - other:+.2f}", "twice_error": "" if few else f"{2 * error:.2f}",
                "equal": "" if few else "yes" if abs(mean - other) <= 2 * error else "no",
                "regard_s": took[0], "Trainer_s": took[1], "times_as_fast": took[1] / took[0],
            })  # fmt: skip
    return found


def summed(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("pack", nargs="*", help="`pack FILE`: write all that is needed elsewhere to a .tar.xz")
    words.add_argument("--tasks", default=",".join(TASKS), help="some of %(default)s")
    words.add_argument("--seeds", type=int, help="for each task; 5 if not said, and 2 for sst2")
    words.add_argument("--limit", type=int, help="so many rows of a file and one epoch; kept with --out alone")
    words.add_argument("--precision", default="fp32", choices=("fp32", "mixed"))
    words.add_argument("--minutes", type=float, help="after which no run begins")
    words.add_argument("--kit", type=Path, help="a packed kit, or its folder")
    words.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "glue")
    words.add_argument("--out", type=Path, help="where rows are kept, bench/results/glue.csv if not said")
    given = words.parse_args()
    if given.pack:
        if len(given.pack) != 2 or given.pack[0] != "pack":
            words.error(f"{' '.join(given.pack)}: expected `pack FILE`, or options alone")
        return glue_kit.pack(Path(given.pack[1]), given.data)
    names = given.tasks.lower().split(",")
    if unknown := [name for name in names if name not in TASKS]:
        words.error(f"--tasks: no {', '.join(unknown)}; there are {', '.join(TASKS)}")
    with TemporaryDirectory() as place:
        desk = Path(place)
        kit = glue_kit.found(given.kit, given.data, desk)
        if torch.cuda.is_available():  # the first steps on a device load its libraries
            small = short(kit, 64, desk / "warm")
            for way in (ours, theirs):
                way(recipe_of(names[0], small, SHORT))
        if given.limit:
            kit = short(kit, given.limit, desk / "short")
        report(kit, [(name, seed) for name in names for seed in range(given.seeds or TASKS[name].seeds)], given)


def report(kit: Kit, jobs: list[tuple[str, int]], given: argparse.Namespace) -> None:
    path = given.out or (None if given.limit else RESULTS / "glue.csv")
    rows = kept(path) if path else []
    for row in done(jobs, kit, given, list(rows)):
        marks = "  ".join(f"{name} {100 * row[name]:.2f}" for name in GLUE_TASKS[row["task"]].metrics)
        print(f"{row['task']:6} {row['by']:8} seed {row['seed']}  {row['steps']:,} steps  {row['seconds']:.1f} s  "
              f"{marks}", flush=True)  # fmt: skip
        rows.append(row)
        if path:
            keep(row, path)
    show(table([row for row in rows if row["machine"] == machine()]))


if __name__ == "__main__":
    main()
