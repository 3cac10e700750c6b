"""Predictions of the report on validation data, beside the labels: some rows, and a summary of all.

The validation rows are read again as in training. If that is no longer possible, a sentence gives the reason.

    {"asked": [["the film was a ", {"said": "joy", "meant": "delight", "right": false}]], "said": ..., "meant": ...}

A text is a list of strings and predictions.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard import config, data
from regard.data.batching import batch_to_device
from regard.generation.session import inference_mode
from regard.inference.batching import in_chunks
from regard.inference.objective import reads_text
from regard.report.answer_rows import ROW_BUILDERS, rows_with_labels
from regard.report.image_rows import image_text_rows, prediction_errors, prediction_rows
from regard.report.run_data import LoggedRun
from regard.tasks.collate import TaskBatch, TaskExample
from regard.tasks.metrics import confusion_matrix
from regard.tasks.task import Task
from regard.training.data.read import IMAGE_TEXT_READERS, Reporter, ValidationExamples, read_run_data

PICTURES, MANY, AT_ONCE = 12, 1024, 64  # rows shown for data other than text, rows they are chosen from, batch size
SHOWN, TRIED = 6, 24  # rows on the page, and candidates for them: a short row may have no masked token
TOKENS = 65_536  # tokens evaluated for the summary
CLASSES, POINTS = 12, 400


@dataclass(frozen=True)
class AnswerSection:
    """The section's content, and the rows as a batch for the sections on heads and tokens."""

    shown: dict[str, Any]
    batch: TaskBatch | None = None


def answer_section(run: LoggedRun, model: Any, tokenizer: Any, task: config.Task) -> AnswerSection:
    """Predictions on validation data; empty for tasks whose samples show them already."""
    if isinstance(task, config.NextToken | config.Translation):
        return AnswerSection({})
    try:
        with warnings.catch_warnings(action="ignore"), inference_mode(list(model.modules())):
            kept = validation_examples(run, tokenizer)
            if task.kind in IMAGE_TEXT_READERS:
                return AnswerSection(image_text_rows(kept, model, tokenizer))
            return text_answers(kept, model, tokenizer) if reads_text(model) else input_answers(kept, model)
    except config.UserError as problem:
        return AnswerSection({"absent": f"No answers are shown: {problem}."})


def validation_examples(run: LoggedRun, tokenizer: Any) -> ValidationExamples:
    """The validation rows of the run."""
    if run.recipe is None:
        raise config.DataError("which data were read is not known without config.toml")
    sources = (*run.recipe.data.sources, *run.recipe.data.validations)
    if once := [name for name in sources if name.split(".")[0] == "-" or name.startswith("hf:")]:
        raise config.DataError(f"{once[0]} was read while training, and is not read again")
    alone = replace(run.recipe, train=replace(run.recipe.train, workers=0))
    found = read_run_data(alone, tokenizer, Reporter(lambda line: None)).validation
    if found is None:
        raise config.DataError("data.validation is 0, so there are no rows that it never trained on")
    if not isinstance(found, ValidationExamples):
        raise config.DataError("these data are no rows that could be shown one by one")
    return found


def text_answers(validation: ValidationExamples, model: Any, tokenizer: Any) -> AnswerSection:
    task, rows = validation.task, validation.rows
    right = replace(task, rows=replace(task.rows, side="right"))  # rows start with the text
    examples: list[TaskExample] = [rows[place] for place in spread_indices(len(rows), TRIED)]
    batch = right.collate(examples, data.seeded_generator(0, "report"))
    able = rows_with_labels(batch)
    keep = [able[place] for place in spread_indices(len(able), SHOWN)]
    batch, examples = {name: table[keep] for name, table in batch.items()}, [examples[place] for place in keep]
    there = batch_to_device(batch, next(model.parameters()).device)
    said = ROW_BUILDERS[task.c.kind](right, model, there, examples, tokenizer) if keep else []
    return AnswerSection(
        {"name": validation.name, "count": len(rows), "rows": said, **answer_summary(validation, model)}, batch
    )


def input_answers(validation: ValidationExamples, model: Any) -> AnswerSection:
    """Predictions for data other than text: half of the rows have the largest errors, the others are spread evenly."""
    task, rows, device = validation.task, validation.rows, next(model.parameters()).device
    tried = spread_indices(len(rows), MANY)
    far = [each for some in in_chunks(tried, AT_ONCE) for each in prediction_errors(task, model, task.collate_eval(
        [rows[place] for place in some], data.seeded_generator(0, "report")), device)]  # fmt: skip
    wrong = sorted((row for row in range(len(tried)) if far[row] > 0), key=lambda row: -far[row])[: PICTURES // 2]
    others = [row for row in spread_indices(len(tried), PICTURES) if row not in wrong]
    places = [tried[row] for row in [*wrong, *others][:PICTURES]]
    examples: list[TaskExample] = [rows[place] for place in places]
    batch = task.collate_eval(examples, data.seeded_generator(0, "report"))
    said = prediction_rows(task, model, batch_to_device(batch, device), examples, places)
    shown = {"name": validation.name, "count": len(rows), "rows": said, "wrong": len(wrong)}
    return AnswerSection(shown | answer_summary(validation, model), batch)


def spread_indices(count: int, most: int) -> list[int]:
    """Evenly spaced indices, since files are often sorted."""
    some = min(count, most)
    return [place * count // some for place in range(some)]


def answer_summary(validation: ValidationExamples, model: Any) -> dict[str, Any]:
    """All predictions, or as many as an evaluation reads: a confusion matrix, or points of numbers."""
    task, device = validation.task, next(model.parameters()).device
    if not isinstance(task.c, config.Classification | config.Regression):
        return {}
    pairs: list[tuple[Any, Any]] = []
    for batch in validation.batches(TOKENS):
        there: TaskBatch = batch_to_device(batch, device)
        pairs += zip(task.answers(model, there)["loss"], task.expected_answers(batch)["loss"], strict=True)
    if isinstance(task.c, config.Regression):
        every = -(-len(pairs) // POINTS)
        return {"asked": len(pairs), "points": [[float(f"{each:.4g}") for each in pair] for pair in pairs[::every]]}
    said, meant = [a for a, _ in pairs], [b for _, b in pairs]
    return {"asked": len(pairs), "confusion": confusion_section(task, said, meant)}


def confusion_section(task: Task, predictions: Sequence[int], labels: Sequence[int]) -> dict[str, Any]:
    """Confusion matrix, restricted to the most frequent classes if there are many."""
    names: tuple[str, ...] = task.c.classes
    counts = confusion_matrix(predictions, labels, names)
    totals = {name: sum(row.values()) for name, row in counts.items()}
    most = sorted(names, key=lambda name: -totals[name])[:CLASSES]
    kept = [name for name in names if name in most]
    return {
        "classes": kept, "of": len(names), "counts": [[counts[a][b] for b in kept] for a in kept],
        "always": round(max(totals.values()) / max(1, len(labels)), 4),
        "frequent": max(totals, key=lambda name: totals[name]),
    }  # fmt: skip
