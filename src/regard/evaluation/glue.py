"""GLUE: nine tasks, their files as they are published, and one number for all (Wang et al. 2019).

    CoLA    gj04  1     The sailors rode the breeze.          no header; the sentence is the fourth column
    MRPC    1  702876  702977  " It is , " he said .  ...     quotes are characters
    QNLI    0  What came into force?  As of that day ...  entailment

A task is what a recipe says about it: `data` (columns, what to do about bad lines), `task` (which columns, which
classes) and which metrics count; `glue_overrides("CoLA", "glue_data/CoLA")` gives it as overrides of any recipe.
Classes stand in the order in which published models number them; where a file has 0 and 1, these are the first and the
second.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regard import config
from regard.config.errors import did_you_mean


@dataclass(frozen=True)
class GlueTask:
    """One task: what is asked, the metrics that count, and what the published files are like."""

    task: config.Classification | config.Regression
    metrics: tuple[str, ...]
    columns: tuple[str, ...] = ()  # of files without a header
    checks: tuple[str, ...] = ("dev.tsv",)  # what there is to validate on
    broken: bool = False  # some published lines lack fields


def single_text(text: str, label: str, *classes: str) -> config.Classification:
    return config.Classification(input=text, label=label, classes=classes)


def text_pair(text: str, pair: str, label: str, *classes: str) -> config.Classification:
    return config.Classification(input=text, input_pair=pair, label=label, classes=classes)


YES_NO = ("entailment", "not_entailment")
GLUE_TASKS = {
    "CoLA": GlueTask(
        single_text("sentence", "label", "unacceptable", "acceptable"),
        ("matthews",),
        columns=("source", "label", "mark", "sentence"),
    ),
    "SST-2": GlueTask(single_text("sentence", "label", "negative", "positive"), ("accuracy",)),
    "MRPC": GlueTask(
        text_pair("#1 String", "#2 String", "Quality", "not_equivalent", "equivalent"), ("f1", "accuracy")
    ),
    "STS-B": GlueTask(
        config.Regression(input="sentence1", input_pair="sentence2", label="score"), ("pearson", "spearman")
    ),
    "QQP": GlueTask(
        text_pair("question1", "question2", "is_duplicate", "not_duplicate", "duplicate"),
        ("f1", "accuracy"),
        broken=True,
    ),
    "MNLI": GlueTask(
        text_pair("sentence1", "sentence2", "gold_label", "entailment", "neutral", "contradiction"),
        ("accuracy",),
        checks=("dev_matched.tsv", "dev_mismatched.tsv"),
    ),
    "QNLI": GlueTask(text_pair("question", "sentence", "label", *YES_NO), ("accuracy",)),
    "RTE": GlueTask(text_pair("sentence1", "sentence2", "label", *YES_NO), ("accuracy",)),
    "WNLI": GlueTask(text_pair("sentence1", "sentence2", "label", *YES_NO[::-1]), ("accuracy",)),
}

# The columns of the table in Devlin et al. 2019, and the one metric that each shows. WNLI is left out there: no
# model was better at it than one constant answer.
GLUE_COLUMNS = {
    "MNLI-m": "accuracy", "MNLI-mm": "accuracy", "QQP": "f1", "QNLI": "accuracy", "SST-2": "accuracy",
    "CoLA": "matthews", "STS-B": "spearman", "MRPC": "f1", "RTE": "accuracy",
}  # fmt: skip


def find_glue_task(name: str) -> GlueTask:
    if name not in GLUE_TASKS:
        raise config.ConfigError(
            f"{name}: no task of GLUE{did_you_mean(name, GLUE_TASKS)} there are {', '.join(GLUE_TASKS)}"
        )
    return GLUE_TASKS[name]


# ---------------------------------------------------------------- files


def glue_data(name: str, folder: str | Path, matched: bool = True) -> config.Data:
    """The published files of a task, in a folder; MNLI is validated on texts like those of its training, or others."""
    found, place = find_glue_task(name), Path(folder)
    return config.Data(
        source=str(place / "train.tsv"), validation=str(place / found.checks[0 if matched else -1]),
        column_names=found.columns, on_bad_record="skip" if found.broken else "error",
    )  # fmt: skip


def glue_overrides(name: str, folder: str | Path, matched: bool = True) -> list[str]:
    """Data and task as overrides of any recipe, such as `task.input="sentence"`."""
    tables = {
        "data": config.to_dict(glue_data(name, folder, matched)),
        "task": config.to_dict(find_glue_task(name).task),
    }
    return [f"{table}.{key}={json.dumps('none' if value is None else value, ensure_ascii=False)}"
            for table, said in tables.items() for key, value in said.items()]  # fmt: skip


# ---------------------------------------------------------------- one number


def bert_average(scores: Mapping[str, float]) -> float:
    """The mean of the nine columns of Devlin et al. 2019: one metric each, MNLI twice, no WNLI."""
    check_columns_match(scores, GLUE_COLUMNS)
    return math.fsum(scores.values()) / len(GLUE_COLUMNS)  #: S165


def official_score(scores: Mapping[str, Mapping[str, float]]) -> float:
    """The score of GLUE's own table: the mean over nine tasks of the mean of their metrics, WNLI among them.

    {"MRPC": {"f1": 89.3, "accuracy": 85.4}, ...}; MNLI-m and MNLI-mm together make one task.
    """
    halves = dict.fromkeys(("MNLI-m", "MNLI-mm"), GLUE_TASKS["MNLI"].metrics)
    counted = {name: each.metrics for name, each in GLUE_TASKS.items() if name != "MNLI"} | halves
    check_columns_match(scores, counted)
    for name, metrics in counted.items():
        check_columns_match(scores[name], metrics, f"{name}: ")
    each = {name: math.fsum(metrics.values()) / len(metrics) for name, metrics in scores.items()}
    both = [each.pop(name) for name in halves]
    return math.fsum([*each.values(), math.fsum(both) / 2]) / len(GLUE_TASKS)


def check_columns_match(scores: Mapping[str, object], wanted: Iterable[str], where: str = "") -> None:
    """An average over other columns would be another number."""
    if wrong := sorted(scores.keys() ^ set(wanted)):
        raise ValueError(f"{where}{', '.join(wrong)}: the average is over exactly {', '.join(wanted)}")
