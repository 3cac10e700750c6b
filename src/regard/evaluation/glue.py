"""GLUE: nine tasks with their published files, and the average scores (Wang et al. 2019).

    CoLA    gj04  1     The sailors rode the breeze.          no header; the sentence is the fourth column
    MRPC    1  702876  702977  " It is , " he said .  ...     quotes are characters
    QNLI    0  What came into force?  As of that day ...  entailment

A task consists of recipe settings, `data` (columns, policy for bad lines) and `task` (columns, classes), and its
metrics; `glue_overrides("CoLA", "glue_data/CoLA")` gives the settings as overrides of any recipe. Classes have the
order of published models; where a file has 0 and 1, these are the first and the second.
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
    """One GLUE task: its task config, its metrics, and the format of its files."""

    task: config.Classification | config.Regression
    metrics: tuple[str, ...]
    columns: tuple[str, ...] = ()  # for files without a header
    checks: tuple[str, ...] = ("dev.tsv",)  # validation files
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

# The columns of the table in Devlin et al. 2019, and the one metric that each shows. WNLI is left out there: no model
# was better at it than one constant answer.
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
    """The data config of a task's published files in a folder; MNLI is validated on matched or mismatched texts."""
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


# ---------------------------------------------------------------- averages


def bert_average(scores: Mapping[str, float]) -> float:
    """The mean of the nine columns of Devlin et al. 2019: one metric each, MNLI twice, no WNLI."""
    check_columns_match(scores, GLUE_COLUMNS)
    return math.fsum(scores.values()) / len(GLUE_COLUMNS)  #: S165


def official_score(scores: Mapping[str, Mapping[str, float]]) -> float:
    """The official GLUE score: the mean over nine tasks of the mean of their metrics, WNLI included.

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
    """Refuse an average over other columns, which would not be comparable."""
    if wrong := sorted(scores.keys() ^ set(wanted)):
        raise ValueError(f"{where}{', '.join(wrong)}: the average is over exactly {', '.join(wanted)}")
