"""Graphs: does structure help? A graph transformer, a graph convolution and models that see no edges, in one table.

    python bench/graphs.py cora                    ten seeds; accuracy on the 1,000 test nodes
    python bench/graphs.py mutag nci1 --jobs 5     ten folds, five at a time
    python bench/graphs.py cora mutag --quick      whether it runs at all

Every model is chosen by its validation part alone: of all evaluations on the way the one with the lowest validation
loss, which train.keep_best keeps, is the one that is tested; a recipe without train.keep_best is tested at its last
step. Folds are stratified, drawn with seed 0: of ten, one is the test, the next one validates, eight train. Beside that
`best_step` is what Xu et al. (2019) report: the mean over folds at the step where it is highest, which the test itself
has chosen. Data are read from ../shared/data, or from --data.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import keep, show
from torch import Tensor, nn

from regard.data.readers.graphs import graph_of_record
from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import find_records
from regard.inputs.graph_encodings import normalized_adjacency, propagate_features
from regard.tasks.node_classification import node_labels, node_splits
from regard.training.data.read import Reporter, read_run_data
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate

FOLDS = 10
ALONE = "model.trunk.mask=window(0)"  # every node sees itself: the same model without edges
# What each model changes of the recipe of its set. A bag of nodes has no walks, degrees and hops either.
PLAIN = ["model.embed.hops=0", "model.embed.node_dropout=0"]
NODES = {
    "graph transformer": [],
    "graph transformer, no hops": [*PLAIN, "model.trunk.depth=2"],
    "hops, no attention": [ALONE],
    "graph convolution": [*PLAIN, "model.trunk.depth=2", "model.trunk.mixer.kind=graph_conv"],
    "bag of nodes": [*PLAIN, ALONE],
}
GRAPHS = {
    "graph transformer": [],
    "graph convolution": ["model.trunk.mixer.kind=graph_conv", "model.trunk.mask=edges"],
    "graph sums": ['model.trunk.mixer={kind="graph_conv", sums=true}', "model.trunk.mask=edges"],
    "bag of nodes": [ALONE, "model.embed.random_walk_pe=0", "model.embed.max_degree=0"],
}
KIPF = "GCN as published"
LINEAR = "logistic regression"
SPREAD = "logistic regression, 8 hops"
SETS = {"cora": NODES, "citeseer": NODES, "mutag": GRAPHS, "nci1": GRAPHS}


def source(name: str, folder: Path) -> str:
    if name in ("mutag", "nci1"):
        return f"graphs:{folder / 'molecule-graphs' / name.upper()}.txt.xz"
    return "cora" if name == "cora" else str(folder / "citation-graphs" / f"{name}.npz")


def records(name: str, folder: Path) -> list[Record]:
    return [record for table in find_records([source(name, folder)]) for record in table.records(BadRecordPolicy())]


# ---------------------------------------------------------------- one model, trained and chosen


def taught(run: Run, test: Any, curve: bool) -> dict[str, object]:
    """Train to the end; what is said of the test by the step with the lowest validation loss, or by the last one if the
    recipe keeps that (train.keep_best), or (curve) by each one that was looked at."""
    best, marks, at, every = float("inf"), dict[int, float](), 0, run.settings.eval_every or 1
    for step in train_steps(run):
        if step.number % every and not run.is_over:
            continue
        with run.ema.applied() if run.ema else nullcontext():
            score = validate(run.model, run.validation.batches(), run.objective, scores=True)
            better = score.loss < best if run.settings.keep_best else run.is_over
            if curve or better:
                said = validate(run.model, test.batches(), run.objective, scores=True)
                marks[step.number] = 100 * said.scores["accuracy"]
        if better:
            best, at, held = score.loss, step.number, 100 * score.scores["accuracy"]
    size = sum(weight.numel() for weight in run.model.parameters())
    found = {"accuracy": marks[at], "validation": held, "step": at, "parameters": size}
    return found | ({"curve": marks} if curve else {})


def on_nodes(name: str, changes: list[str], seed: int, folder: Path) -> dict[str, object]:
    run = Run.from_recipe(name, [f"data.source={source(name, folder)}", f"train.seed={seed}", *changes], notice=ignored)
    asked = replace(run.recipe, task=replace(run.recipe.task, eval_split="test"))
    return taught(run, read_run_data(asked, None, Reporter(ignored)).validation, curve=False)


def on_graphs(name: str, changes: list[str], fold: int, folder: Path) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as desk:
        parts = written(records(name, folder), fold, Path(desk))
        places = [f"data.source={parts['train']}", f"data.validation={parts['validation']}", f"train.seed={fold}"]
        run = Run.from_recipe(name, [*places, *changes], notice=ignored)
        asked = replace(run.recipe, data=replace(run.recipe.data, validation=str(parts["test"])))
        return taught(run, read_run_data(asked, None, Reporter(ignored)).validation, curve=True)


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


# ---------------------------------------------------------------- without our trainer


class Kipf(nn.Module):
    """softmax(A relu(A X W0) W1), A = D^-1/2 (A + I) D^-1/2, as Kipf and Welling (2017) trained it: 16 wide, dropout
    0.5, Adam at 0.01, a penalty of 5e-4 on W0, 200 epochs."""

    def __init__(self, x: Tensor, joined: Tensor, classes: int) -> None:
        super().__init__()
        itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
        self.x, self.a = x[None], normalized_adjacency((joined | itself)[None], x.dtype)
        self.first, self.second = nn.Linear(x.shape[1], 16, bias=False), nn.Linear(16, classes, bias=False)
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self) -> Tensor:
        hidden = F.relu(self.a(self.first(F.dropout(self.x, 0.5, self.training))))
        return self.a(self.second(F.dropout(hidden, 0.5, self.training)))[0]


def published(name: str, seed: int, folder: Path, quick: bool) -> dict[str, object]:
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, labels, parts, joined = known(name, folder)
    model = Kipf(x.to(device), joined.to(device), int(labels.max()) + 1).to(device)
    labels, best, found = labels.to(device), float("inf"), {}
    first = {"params": model.first.parameters(), "weight_decay": 5e-4}
    optimizer = torch.optim.Adam([first, {"params": model.second.parameters()}], lr=0.01)
    for step in range(1, 7 if quick else 201):
        optimizer.zero_grad()
        F.cross_entropy(model.train()()[parts["train"]], labels[parts["train"]]).backward()
        optimizer.step()
        with torch.no_grad():
            said = model.eval()()
        loss = float(F.cross_entropy(said[parts["validation"]], labels[parts["validation"]]))
        if loss < best:
            right = (said.argmax(-1) == labels)[parts["test"]]
            best, found = loss, {"accuracy": 100 * float(right.float().mean()), "step": step}
    return found | {"parameters": sum(weight.numel() for weight in model.parameters())}


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


def known(name: str, folder: Path) -> tuple[Tensor, Tensor, dict[str, list[int]], Tensor]:
    """Features in shares of a row, labels, the nodes of each part, and who is joined."""
    [record] = records(name, folder)
    graph = graph_of_record(record)
    names = node_labels(record, graph.count)
    classes, parts = sorted({label for label in names if label}), node_splits(record, names, 0.0)
    x = graph.features.float()
    labels = torch.tensor([classes.index(label) if label else 0 for label in names])
    where = {part: [i for i, each in enumerate(parts) if each == part] for part in ("train", "validation", "test")}
    return x / x.sum(-1, keepdim=True).clamp(min=1), labels, where, graph.joined


def linear_on_nodes(name: str, folder: Path, hops: int) -> dict[str, object]:
    x, labels, parts, joined = known(name, folder)
    return linear(propagate_features(x[None], joined[None], hops)[0] if hops else x, labels, parts)


def linear_on_graphs(name: str, fold: int, folder: Path) -> dict[str, object]:
    found = records(name, folder)
    names = [record["label"] for record in found]
    classes, tags = sorted(set(names)), 1 + max(max(record["tags"]) for record in found)
    x = torch.stack([F.one_hot(torch.tensor(record["tags"]), tags).float().mean(0) for record in found])
    return linear(x, torch.tensor([classes.index(label) for label in names]), parted(names, fold))


# ---------------------------------------------------------------- all of them


def one(job: tuple[str, str, int, Path, bool, list[str]]) -> dict[str, object]:
    name, model, number, folder, quick, asked = job
    torch.set_num_threads(1)
    begun = time.perf_counter()
    if model == KIPF:
        made = published(name, number, folder, quick)
    elif model in (LINEAR, SPREAD) and SETS[name] is NODES:
        made = linear_on_nodes(name, folder, 8 if model == SPREAD else 0)
    elif model == LINEAR:
        made = linear_on_graphs(name, number, folder)
    else:
        changes = [*SETS[name][model], *asked, *["train.steps=6"] * quick]
        made = (on_nodes if SETS[name] is NODES else on_graphs)(name, changes, number, folder)
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
            "best_step": kindest([each["curve"] for each in some]) if "curve" in some[0] else "",
            "parameters": some[0]["parameters"], "seconds_a_run": statistics.fmean(took),
        })  # fmt: skip
    return rows


def kindest(curves: list[dict[int, float]]) -> float:
    """The mean accuracy of the step that is best over all folds, as Xu et al. (2019) report it: the test chose it."""
    return max(statistics.fmean(curve[step] for curve in curves) for step in curves[0])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("sets", nargs="+", choices=list(SETS))
    asked.add_argument("--data", type=Path, default=Path("../shared/data"))
    asked.add_argument("--runs", type=int, default=FOLDS, help="seeds, or folds")
    asked.add_argument("--jobs", type=int, default=1, help="processes at a time")
    asked.add_argument("--models", nargs="*", help="some of the models alone")
    asked.add_argument("--change", nargs="*", default=[], help="settings of the recipe, as in model.trunk.dim=96")
    asked.add_argument("--quick", action="store_true", help="two runs of six steps each")
    said = asked.parse_args()
    runs = 2 if said.quick else said.runs
    jobs = [(name, model, number, said.data, said.quick, said.change) for name in said.sets
            for model in (*SETS[name], *((KIPF, LINEAR, SPREAD) if SETS[name] is NODES else (LINEAR,)))
            for number in range(1 if SETS[name] is NODES and model in (LINEAR, SPREAD) else runs)
            if not said.models or model in said.models]  # fmt: skip
    for name in said.sets:  # before anybody waits
        if name != "cora" and not Path(source(name, said.data).removeprefix("graphs:")).is_file():
            sys.exit(f"{source(name, said.data)}: not there; name the folder with the data by --data")
    results = []
    for result in mapped(one, jobs, said.jobs):
        results.append(result)
        print(json.dumps({key: value for key, value in result.items() if key != "curve"}), flush=True)
    show(summed(results))
    if not (said.quick or said.models or said.change) and runs == FOLDS:
        keep(f"graphs-{'-'.join(said.sets)}", summed(results))


def mapped(work: Callable, jobs: list, count: int):
    if count == 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, jobs)


if __name__ == "__main__":
    main()
