"""What a model says of texts that it never trained on, beside what is right: some rows, and all of them in one table.

The rows that the run kept back are read again, as training read them. Where that cannot be done any more, a sentence
says why: nothing is made up.

    {"asked": [["the film was a ", {"said": "joy", "meant": "delight", "right": false}]], "said": ..., "meant": ...}

A text is a list of strings, and of places where something was asked.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard import config, data
from regard.generate.session import still
from regard.report.mixtures import paired
from regard.report.rows import ROWS, some_asked
from regard.report.run import Run
from regard.report.sensed import missed, reads_text, seen
from regard.tasks import Batch, Example, Task
from regard.tasks.metrics import confusion
from regard.train.evaluate import moved
from regard.train.reading import MIXTURES, Asked, Voice, read

PICTURES, MANY, AT_ONCE = 12, 1024, 64  # rows of what is no text, of how many, and how many are asked together
SHOWN, TRIED = 6, 24  # rows on the page, and rows they are chosen from: nothing may be hidden in a short one
TOKENS = 65_536  # that are read for the table of all answers
CLASSES, POINTS = 12, 400


@dataclass(frozen=True)
class Answers:
    """What the page shows, and the rows as a batch for whoever wants to look at heads."""

    shown: dict[str, Any]
    batch: Batch | None = None


def answers(run: Run, model: Any, tokenizer: Any, task: config.Task) -> Answers:
    """Answers to what was kept back; nothing for tasks whose samples say it already."""
    if isinstance(task, config.NextToken | config.Translate):
        return Answers({})
    try:
        with warnings.catch_warnings(action="ignore"), still(list(model.modules())):
            kept = kept_back(run, tokenizer)
            if task.kind in MIXTURES:
                return Answers(paired(kept, model, tokenizer))
            return asked(kept, model, tokenizer) if reads_text(model) else looked(kept, model)
    except (config.ConfigError, config.DataError, config.RunError) as problem:
        return Answers({"absent": f"No answers are shown: {problem}."})


def kept_back(run: Run, tokenizer: Any) -> Asked:
    """The rows that the run was validated on."""
    if run.recipe is None:
        raise config.DataError("which data were read is not known without config.toml")
    sources = (*run.recipe.data.sources, *run.recipe.data.validations)
    if once := [name for name in sources if name.split(".")[0] == "-" or name.startswith("hf:")]:
        raise config.DataError(f"{once[0]} was read while training, and is not read again")
    alone = replace(run.recipe, train=replace(run.recipe.train, workers=0))
    found = read(alone, tokenizer, Voice(lambda line: None)).validation
    if found is None:
        raise config.DataError("data.validation is 0, so there are no rows that it never trained on")
    if not isinstance(found, Asked):
        raise config.DataError("these data are no rows that could be shown one by one")
    return found


def asked(validation: Asked, model: Any, tokenizer: Any) -> Answers:
    task, rows = validation.task, validation.rows
    right = replace(task, rows=replace(task.rows, side="right"))  # rows begin where texts begin
    examples: list[Example] = [rows[place] for place in evenly(len(rows), TRIED)]
    batch = right.collate(examples, data.chance(0, "report"))
    able = some_asked(batch)
    keep = [able[place] for place in evenly(len(able), SHOWN)]
    batch, examples = {name: table[keep] for name, table in batch.items()}, [examples[place] for place in keep]
    there = moved(batch, next(model.parameters()).device)
    said = ROWS[task.c.kind](right, model, there, examples, tokenizer) if keep else []
    return Answers({"name": validation.name, "count": len(rows), "rows": said, **whole(validation, model)}, batch)


def looked(validation: Asked, model: Any) -> Answers:
    """The same of what is no text: the worst come first, half of what is shown, and then some from everywhere."""
    task, rows, device = validation.task, validation.rows, next(model.parameters()).device
    tried = evenly(len(rows), MANY)
    far = [each for some in batched(tried, AT_ONCE) for each in missed(task, model, task.plain(
        [rows[place] for place in some], data.chance(0, "report")), device)]  # fmt: skip
    wrong = sorted((row for row in range(len(tried)) if far[row] > 0), key=lambda row: -far[row])[: PICTURES // 2]
    others = [row for row in evenly(len(tried), PICTURES) if row not in wrong]
    places = [tried[row] for row in [*wrong, *others][:PICTURES]]
    examples: list[Example] = [rows[place] for place in places]
    batch = task.plain(examples, data.chance(0, "report"))
    said = seen(task, model, moved(batch, device), examples, places)
    shown = {"name": validation.name, "count": len(rows), "rows": said, "wrong": len(wrong)}
    return Answers(shown | whole(validation, model), batch)


def batched(places: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (places[start : start + size] for start in range(0, len(places), size))


def evenly(count: int, most: int) -> list[int]:
    """Places among so many, from everywhere alike: files are often sorted."""
    some = min(count, most)
    return [place * count // some for place in range(some)]


def whole(validation: Asked, model: Any) -> dict[str, Any]:
    """All answers, or as many as an evaluation on the way reads: classes in a table, numbers on a plane."""
    task, device = validation.task, next(model.parameters()).device
    if not isinstance(task.c, config.Classify | config.Regress):
        return {}
    pairs: list[tuple[Any, Any]] = []
    for batch in validation.batches(TOKENS):
        there: Batch = moved(batch, device)
        pairs += zip(task.answers(model, there)["loss"], task.expected(batch)["loss"], strict=True)
    if isinstance(task.c, config.Regress):
        every = -(-len(pairs) // POINTS)
        return {"asked": len(pairs), "points": [[float(f"{each:.4g}") for each in pair] for pair in pairs[::every]]}
    said, meant = [a for a, _ in pairs], [b for _, b in pairs]
    return {"asked": len(pairs), "confusion": confused(task, said, meant)}


def confused(task: Task, said: Sequence[int], meant: Sequence[int]) -> dict[str, Any]:
    """Which classes were taken for which; the most frequent ones, where there are many."""
    names: tuple[str, ...] = task.c.classes
    counts = confusion(said, meant, names)
    totals = {name: sum(row.values()) for name, row in counts.items()}
    most = sorted(names, key=lambda name: -totals[name])[:CLASSES]
    kept = [name for name in names if name in most]
    return {
        "classes": kept, "of": len(names), "counts": [[counts[a][b] for b in kept] for a in kept],
        "always": round(max(totals.values()) / max(1, len(meant)), 4),
        "frequent": max(totals, key=lambda name: totals[name]),
    }  # fmt: skip
