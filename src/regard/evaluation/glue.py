"""GLUE: nine tasks, their files as they are published, and one number for all (Wang et al. 2019).

    CoLA    gj04  1     The sailors rode the breeze.          no header; the sentence is the fourth column
    MRPC    1  702876  702977  " It is , " he said .  ...     quotes are characters
    QNLI    0  What came into force?  As of that day ...  entailment

A task is what a recipe says about it: `data` (columns, what to do about bad lines), `task` (which columns, which
classes) and which metrics count; `overrides("CoLA", "glue_data/CoLA")` says it to any recipe. Classes stand in the
order in which published models number them; where a file has 0 and 1, these are the first and the second.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regard import config
from regard.config.names import did_you_mean


@dataclass(frozen=True)
class Set:
    """One task: what is asked, the metrics that count, and what the published files are like."""

    task: config.Classify | config.Regress
    metrics: tuple[str, ...]
    columns: tuple[str, ...] = ()  # of files without a header
    checks: tuple[str, ...] = ("dev.tsv",)  # what there is to validate on
    broken: bool = False  # some published lines lack fields


def single(text: str, label: str, *classes: str) -> config.Classify:
    return config.Classify(text=text, label=label, classes=classes)


def paired(text: str, pair: str, label: str, *classes: str) -> config.Classify:
    return config.Classify(text=text, pair=pair, label=label, classes=classes)


YES_NO = ("entailment", "not_entailment")
GLUE = {
    "CoLA": Set(single("sentence", "label", "unacceptable", "acceptable"), ("matthews",),
                columns=("source", "label", "mark", "sentence")),
    "SST-2": Set(single("sentence", "label", "negative", "positive"), ("accuracy",)),
    "MRPC": Set(paired("#1 String", "#2 String", "Quality", "not_equivalent", "equivalent"), ("f1", "accuracy")),
    "STS-B": Set(config.Regress(text="sentence1", pair="sentence2", label="score"), ("pearson", "spearman")),
    "QQP": Set(paired("question1", "question2", "is_duplicate", "not_duplicate", "duplicate"), ("f1", "accuracy"),
               broken=True),
    "MNLI": Set(paired("sentence1", "sentence2", "gold_label", "entailment", "neutral", "contradiction"), ("accuracy",),
                checks=("dev_matched.tsv", "dev_mismatched.tsv")),
    "QNLI": Set(paired("question", "sentence", "label", *YES_NO), ("accuracy",)),
    "RTE": Set(paired("sentence1", "sentence2", "label", *YES_NO), ("accuracy",)),
    "WNLI": Set(paired("sentence1", "sentence2", "label", *YES_NO[::-1]), ("accuracy",)),
}  # fmt: skip

# The columns of the table in Devlin et al. 2019, and the one metric that each shows. WNLI is left out there: nobody
# was better at it than who always says the same.
COLUMNS = {
    "MNLI-m": "accuracy", "MNLI-mm": "accuracy", "QQP": "f1", "QNLI": "accuracy", "SST-2": "accuracy",
    "CoLA": "matthews", "STS-B": "spearman", "MRPC": "f1", "RTE": "accuracy",
}  # fmt: skip


def known(name: str) -> Set:
    if name not in GLUE:
        raise config.ConfigError(f"{name}: no task of GLUE{did_you_mean(name, GLUE)} there are {', '.join(GLUE)}")
    return GLUE[name]


# ---------------------------------------------------------------- files


def data(name: str, folder: str | Path, matched: bool = True) -> config.Data:
    """The published files of a task, in a folder; MNLI is validated on texts like those of its training, or others."""
    found, place = known(name), Path(folder)
    return config.Data(
        source=str(place / "train.tsv"), validation=str(place / found.checks[0 if matched else -1]),
        columns=found.columns, bad="skip" if found.broken else "stop",
    )  # fmt: skip


def overrides(name: str, folder: str | Path, matched: bool = True) -> list[str]:
    """Data and task as overrides of any recipe, such as `task.text="sentence"`."""
    tables = {"data": config.tree(data(name, folder, matched)), "task": config.tree(known(name).task)}
    return [f"{table}.{key}={json.dumps('none' if value is None else value, ensure_ascii=False)}"
            for table, said in tables.items() for key, value in said.items()]  # fmt: skip


# ---------------------------------------------------------------- one number


def average(scores: Mapping[str, float]) -> float:
    """The mean of the nine columns of Devlin et al. 2019: one metric each, MNLI twice, no WNLI."""
    exactly(scores, COLUMNS)
    return math.fsum(scores.values()) / len(COLUMNS)  #: S165


def official(scores: Mapping[str, Mapping[str, float]]) -> float:
    """The score of GLUE's own table: the mean over nine tasks of the mean of their metrics, WNLI among them.

    {"MRPC": {"f1": 89.3, "accuracy": 85.4}, ...}; MNLI-m and MNLI-mm together make one task.
    """
    halves = dict.fromkeys(("MNLI-m", "MNLI-mm"), GLUE["MNLI"].metrics)
    counted = {name: each.metrics for name, each in GLUE.items() if name != "MNLI"} | halves
    exactly(scores, counted)
    for name, metrics in counted.items():
        exactly(scores[name], metrics, f"{name}: ")
    each = {name: math.fsum(metrics.values()) / len(metrics) for name, metrics in scores.items()}
    both = [each.pop(name) for name in halves]
    return math.fsum([*each.values(), math.fsum(both) / 2]) / len(GLUE)


def exactly(scores: Mapping[str, object], wanted: Iterable[str], where: str = "") -> None:
    """An average over other columns would be another number."""
    if wrong := sorted(scores.keys() ^ set(wanted)):
        raise ValueError(f"{where}{', '.join(wrong)}: the average is over exactly {', '.join(wanted)}")
