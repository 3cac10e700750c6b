"""Graphs: does structure help? A graph transformer, a graph convolution and models that see no edges, in one table.

    python bench/graphs.py cora                    ten seeds; accuracy on the 1,000 test nodes
    python bench/graphs.py mutag nci1 --jobs 5     ten folds, five at a time
    python bench/graphs.py cora mutag --quick      whether it runs at all

Every model is chosen by its validation part alone: of all evaluations on the way the one with the best validation
accuracy (the lower loss, if two have the same) is the one that is tested, once. Folds are stratified, drawn with seed
0: of ten, one is the test, the next one validates, eight train. Data are read from ../shared/data, or from --data.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from common import keep, show
from torch import Tensor

import regard
from regard.data import Record, Tally, tables
from regard.data.graphs import graph_in
from regard.tasks.nodes import labels_of, parts_of
from regard.train import Run, evaluate, train
from regard.train.reading import Voice, read

FOLDS = 10
ALONE = "model.trunk.mask=window(0)"  # every node sees itself: the same model without edges
# What each model changes of the recipe of its set. Without edges there are no walks and degrees either.
NODES = {
    "graph transformer": [],
    "graph convolution": ["model.trunk.mixer.kind=graph", "model.trunk.dropout.attention=0"],
    "bag of nodes": [ALONE],
}
GRAPHS = {
    "graph transformer": [],
    "graph convolution": ["model.trunk.mixer.kind=graph", "model.trunk.mask=edges"],
    "bag of nodes": [ALONE, "model.embed.walks=0", "model.embed.degrees=0"],
}
LINEAR = "logistic regression"
SETS = {"cora": NODES, "citeseer": NODES, "mutag": GRAPHS, "nci1": GRAPHS}


def source(name: str, folder: Path) -> str:
    if name in ("mutag", "nci1"):
        return f"graphs:{folder / 'molecule-graphs' / name.upper()}.txt.xz"
    return "cora" if name == "cora" else str(folder / "citation-graphs" / f"{name}.npz")


def records(name: str, folder: Path) -> list[Record]:
    return [record for table in tables([source(name, folder)]) for record in table.records(Tally())]


# ---------------------------------------------------------------- one model, trained and chosen


def taught(run: Run, every: int) -> int:
    """Train to the end, and go back to the step whose validation accuracy was the best."""
    best, kept, at = (-1.0, 0.0), {}, 0
    for step in train(run):
        if step.number % every and not run.over:
            continue
        score = evaluate(run.model, run.validation.batches(), run.objective, scores=True)
        if (mark := (score.scores["accuracy"], -score.loss)) > best:
            best, kept, at = mark, deepcopy(run.model.state_dict()), step.number
    run.model.load_state_dict(kept)
    return at


def on_nodes(name: str, model: str, seed: int, folder: Path, quick: bool) -> dict[str, object]:
    changes = [f"data.source={source(name, folder)}", f"train.seed={seed}", *NODES[model], *["train.steps=6"] * quick]
    run = Run.from_recipe(name, changes, notice=ignored)
    step = taught(run, run.settings.eval_every or 1)
    asked = replace(run.recipe, task=replace(run.recipe.task, part="test"))
    test = read(asked, None, Voice(ignored)).validation
    score = evaluate(run.model, test.batches(), run.objective, scores=True)
    return {"accuracy": 100 * score.scores["accuracy"], "step": step, "parameters": size(run)}


def on_graphs(name: str, model: str, fold: int, folder: Path, quick: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as desk:
        parts = written(records(name, folder), fold, Path(desk))
        changes = [f"data.source={parts['train']}", f"data.validation={parts['validation']}", f"train.seed={fold}"]
        changes += [*GRAPHS[model], *["train.steps=6"] * quick]
        run = Run.from_recipe(name, changes, notice=ignored)
        step = taught(run, run.settings.eval_every or 1)
        score = regard.evaluate(run.model, str(parts["test"]), notice=ignored)
    return {"accuracy": 100 * score.scores["accuracy"], "step": step, "parameters": size(run)}


def size(run: Run) -> int:
    return sum(weight.numel() for weight in run.model.parameters())


def ignored(line: str) -> None:
    pass


# ---------------------------------------------------------------- folds


def folds(labels: list[str]) -> list[list[int]]:
    """Ten parts with the classes alike in all, by seed 0."""
    chance, parts = torch.Generator().manual_seed(0), [list[int]() for _ in range(FOLDS)]
    for label in sorted(set(labels)):
        those = [place for place, each in enumerate(labels) if each == label]
        for turn, place in enumerate(torch.randperm(len(those), generator=chance).tolist()):
            parts[turn % FOLDS].append(those[place])
    return parts


def parted(labels: list[str], fold: int) -> dict[str, list[int]]:
    parts = folds(labels)
    test, validation = parts.pop(fold), parts.pop(fold % len(parts))
    return {"train": sorted(sum(parts, [])), "validation": validation, "test": test}


def written(found: list[Record], fold: int, desk: Path) -> dict[str, Path]:
    made = {}
    for part, places in parted([record["label"] for record in found], fold).items():
        made[part] = desk / f"{part}.jsonl"
        made[part].write_text("".join(json.dumps(found[place]) + "\n" for place in places), encoding="utf8")
    return made


# ---------------------------------------------------------------- without a network


def regressed(x: Tensor, labels: Tensor, classes: int, penalty: float) -> Tensor:
    """The weights of a logistic regression, all but the last row kept small."""
    weight = torch.zeros(x.shape[1], classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = F.cross_entropy(x @ weight, labels) + penalty * weight[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    return weight.detach()


def linear(x: Tensor, labels: Tensor, parts: dict[str, list[int]]) -> dict[str, object]:
    """Logistic regression on the features of a node, or the shares of tags in a graph; its penalty by validation."""
    best, chosen = (-1.0, 0.0), {}
    tall, classes = F.pad(x, (0, 1), value=1.0), int(labels.max()) + 1  # the last one is the bias
    for penalty in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        weight = regressed(tall[parts["train"]], labels[parts["train"]], classes, penalty)
        said = (tall @ weight).argmax(-1) == labels
        right = {part: float(said[places].float().mean()) for part, places in parts.items()}
        if (mark := (right["validation"], penalty)) > best:
            best, chosen = mark, right
    return {"accuracy": 100 * chosen["test"], "step": 0, "parameters": (x.shape[1] + 1) * classes}


def linear_on_nodes(name: str, folder: Path) -> dict[str, object]:
    [record] = records(name, folder)
    graph = graph_in(record)
    names = labels_of(record, graph.count)
    classes, parts = sorted({label for label in names if label}), parts_of(record, names, 0.0)
    x = graph.features.float()
    x = x / x.sum(-1, keepdim=True).clamp(min=1)
    labels = torch.tensor([classes.index(label) if label else 0 for label in names])
    where = {part: [i for i, each in enumerate(parts) if each == part] for part in ("train", "validation", "test")}
    return linear(x, labels, where)


def linear_on_graphs(name: str, fold: int, folder: Path) -> dict[str, object]:
    found = records(name, folder)
    names = [record["label"] for record in found]
    classes, tags = sorted(set(names)), 1 + max(max(record["tags"]) for record in found)
    x = torch.stack([F.one_hot(torch.tensor(record["tags"]), tags).float().mean(0) for record in found])
    return linear(x, torch.tensor([classes.index(label) for label in names]), parted(names, fold))


# ---------------------------------------------------------------- all of them


def one(job: tuple[str, str, int, Path, bool]) -> dict[str, object]:
    name, model, number, folder, quick = job
    torch.set_num_threads(1)
    begun = time.perf_counter()
    if model == LINEAR:
        made = linear_on_nodes(name, folder) if SETS[name] is NODES else linear_on_graphs(name, number, folder)
    else:
        made = (on_nodes if SETS[name] is NODES else on_graphs)(name, model, number, folder, quick)
    seconds = time.perf_counter() - begun
    return {"set": name, "model": model, "seed" if SETS[name] is NODES else "fold": number, **made, "seconds": seconds}


def summed(results: list[dict[str, object]]) -> list[dict[str, object]]:
    rows = []
    for name, model in dict.fromkeys((each["set"], each["model"]) for each in results):
        some = [each for each in results if (each["set"], each["model"]) == (name, model)]
        marks, took = ([float(each[column]) for each in some] for column in ("accuracy", "seconds"))
        rows.append({
            "set": name, "model": model, "runs": len(some), "accuracy": statistics.fmean(marks),
            "spread": statistics.stdev(marks) if len(marks) > 1 else 0.0, "least": min(marks), "most": max(marks),
            "parameters": some[0]["parameters"], "seconds_a_run": statistics.fmean(took),
        })  # fmt: skip
    return rows


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("sets", nargs="+", choices=list(SETS))
    asked.add_argument("--data", type=Path, default=Path("../shared/data"))
    asked.add_argument("--runs", type=int, default=FOLDS, help="seeds, or folds")
    asked.add_argument("--jobs", type=int, default=1, help="processes at a time")
    asked.add_argument("--models", nargs="*", help="some of the models alone")
    asked.add_argument("--quick", action="store_true", help="two runs of six steps each")
    said = asked.parse_args()
    runs = 2 if said.quick else said.runs
    jobs = [(name, model, number, said.data, said.quick) for name in said.sets for model in (*SETS[name], LINEAR)
            for number in range(runs if model != LINEAR or SETS[name] is GRAPHS else 1)
            if not said.models or model in said.models]  # fmt: skip
    for name in said.sets:  # before anybody waits
        if name != "cora" and not Path(source(name, said.data).removeprefix("graphs:")).is_file():
            sys.exit(f"{source(name, said.data)}: not there; name the folder with the data by --data")
    results = []
    for result in mapped(one, jobs, said.jobs):
        results.append(result)
        print(json.dumps(result), flush=True)
    show(summed(results))
    if not said.quick and not said.models and runs == FOLDS:
        keep(f"graphs-{'-'.join(said.sets)}", summed(results))


def mapped(work: Callable, jobs: list, count: int):
    if count == 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, jobs)


if __name__ == "__main__":
    main()
